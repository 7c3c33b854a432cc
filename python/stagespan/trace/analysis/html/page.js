"use strict";
// The page from its data block: verdict, findings, timeline, idle causes, then every analysis.

const DATA = JSON.parse(document.getElementById("data").textContent);
const MAIN = document.getElementById("main");
const TABLES = [];
const DRAWINGS = []; // functions that draw a chart, called again when the scheme changes
let timelineNode = null;

const IDLE_COLOURS = {
  launch: "#e2674a", synchronisation: "#d9a21b", between_steps: "#7d6bd0", host_work: "#4f9fb5",
  data_loading: "#c2528b", memory_allocation: "#8b6f47", compilation: "#5f8f3e",
  kernel_loading: "#b36ad1", profiler: "#9a9a9a", runtime_call: "#cc7a2e", dependency: "#3f78c9",
  graph: "#56a68b", queued: "#b8bcc4", not_traced: "#868d97",
};
const HOST_COLOURS = { operators: "#6f9bd1", calls: "#d0a04f", step: "#7c8696" };
const STAGE_COLOURS = ["#5b8ff9", "#5ad8a6", "#f6bd16", "#e8684a", "#6dc8ec", "#9270ca", "#ff9d4d",
  "#269a99", "#ff99c3", "#a0b86f"];

function variable(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function colourOf(key) {
  if (key in IDLE_COLOURS) return IDLE_COLOURS[key];
  if (key in HOST_COLOURS) return HOST_COLOURS[key];
  if (key.startsWith("stage ")) {
    let hash = 0;
    for (const letter of key) hash = (hash * 31 + letter.codePointAt(0)) >>> 0;
    return STAGE_COLOURS[hash % STAGE_COLOURS.length];
  }
  return variable(`--${key}`) || variable("--soft");
}

// The charts read some HTML in texts: names must not be read so.
function plain(text) {
  return text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
}

function section(id, title, ...children) {
  const made = element("section", { id, "aria-labelledby": `${id}-title` },
    element("h2", { id: `${id}-title` }, title), ...children);
  MAIN.append(made);
  document.getElementById("contents").append(element("a", { href: `#${id}` }, title));
  return made;
}

function bullet(colour, text) {
  const swatch = element("i");
  swatch.style.background = colour;
  return element("li", {}, swatch, text);
}

function head() {
  document.title = `${DATA.title}: ${DATA.verdict ? DATA.verdict.word : "trace analysis"}`;
  document.getElementById("title").textContent = DATA.title;
  document.getElementById("title").title = DATA.path;
  document.getElementById("made").textContent = `${DATA.path}: ${DATA.summary}. Made by ${DATA.made_by}.`;
  if (DATA.incomplete) MAIN.append(element("p", { class: "notice" }, DATA.notes[0]));
  const made = section("summary", "Summary");
  made.querySelector("h2").hidden = true;
  if (DATA.verdict) {
    const { word, sentence } = DATA.verdict;
    const name = word[0].toUpperCase() + word.slice(1);
    const rest = sentence.startsWith(`${name}: `) ? sentence.slice(name.length + 2) : sentence;
    made.append(element("div", { class: "verdict" }, element("strong", {}, name),
      element("span", {}, rest[0].toUpperCase() + rest.slice(1))));
  }
  if (DATA.device.length) made.append(deviceBar());
  made.append(element("p", { class: "note path" }, `${DATA.path}: ${DATA.summary}.`));
  for (const note of DATA.notes.slice(DATA.incomplete ? 1 : 0)) {
    made.append(element("p", { class: "note" }, note));
  }
}

function deviceBar() {
  const span = DATA.device.reduce((sum, [, time]) => sum + time, 0);
  const bar = element("div", { class: "device", role: "img", "aria-label": "The device's time" });
  const legend = element("ul", { class: "legend" });
  for (const [name, time, key] of DATA.device) {
    const part = element("i", { title: name });
    part.style.background = `var(--${key})`;
    part.style.flexGrow = time / span;
    bar.append(part);
    legend.append(bullet(`var(--${key})`,
      `${name} ${inWords((100 * time) / span, "%")} (${inWords(time, "ns")})`));
  }
  return element("div", {}, bar, legend);
}

function findings() {
  const made = section("findings", "Findings");
  if (!DATA.findings.length) {
    made.append(element("p", {}, DATA.no_findings));
    return;
  }
  made.append(element("ul", { class: "findings" }, ...DATA.findings.map((finding) =>
    element("li", { class: finding.severity },
      element("p", {}, element("span", { class: "severity" }, finding.severity), finding.sentence),
      element("ul", { class: "evidence" }, ...finding.evidence.map(evidence))))));
}

function evidence([event, time, figure, unit]) {
  const made = element("li", {}, element("code", { dir: "auto" }, event));
  if (time !== null) {
    const words = `at ${inWords(time, "ns")}`;
    const length = unit === "ns" && typeof figure === "number" ? figure : 0;
    made.append(" ", DATA.lanes.length
      ? element("button", {
        type: "button", class: "at", title: "Show in the timeline", onclick: () => goTo(time, length),
      }, words)
      : words);
  }
  if (figure !== null) made.append(`: ${inWords(figure, unit)}`);
  return made;
}

function sections() {
  const unknown = [];
  for (const { name, heading, unknown: reason, tables } of DATA.sections) {
    if (reason !== null && !tables.length) unknown.push([heading, reason]);
    if (!tables.length) continue;
    const drawn = DATA.pictures.filter((picture) => picture.analysis === name);
    const made = section(`analysis-${name}`, heading);
    for (const picture of drawn) PICTURES[picture.kind](made, picture);
    for (const table of tables) {
      const shown = new DataTable(table, DATA.lanes.length ? goTo : null,
        tables.length === 1 && table.title === heading);
      TABLES.push(shown);
      made.append(shown.node);
    }
  }
  if (!unknown.length) return;
  section("unknown", "Not known", element("ul", {}, ...unknown.map(([heading, reason]) =>
    element("li", {}, element("strong", {}, `${heading}: `), reason))));
}

// ---- charts

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
  const node = element("div", { class: "chart", role: "img", tabIndex: 0, "aria-label": label });
  parent.append(node);
  const options = {
    responsive: true, displaylogo: false, displayModeBar: tools && "hover", showLink: false, showSendToCloud: false,
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
  };
  DRAWINGS.push(() => { const [traces, shape] = draw(); Plotly.react(node, traces, layout(shape), options); });
  return node;
}

function timeline() {
  if (!DATA.lanes.length) return;
  const made = section("timeline", "Timeline");
  const [size, unit] = timeUnit(DATA.window_ns);
  const names = DATA.lanes.map((lane) => plain(lane.name));
  const few = window.innerWidth < 720;
  timelineNode = chart(made, "Timeline of steps, stages, device and host", () => {
    const groups = new Map();
    DATA.lanes.forEach((lane, row) => {
      for (const [begin, length, label, key] of lane.bars) {
        if (!groups.has(key)) groups.set(key, { x: [], base: [], y: [], text: [] });
        const group = groups.get(key);
        group.x.push(length / size);
        group.base.push(begin / size);
        group.y.push(row);
        group.text.push(plain(`${wrapped(label)}\nat ${inWords(begin, "ns")}: ${inWords(length, "ns")}`)
          .replaceAll("\n", "<br>"));
      }
    });
    const traces = [...groups].map(([key, group]) => ({
      type: "bar", orientation: "h", ...group, name: plain(key.replace(/^stage /, "").replace(/_/g, " ")),
      width: 0.82, marker: { color: colourOf(key), line: { width: 0 } }, textposition: "none",
      hovertemplate: "%{text}<extra></extra>", showlegend: !key.startsWith("stage "),
    }));
    return [traces, {
      barmode: "overlay", hovermode: "closest", dragmode: "zoom", height: 110 + 30 * names.length,
      xaxis: { title: { text: `time from the begin of the trace (${unit})` }, zeroline: false,
        range: timelineNode && timelineNode.layout ? timelineNode.layout.xaxis.range
          : [0, DATA.window_ns / size] },
      yaxis: { tickvals: names.map((_, row) => row), ticktext: names, range: [names.length - 0.45, -0.55],
        fixedrange: true, showgrid: false, zeroline: false, tickfont: { size: few ? 9 : 12 } },
      legend: { orientation: "h", y: 1.01, yanchor: "bottom", x: 0, font: { size: 11 } },
    }];
  });
  timelineNode.addEventListener("keydown", moveTimeline);
  const notes = DATA.lanes.map((lane) => lane.note).filter(Boolean);
  made.append(element("p", { class: "note" },
    ["Drag to zoom, double-click to see all; a click on a time anywhere on this page leads here.",
      ...notes].join(" ")));
}

function wrapped(text) {
  return text.replace(/(.{80})(?=.)/gu, "$1\n");
}

function moveTimeline(event) {
  const factors = { "+": [0.25, 0.75], "=": [0.25, 0.75], "-": [-0.5, 1.5], ArrowLeft: [-0.2, 0.8],
    ArrowRight: [0.2, 1.2] };
  if (event.key === "0") showTimes(0, DATA.window_ns);
  if (!(event.key in factors) || !timelineNode.layout) return;
  event.preventDefault();
  const [begin, end] = timelineNode.layout.xaxis.range;
  const [from, to] = factors[event.key];
  Plotly.relayout(timelineNode, { "xaxis.range": [begin + from * (end - begin), begin + to * (end - begin)] });
}

function showTimes(begin, end, shapes) {
  if (!timelineNode || !timelineNode.layout) return;
  const [size] = timeUnit(DATA.window_ns);
  Plotly.relayout(timelineNode, { "xaxis.range": [begin / size, end / size], shapes: shapes || [] });
}

function goTo(time, length = 0) {
  const [size] = timeUnit(DATA.window_ns);
  const around = Math.max(length, DATA.window_ns / 400);
  showTimes(time - around, time + length + around, [{
    type: "rect", xref: "x", yref: "paper", x0: time / size, x1: (time + length) / size, y0: 0, y1: 1,
    line: { color: variable("--accent"), width: 1.5 }, fillcolor: variable("--accent"), opacity: 0.18,
  }]);
  document.getElementById("timeline").scrollIntoView();
  timelineNode.focus({ preventScroll: true });
}

function idleCauses(parent, { causes }) {
  const rows = [...causes].reverse();
  const total = rows.reduce((sum, [, , time]) => sum + time, 0);
  const [size, unit] = timeUnit(Math.max(...rows.map(([, , time]) => time)));
  chart(parent, "Idle time by cause", () => [[{
    type: "bar", orientation: "h",
    x: rows.map(([, , time]) => time / size), y: rows.map(([cause]) => cause.replace(/_/g, " ")),
    marker: { color: rows.map(([cause]) => colourOf(cause)) },
    text: rows.map(([, , time]) => inWords((100 * time) / total, "%")), textposition: "auto",
    insidetextfont: { color: "#ffffff" }, cliponaxis: false,
    customdata: rows.map(([, meaning, time, gaps]) =>
      [meaning, inWords(time, "ns"), `${number(gaps, 0)} gaps`]),
    hovertemplate: "%{customdata[1]}, %{customdata[2]}<br>%{customdata[0]}<extra></extra>",
  }], { height: 60 + 28 * rows.length, xaxis: { title: { text: `idle (${unit})` } }, showlegend: false }], false);
}

// What a device can do by operations a byte, and where kernels stand below it.
function roofline(parent, { bandwidth, rates, points, colours }) {
  const across = points.map(([, , intensity]) => intensity)
    .concat(bandwidth ? rates.map(([, rate]) => rate / bandwidth) : []);
  const [left, right] = [Math.min(...across) / 4, Math.max(...across) * 4];
  const words = (value) => {
    const found = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1, ""]].find(([size]) => value >= size);
    return found ? `${number(value / found[0], 2)} ${found[1]}` : number(value, 2);
  };
  chart(parent, "Roofline", () => {
    const roofs = !bandwidth ? [] : rates.map(([name, rate]) => ({
      type: "scatter", mode: "lines", line: { color: variable("--soft"), width: 2 },
      x: [left, rate / bandwidth, right], y: [left * bandwidth, rate, rate],
      hovertemplate: `${plain(name)} precision: ${words(rate)}FLOP/s; ${words(bandwidth)}B/s<extra></extra>`,
      name: `${plain(name)} precision`, showlegend: true,
    }));
    const bounds = [...new Set(points.map(([, bound]) => bound))];
    return [[...roofs, ...bounds.map((bound) => {
      const of = points.filter(([, each]) => each === bound);
      return {
        type: "scatter", mode: "markers+text", marker: { color: colours[bound], size: 11 }, name: bound,
        x: of.map(([, , intensity]) => intensity), y: of.map(([, , , rate]) => rate),
        text: of.map(([name]) => plain(name.slice(0, 32))), textposition: "top center", cliponaxis: false,
        customdata: of.map(([name, , intensity, rate]) =>
          [plain(wrapped(name)).replaceAll("\n", "<br>"), number(intensity, 2), words(rate)]),
        hovertemplate: "%{customdata[0]}<br>%{customdata[1]} operations a byte, "
          + "%{customdata[2]}FLOP/s<extra></extra>",
      };
    })], {
      height: 440,
      xaxis: { type: "log", title: { text: "operations a byte of device memory" } },
      yaxis: { type: "log", title: { text: "operations a second" }, exponentformat: "SI" },
    }];
  });
}

const PICTURES = { idle_causes: idleCauses, roofline };

async function charts() {
  const packed = document.getElementById("charts");
  const bytes = Uint8Array.from(atob(packed.textContent.trim()), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = element("script");
  script.textContent = await new Response(stream).text();
  packed.remove();
  document.head.append(script);
  for (const draw of DRAWINGS) draw();
  document.documentElement.dataset.ready = "yes";
}

// ---- light and dark, keys

function isDark() {
  const chosen = document.documentElement.dataset.scheme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function setScheme(dark) {
  document.documentElement.dataset.scheme = dark ? "dark" : "light";
  labelScheme();
  if (window.Plotly) for (const draw of DRAWINGS) draw();
}

function labelScheme() {
  document.getElementById("scheme").textContent = isDark() ? "Light" : "Dark";
}

function nearestSearch() {
  const searches = TABLES.map((table) => table.search).filter(Boolean);
  const below = searches.find((each) => each.getBoundingClientRect().top > 40);
  return below || searches[searches.length - 1];
}

function nextSection(step) {
  const all = [...document.querySelectorAll("main > section")];
  const at = all.findIndex((each) => each.getBoundingClientRect().bottom > 80);
  const target = all[Math.min(Math.max(at + step, 0), all.length - 1)];
  if (target) target.scrollIntoView();
}

function keys(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target instanceof HTMLInputElement) {
    if (event.key === "Escape") {
      event.target.value = "";
      event.target.dispatchEvent(new Event("input"));
      event.target.blur();
    }
    return;
  }
  if (event.key === "/") {
    const search = nearestSearch();
    if (search) { event.preventDefault(); search.focus(); search.scrollIntoView({ block: "center" }); }
  } else if (event.key === "t") setScheme(!isDark());
  else if (event.key === "n") nextSection(1);
  else if (event.key === "p") nextSection(-1);
}

head();
findings();
timeline();
sections();
labelScheme();
document.getElementById("scheme").onclick = () => setScheme(!isDark());
document.addEventListener("keydown", keys);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  labelScheme();
  if (window.Plotly) for (const draw of DRAWINGS) draw();
});
// A page is printed in ink on paper.
let printed = null;
addEventListener("beforeprint", () => { printed = isDark(); if (printed) setScheme(false); });
addEventListener("afterprint", () => { if (printed) setScheme(true); });
charts().catch((error) => {
  for (const node of document.querySelectorAll(".chart")) node.remove();
  MAIN.prepend(element("p", { class: "notice" },
    `The charts cannot be drawn by this browser (${error.message}); everything else is here.`));
  document.documentElement.dataset.ready = "no charts";
});
