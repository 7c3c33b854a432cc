"use strict";
// Charts with plotly. All are drawn again when the colour scheme changes.

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

// plotly interprets some HTML in texts, so names must be escaped.
function plain(text) {
  return text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
}

function wrapped(text) {
  return text.replace(/(.{80})(?=.)/gu, "$1\n");
}

// Wraps words into lines of at most `most` characters.
function broken(text, most = window.innerWidth < 720 ? 24 : 44) {
  const lines = [""];
  for (const word of plain(text).split(" ")) {
    if (lines.at(-1) && lines.at(-1).length + word.length >= most) lines.push(word);
    else lines[lines.length - 1] += (lines.at(-1) ? " " : "") + word;
  }
  return lines.join("<br>");
}

function layout(more) {
  const axis = {
    gridcolor: variable("--line"), linecolor: variable("--line"), zerolinecolor: variable("--line"),
    automargin: true,
  };
  const base = {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: variable("--text"), family: getComputedStyle(document.body).fontFamily, size: 12 },
    hoverlabel: { bgcolor: variable("--panel"), font: { color: variable("--text") },
      bordercolor: variable("--line"), align: "left", namelength: 0 },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: variable("--soft"), activecolor: variable("--accent") },
    margin: { l: 8, r: 12, t: 8, b: 34 },
    legend: { orientation: "h", y: 1, yanchor: "bottom", x: 0 },
  };
  return { ...base, ...more, xaxis: { ...axis, ...more.xaxis }, yaxis: { ...axis, ...more.yaxis } };
}

function chart(parent, label, draw, tools = true) {
  // A chart with tools contains controls, which are not allowed in the role "img".
  const node = element("div", { class: "chart", role: tools ? "group" : "img", "aria-label": label });
  if (tools) node.tabIndex = 0;
  parent.append(node);
  const options = {
    responsive: true, displaylogo: false, displayModeBar: tools && "hover", showLink: false, showSendToCloud: false,
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
  };
  node.draw = () => { const [traces, shape] = draw(); Plotly.react(node, traces, layout(shape), options); };
  DRAWINGS.push(node.draw);
  return node;
}

function idleCauses(parent, { causes }) {
  const rows = [...causes].reverse();
  const total = rows.reduce((sum, [, , time]) => sum + time, 0);
  const [size, unit] = timeUnit(Math.max(...rows.map(([, , time]) => time)));
  chart(parent, "Idle time by cause", () => [[{
    type: "bar", orientation: "h",
    x: rows.map(([, , time]) => time / size), y: rows.map((_, at) => at),
    marker: { color: rows.map(([colour]) => colourOf(colour)) },
    text: rows.map(([, , time]) => inWords((100 * time) / total, "%")), textposition: "auto",
    insidetextfont: { color: "#ffffff" }, cliponaxis: false,
    customdata: rows.map(([, meaning, time, gaps]) =>
      [meaning, inWords(time, "ns"), `${number(gaps, 0)} ${gaps === 1 ? "gap" : "gaps"}`]),
    hovertemplate: "%{customdata[1]}, %{customdata[2]}<br>%{customdata[0]}<extra></extra>",
  }], {
    height: 60 + 34 * rows.length, xaxis: { title: { text: `idle (${unit})` } }, showlegend: false,
    yaxis: { tickvals: rows.map((_, at) => at), ticktext: rows.map(([, meaning]) => broken(meaning)),
      showgrid: false, tickfont: { size: 11 } },
  }], false);
}

// The roofs of a device by operations per byte, and the operators below them.
function roofline(parent, { device, bytes_s: bandwidth, roofs, points }) {
  const operators = [...new Set(points.map(([name]) => name))];
  const across = points.map(([, each]) => each);
  const highest = Math.max(...roofs.map(([, peak]) => peak), 0);
  const [size, unit] = Math.max(highest, ...points.map(([, , each]) => each)) >= 1e12 ? [1e12, "TFLOP/s"] : [1e9, "GFLOP/s"];
  const rates = [...points.map(([, , each]) => each), ...roofs.map(([, peak]) => peak)];
  // Powers of ten alone would be too few for values that differ little.
  const ticks = (least, most) => (most / least < 1000 ? "D2" : 1);
  const edges = [...across, ...(bandwidth && highest ? [highest / bandwidth] : [])];
  const [first, last] = [Math.min(...edges) / 2, Math.max(...edges) * 4];
  const line = (name, x, y) => ({
    type: "scatter", mode: "lines+text", x, y: y.map((each) => each / size), text: ["", name], textposition: "top left",
    textfont: { size: 11 }, line: { color: variable("--soft"), width: 1.5 }, showlegend: false,
    hoverinfo: "skip",
  });
  const limits = roofs.map(([name, peak]) => line(`peak of ${plain(name)}`, [peak / bandwidth, last], [peak, peak]));
  // Without a known peak, nothing says where the memory's roof ends.
  if (bandwidth && highest) {
    limits.push({ ...line("", [first, highest / bandwidth], [first * bandwidth, highest]), mode: "lines" });
  }
  parent.append(element("h3", {}, `Roofline${device ? ` of ${device}` : ""}`));
  chart(parent, "Roofline", () => [[...limits, ...operators.map((operator, at) => {
    const own = points.filter(([name]) => name === operator);
    return {
      type: "scatter", mode: "markers", name: plain(operator),
      x: own.map(([, each]) => each), y: own.map(([, , each]) => each / size),
      marker: { color: STAGE_COLOURS[at % 10], opacity: 0.8, line: { color: variable("--panel"), width: 1 },
        size: own.map(([, , , percent]) => 7 + 3 * Math.sqrt(percent)) },
      customdata: own.map(([, , , , texts]) => texts.map((each) => plain(wrapped(each))).join("<br>").replaceAll("\n", "<br>")),
      hovertemplate: "%{customdata}<extra></extra>",
    };
  })], {
    height: 420, hovermode: "closest", showlegend: true,
    legend: { orientation: "h", y: -0.2, yanchor: "top", x: 0, itemsizing: "constant" },
    xaxis: { type: "log", title: { text: "FLOP per byte" }, tickformat: ",~g",
      range: [Math.log10(first), Math.log10(last)], dtick: ticks(first, last) },
    yaxis: { type: "log", title: { text: unit }, tickformat: ",~g", dtick: ticks(Math.min(...rates), Math.max(...rates)) },
  }], false);
  parent.append(element("p", { class: "note" }, "Each point is an operator with one shape of inputs; "
    + "its size shows its share of the time. Below the slope, the memory limits it; below a horizontal line, computing."));
}

// The time of each step by part; the parts sum to the step.
function steps(parent, { names, parts, on_device: onDevice, note }) {
  const colours = onDevice ? PART_COLOURS : HOST_PART_COLOURS;
  const longest = Math.max(...names.map((_, at) => parts.reduce((sum, [, , times]) => sum + times[at], 0)));
  const [size, unit] = timeUnit(longest);
  chart(parent, "Time of each step by part", () => [parts.map(([part, words, times]) => ({
    type: "bar", name: plain(words), x: names.map((_, at) => at),
    y: times.map((time) => time / size), marker: { color: colours[part] || variable("--soft") },
    customdata: names.map((name, at) => [plain(wrapped(name)), inWords(times[at], "ns")]),
    hovertemplate: `%{customdata[0]}<br>${plain(words)}: %{customdata[1]}<extra></extra>`,
  })), {
    barmode: "stack", height: 320, bargap: names.length > 60 ? 0 : 0.15,
    legend: { orientation: "h", y: 1, yanchor: "bottom", x: 0, traceorder: "normal" },
    xaxis: { title: { text: "step" }, showgrid: false,
      tickvals: names.length <= 20 ? names.map((_, at) => at) : undefined,
      ticktext: names.length <= 20 ? names.map((name) => plain(name.slice(-18))) : undefined },
    yaxis: { title: { text: unit } },
  }], false);
  if (note) parent.append(element("p", { class: "note" }, note));
}

function memory(parent, { devices }) {
  const points = devices.flatMap(({ curve }) => curve);
  const [size, unit] = timeUnit(Math.max(...points.map(([time]) => time)));
  const most = Math.max(...points.map(([, bytes]) => bytes));
  const [power, name] = [[30, "GiB"], [20, "MiB"], [10, "KiB"]].find(([each]) => most >= 2 ** each)
    || [0, "bytes"];
  chart(parent, "Memory over time", () => [devices.map(({ device, curve }, at) => ({
    type: "scatter", mode: "lines", line: { shape: "hv", width: 1.6, color: STAGE_COLOURS[at % 10] },
    fill: devices.length === 1 ? "tozeroy" : "none", name: plain(device), showlegend: true,
    x: curve.map(([time]) => time / size), y: curve.map(([, bytes]) => bytes / 2 ** power),
    customdata: curve.map(([time, bytes]) => [inWords(time, "ns"), inWords(bytes, "bytes")]),
    hovertemplate: `${plain(device)} at %{customdata[0]}: %{customdata[1]}<extra></extra>`,
  })), {
    height: 300, hovermode: "closest", yaxis: { title: { text: name }, rangemode: "tozero" },
    xaxis: { title: { text: `time since the start of the trace (${unit})` }, zeroline: false },
  }]);
}

function flame(parent, { names, parents, self_ns: own, depth, note }) {
  parent.append(element("h3", {}, "Flame graph"));
  chart(parent, "Flame graph of the recorded stacks", () => [[{
    type: "icicle", ids: names.map((_, at) => String(at)), labels: names.map(plain),
    parents: parents.map((at) => (at < 0 ? "" : String(at))), values: own, branchvalues: "remainder",
    tiling: { orientation: "v", pad: 1 }, pathbar: { visible: true }, sort: true, maxdepth: 24,
    marker: { colors: names.map((name) => frameColour(name)), line: { width: 0 } },
    textinfo: "label", insidetextfont: { color: "#14171b" },
    customdata: totals(parents, own).map((time, at) =>
      [inWords(time, "ns"), inWords(own[at], "ns"), plain(wrapped(names[at])).replaceAll("\n", "<br>")]),
    hovertemplate: "%{customdata[2]}<br>%{customdata[0]}, own time %{customdata[1]}<extra></extra>",
  }], {
    height: 60 + 22 * Math.min(Math.max(depth, 4), 24), margin: { l: 0, r: 0, t: 4, b: 4 },
    uniformtext: { minsize: 9, mode: "hide" },
  }], false);
  parent.append(element("p", { class: "note" },
    `Click a frame to show it over the whole width; click the topmost frame to go back. ${note}`));
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
  const whole = numbers.map((_, at) => parts.reduce((sum, [, , times]) => sum + times[at], 0));
  const [size, unit] = timeUnit(Math.max(...whole));
  chart(parent, "Time of each rank by part", () => [parts.map(([name, key, times]) => ({
    type: "bar", name, x: names, y: times.map((time) => time / size),
    marker: { color: variable(RANK_COLOURS[key]) },
    customdata: times.map((time, at) =>
      `${inWords(time, "ns")} (${inWords((100 * time) / (whole[at] || 1), "%")})`),
    hovertemplate: `%{x}: %{customdata} ${name}<extra></extra>`,
  })), {
    barmode: "stack", height: 300, yaxis: { title: { text: unit } },
    xaxis: { type: "category", showgrid: false },
  }], false);
  if (note) parent.append(element("p", { class: "note" }, note));
}

// The change from the time before to the time after, part by part.
function change(parent, { before, after, parts, per }) {
  const [size, unit] = timeUnit(Math.max(before, after));
  const rows = [["before", before, "absolute"], ...parts.map(([name, time]) => [name, time, "relative"]),
    ["after", after, "total"]];
  chart(parent, "Change by part", () => [[{
    type: "waterfall", orientation: "h", measure: rows.map(([, , measure]) => measure),
    y: rows.map((_, at) => at), x: rows.map(([, time]) => time / size),
    decreasing: { marker: { color: variable("--computing") } },
    increasing: { marker: { color: variable("--idle") } }, totals: { marker: { color: "#7c8696" } },
    connector: { line: { color: variable("--line"), width: 1 } }, textposition: "none",
    customdata: rows.map(([name, time]) => [plain(wrapped(name)), inWords(time, "ns")]),
    hovertemplate: "%{customdata[0]}: %{customdata[1]}<extra></extra>",
  }], {
    height: 80 + 26 * rows.length, showlegend: false, xaxis: { title: { text: `${per} (${unit})` } },
    yaxis: { tickvals: rows.map((_, at) => at), autorange: "reversed", showgrid: false,
      ticktext: rows.map(([name]) => plain(name.length > 60 ? `${name.slice(0, 57)}...` : name)) },
  }], false);
}

const PICTURES = { idle_causes: idleCauses, roofline, steps, memory, flame, ranks, change };
