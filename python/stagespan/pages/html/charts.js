"use strict";
// The charts of results. All are drawn again when the colour scheme or the width of the window changes.

const DRAWINGS = [];

const HOST_COLOURS = {
  operators: "#6f9bd1", calls: "#d0a04f", step: "#7c8696",
  path_work: "#2f9e63", path_launch: "#d9a21b", path_stream: "#b8bcc4", path_dependency: "#c2528b",
  path_host: "#6f9bd1", path_call: "#d0a04f", path_wait: "#e2674a",
};
const STAGE_COLOURS = ["#5b8ff9", "#5ad8a6", "#f6bd16", "#e8684a", "#6dc8ec", "#9270ca", "#ff9d4d",
  "#269a99", "#ff99c3", "#a0b86f"];

function variable(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// The parts of a step: the device's work, and in the colours of idle time the host's activity.
const PART_COLOURS = {
  computation: "#2f9e63", communication: "#a44cc4", copies: "#2f7fd6", runtime_calls: "#d9a21b",
  data_loading: "#c2528b", operators: "#e2674a", other: "#b8bcc4",
};
const HOST_PART_COLOURS = {
  operators: "#6f9bd1", communication: "#a44cc4", data_loading: "#c2528b", other: "#b8bcc4",
};

function frameColour(name) {
  let hash = 0;
  for (const letter of name) hash = (hash * 31 + letter.codePointAt(0)) >>> 0;
  return STAGE_COLOURS[hash % STAGE_COLOURS.length];
}

function colourOf(key) {
  if (key in HOST_COLOURS) return HOST_COLOURS[key];
  if (key.startsWith("#")) return key;
  return variable(`--${key}`) || variable("--soft");
}

function wrapped(text) {
  return text.replace(/(.{80})(?=.)/gu, "$1\n");
}

// Wraps words into lines of at most `most` characters.
function broken(text, most = window.innerWidth < 720 ? 24 : 44) {
  const lines = [""];
  for (const word of text.split(" ")) {
    if (lines.at(-1) && lines.at(-1).length + word.length >= most) lines.push(word);
    else lines[lines.length - 1] += (lines.at(-1) ? " " : "") + word;
  }
  return lines.join("\n");
}

// Adds a chart to a section; `make` returns its data for `Plot.draw`.
function chart(parent, label, make, hasControls = false) {
  // A chart with controls is a group, because the role "img" must not contain them.
  const node = element("div", { class: "chart", role: hasControls ? "group" : "img", "aria-label": label });
  if (hasControls) node.tabIndex = 0;
  parent.append(node);
  const plot = new Plot(node);
  node.draw = () => { if (node.clientWidth) plot.draw(make()); };
  node.plot = plot;
  DRAWINGS.push(node.draw);
  return node;
}

const rowsDown = (count) => ({ range: [count - 0.5, -0.5], grid: false });

function idleCauses(parent, { causes }) {
  const total = causes.reduce((sum, [, , time]) => sum + time, 0);
  const most = Math.max(...causes.map(([, , time]) => time));
  const [size, unit] = timeUnit(most);
  chart(parent, "Idle time by cause", () => ({
    height: 60 + 34 * causes.length,
    x: { title: `idle (${unit})`, range: [0, (1.12 * most) / size] },
    y: { ...rowsDown(causes.length), ticks: causes.map(([, meaning], at) => [at, broken(meaning)]) },
    marks: causes.flatMap(([colour, meaning, time, gaps], at) => {
      const tip = `${inWords(time, "ns")}, ${number(gaps, 0)} ${gaps === 1 ? "gap" : "gaps"}\n${meaning}`;
      const share = inWords((100 * time) / total, "%");
      const end = time / size;
      return [
        { boxes: [[0, end, at - 0.36, at + 0.36, tip]], colour: colourOf(colour) },
        { texts: [[end, 2 * most / size, at - 0.36, at + 0.36, share]], colour: variable("--text") },
      ];
    }),
  }));
}

// The roofs of a device by operations per byte, and the operators below them.
function roofline(parent, { device, bytes_s: bandwidth, roofs, points }) {
  const operators = [...new Set(points.map(([name]) => name))];
  const highest = Math.max(...roofs.map(([, peak]) => peak), 0);
  const rates = [...points.map(([, , rate]) => rate), ...roofs.map(([, peak]) => peak)];
  const [size, unit] = Math.max(...rates) >= 1e12 ? [1e12, "TFLOP/s"] : [1e9, "GFLOP/s"];
  const edges = [...points.map(([, across]) => across), ...(bandwidth && highest ? [highest / bandwidth] : [])];
  const [first, last] = [Math.min(...edges) / 2, Math.max(...edges) * 4];
  parent.append(element("h3", {}, `Roofline${device ? ` of ${device}` : ""}`));
  chart(parent, "Roofline", () => {
    const line = (places, label) => (
      { line: places.map(([x, y]) => [x, y / size, ""]), colour: variable("--soft"), label });
    const limits = roofs.map(([name, peak]) => line([[peak / bandwidth, peak], [last, peak]], `peak of ${name}`));
    // Without a known peak, nothing says where the memory's roof ends.
    if (bandwidth && highest) limits.push(line([[first, first * bandwidth], [highest / bandwidth, highest]], ""));
    const colourAt = (at) => STAGE_COLOURS[at % STAGE_COLOURS.length];
    return {
      height: 400,
      x: { title: "FLOP per byte", range: [first, last], log: true },
      y: { title: unit, range: [Math.min(...rates) / size / 2, (Math.max(...rates) / size) * 2], log: true },
      marks: [...limits, ...operators.map((operator, at) => ({
        colour: colourAt(at),
        points: points.filter(([name]) => name === operator).map(([, across, rate, percent, texts]) =>
          [across, rate / size, (7 + 3 * Math.sqrt(percent)) / 2, texts.map(wrapped).join("\n")]),
      }))],
      legend: operators.map((operator, at) => [colourAt(at), operator]),
    };
  });
  parent.append(element("p", { class: "note" }, "Each point is an operator with one shape of inputs; "
    + "its size shows its share of the time. Below the slope, the memory limits it; below a horizontal line, computing."));
}

// Bars side by side, each divided into parts: { names, parts: [[words, colour, times], ...], title }.
function stacked(parent, label, { names, parts, title, tip, shown }) {
  const whole = names.map((_, at) => parts.reduce((sum, [, , times]) => sum + times[at], 0));
  const most = Math.max(...whole);
  const [size, unit] = timeUnit(most);
  const half = names.length > 60 ? 0.5 : 0.42;
  chart(parent, label, () => {
    const floor = names.map(() => 0);
    return {
      height: 320,
      x: { title, range: [-0.5, names.length - 0.5], grid: false, ticks: shown },
      y: { title: unit, range: [0, most / size || 1] },
      marks: parts.map(([words, colour, times]) => ({
        colour: variable(colour) || colour,
        boxes: times.map((time, at) => {
          const low = floor[at];
          floor[at] += time / size;
          return [at - half, at + half, low, floor[at], tip(at, words, time, whole[at])];
        }),
      })),
      legend: parts.map(([words, colour]) => [variable(colour) || colour, words]),
    };
  });
}

// The time of each step by part; the parts sum to the step.
function steps(parent, { names, parts, on_device: onDevice, note }) {
  const colours = onDevice ? PART_COLOURS : HOST_PART_COLOURS;
  stacked(parent, "Time of each step by part", {
    names,
    parts: parts.map(([part, words, times]) => [words, colours[part] || "--soft", times]),
    title: "step",
    tip: (at, words, time) => `${wrapped(names[at])}\n${words}: ${inWords(time, "ns")}`,
    shown: names.length <= 20 && window.innerWidth >= 720 ? names.map((name, at) => [at, name.slice(-18)]) : undefined,
  });
  if (note) parent.append(element("p", { class: "note" }, note));
}

function memory(parent, { devices }) {
  const points = devices.flatMap(({ curve }) => curve);
  const last = Math.max(...points.map(([time]) => time));
  const [size, unit] = timeUnit(last);
  const most = Math.max(...points.map(([, bytes]) => bytes));
  const [power, name] = [[30, "GiB"], [20, "MiB"], [10, "KiB"]].find(([each]) => most >= 2 ** each)
    || [0, "bytes"];
  chart(parent, "Memory over time", () => ({
    height: 300,
    x: { title: `time since the start of the trace (${unit})`, range: [0, last / size || 1] },
    y: { title: name, range: [0, (1.05 * most) / 2 ** power || 1] },
    marks: devices.map(({ device, curve }, at) => ({
      colour: STAGE_COLOURS[at % STAGE_COLOURS.length], isStepped: true, isFilled: devices.length === 1,
      line: curve.map(([time, bytes]) => [time / size, bytes / 2 ** power,
        `${device} at ${pointInTime(time)}: ${inWords(bytes, "bytes")}`]),
    })),
    legend: devices.map(({ device }, at) => [STAGE_COLOURS[at % STAGE_COLOURS.length], device]),
  }));
}

// The percentiles of stages by period, each in a chart of its own. Lines end at periods without runs.
function percentiles(parent, { window_ns: window, period_ns: period, stages }) {
  const [size, unit] = timeUnit(window);
  for (const name of ["p50", "p95"]) {
    const times = stages.flatMap((stage) => stage[`${name}_ns`]).map((time) => Math.max(time, 1));
    const [timeSize, timeName] = timeUnit(Math.max(...times));
    const range = [Math.min(...times) / timeSize / 1.5, (1.5 * Math.max(...times)) / timeSize];
    parent.append(element("h3", {}, `${name} of each stage`));
    chart(parent, `${name} of each stage over time`, () => ({
      height: 240,
      x: { title: `time (${unit})`, range: [0, window / size || 1] },
      y: { title: timeName, range, log: true },
      marks: stages.flatMap((stage, at) => {
        const colour = STAGE_COLOURS[at % STAGE_COLOURS.length];
        const places = stage.periods.map((each, index) => {
          const time = stage[`${name}_ns`][index];
          const runs = stage.runs[index];
          return [Math.min((each + 0.5) * period, window) / size, Math.max(time, 1) / timeSize,
            `${wrapped(stage.name)}: ${name} ${inWords(time, "ns")} of ${runs} ${runs === 1 ? "run" : "runs"}`];
        });
        const lines = [];
        places.forEach((place, index) => {
          if (index && stage.periods[index] === stage.periods[index - 1] + 1) lines.at(-1).push(place);
          else lines.push([place]);
        });
        return [...lines.filter((line) => line.length > 1).map((line) => ({ line, colour })),
          { points: places.map(([x, y, tip]) => [x, y, 2.5, tip]), colour }];
      }),
      legend: stages.map(({ name: stage }, at) => [STAGE_COLOURS[at % STAGE_COLOURS.length], stage]),
    }));
  }
}

const FLAME_DEPTH = 24;

// A tree of frames, each as wide as its time, below the frame that called it. A click opens a frame.
function flame(parent, picture) {
  let tree = null;
  // The frames may be compressed until the first drawing.
  const frames = () => {
    if (tree) return tree;
    const times = totals(picture.parents, picture.self_ns);
    const below = new Map();
    picture.parents.forEach((at, frame) => {
      if (!below.has(at)) below.set(at, []);
      below.get(at).push(frame);
    });
    for (const each of below.values()) each.sort((one, other) => times[other] - times[one]);
    tree = { times, below };
    return tree;
  };
  let root = -1;
  parent.append(element("h3", {}, "Flame graph"));
  const node = chart(parent, "Flame graph of the recorded stacks", () => {
    const { times, below } = frames();
    const { names, self_ns: own } = picture;
    const boxes = new Map();
    const texts = [];
    node.frames = [];
    const open = (root < 0 ? below.get(-1) || [] : [root]).map((frame) => [frame, 0]);
    let left = 0;
    const waiting = open.map(([frame]) => { left += times[frame]; return [frame, left - times[frame], 0]; });
    const whole = left || 1;
    while (waiting.length) {
      const [frame, from, level] = waiting.pop();
      if (level >= FLAME_DEPTH || times[frame] / whole < 0.0005) continue;
      const box = [from / whole, (from + times[frame]) / whole, level + 0.04, level + 0.96,
        `${wrapped(names[frame])}\n${inWords(times[frame], "ns")}, own time ${inWords(own[frame], "ns")}`];
      const colour = frameColour(names[frame]);
      if (!boxes.has(colour)) boxes.set(colour, []);
      boxes.get(colour).push(box);
      texts.push([...box.slice(0, 4), names[frame]]);
      node.frames.push([box, frame]);
      let at = from;
      for (const each of below.get(frame) || []) {
        waiting.push([each, at, level + 1]);
        at += times[each];
      }
    }
    const levels = Math.min(Math.max(picture.depth, 4), FLAME_DEPTH);
    return {
      height: 20 + 22 * levels,
      x: { range: [0, 1], ticks: [], grid: false },
      y: { range: [levels, 0], ticks: [], grid: false },
      marks: [...[...boxes].map(([colour, each]) => ({ boxes: each, colour })), { texts }],
    };
  });
  node.addEventListener("click", (event) => {
    const frame = node.plot.picture.getBoundingClientRect();
    const best = node.plot.found(event.clientX - frame.left, event.clientY - frame.top);
    const clicked = best && node.frames.find(([box]) => box === best);
    if (!clicked) return;
    root = clicked[1] === root ? picture.parents[root] : clicked[1];
    node.draw();
  });
  parent.append(element("p", { class: "note" },
    `Click a frame to show it over the whole width; click the topmost frame to go back. ${picture.note}`));
}

// The time of each frame including the frames that it called. Callers come before the frames that they call.
function totals(parents, own) {
  const sums = [...own];
  for (let at = own.length - 1; at >= 0; at -= 1) if (parents[at] >= 0) sums[parents[at]] += sums[at];
  return sums;
}

// The parts of a rank's bar sum to its time; the table has the same figures.
const RANK_COLOURS = {
  computing: "--computing", waiting: "--medium", communicating: "--communicating",
  copying: "--copying", idle: "--idle",
};

function ranks(parent, { ranks: numbers, parts, note }) {
  const names = numbers.map((rank) => `rank ${rank}`);
  stacked(parent, "Time of each rank by part", {
    names,
    parts: parts.map(([name, key, times]) => [name, RANK_COLOURS[key], times]),
    tip: (at, name, time, whole) =>
      `${names[at]}: ${inWords(time, "ns")} (${inWords((100 * time) / (whole || 1), "%")}) ${name}`,
    shown: names.length <= 16 ? names.map((name, at) => [at, name]) : undefined,
    title: names.length <= 16 ? "" : "rank",
  });
  if (note) parent.append(element("p", { class: "note" }, note));
}

// The change from the time before to the time after, part by part.
function change(parent, { before, after, parts, per }) {
  const rows = [["before", 0, before], ...parts, ["after", 0, after]];
  let at = before;
  const bars = rows.map(([name, time], row) => {
    const isWhole = row === 0 || row === rows.length - 1;
    const [from, to] = row === 0 ? [0, before] : isWhole ? [0, after] : [at, at + time];
    if (!isWhole) at = to;
    return { name, from, to, time: isWhole ? to : time, isWhole };
  });
  const edges = bars.flatMap(({ from, to }) => [from, to]);
  const [size, unit] = timeUnit(Math.max(...edges));
  chart(parent, "Change by part", () => ({
    height: 80 + 26 * rows.length,
    x: { title: `${per} (${unit})`, range: [Math.min(0, ...edges) / size, (1.03 * Math.max(...edges)) / size || 1] },
    y: { ...rowsDown(rows.length), ticks: bars.map(({ name }, row) =>
      [row, name.length > 60 ? `${name.slice(0, 57)}...` : name]) },
    marks: bars.map(({ name, from, to, time, isWhole }, row) => ({
      colour: isWhole ? "#7c8696" : variable(time > 0 ? "--idle" : "--computing"),
      boxes: [[Math.min(from, to) / size, Math.max(from, to) / size, row - 0.4, row + 0.4,
        `${wrapped(name)}: ${inWords(time, "ns")}`]],
    })),
  }));
}

const PICTURES = { idle_causes: idleCauses, roofline, steps, memory, percentiles, flame, ranks, change };
