"use strict";
// Builds the page from its data block: verdict, findings, timeline, idle causes, then every analysis.

const DATA = JSON.parse(document.getElementById("data").textContent);
const MAIN = document.getElementById("main");
const TABLES = [];
let timelineNode = null;

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
  document.title = `${DATA.title}: ${DATA.verdict ? DATA.verdict.word : DATA.words.page.toLowerCase()}`;
  document.getElementById("title").textContent = DATA.title;
  const notes = DATA.notes.slice(DATA.incomplete ? 1 : 0);
  document.getElementById("made").textContent =
    [`${DATA.title}: ${DATA.summary}.`, ...notes, `Made by ${DATA.made_by}.`].join(" ");
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
  if (DATA.bar) made.append(timeBar());
  made.append(element("p", { class: "note path" }, `${DATA.title}: ${DATA.summary}.`));
}

function timeBar() {
  const { name: whose, count, parts } = DATA.bar;
  const span = parts.reduce((sum, [, time]) => sum + time, 0);
  const label = `The ${whose.toLowerCase()}'s time`;
  const bar = element("div", { class: "device", role: "img", "aria-label": label });
  const legend = element("ul", { class: "legend" });
  for (const [name, time, key] of parts) {
    const part = element("i", { title: name });
    part.style.background = `var(--${key})`;
    part.style.flexGrow = time / span;
    bar.append(part);
    legend.append(bullet(`var(--${key})`,
      `${name} ${inWords((100 * time) / span, "%")} (${inWords(time, "ns")})`));
  }
  const made = element("div", {}, bar, legend);
  const notes = [count > 1 && `Sums over ${count} ${whose.toLowerCase()}s.`,
    DATA.compared && "This, the timeline and everything below it are about the trace after the change."];
  if (notes.some(Boolean)) made.append(element("p", { class: "note" }, notes.filter(Boolean).join(" ")));
  return made;
}

function findings() {
  if (!DATA.findings.length && !DATA.words.no_findings) return;
  const made = section("findings", "Findings");
  if (!DATA.findings.length) {
    made.append(element("p", {}, DATA.words.no_findings));
    return;
  }
  made.append(element("ul", { class: "findings" }, ...DATA.findings.map((finding) =>
    element("li", { class: finding.severity },
      element("p", {}, element("span", { class: "severity" }, finding.severity), ...withCode(finding.sentence)),
      element("ul", { class: "evidence" }, ...finding.evidence.map(evidence))))));
}

function evidence([event, time, figure, unit]) {
  const made = element("li", {}, element("code", { dir: "auto" }, event));
  if (time !== null) {
    const words = `at ${inWords(time, "ns")}`;
    const length = unit === "ns" && typeof figure === "number" ? figure : 0;
    made.append(" ", DATA.rows.length
      ? element("button", {
        type: "button", class: "at", title: "Show in the timeline", onclick: () => goTo(time, length),
      }, words)
      : words);
  }
  if (figure !== null) made.append(`: ${inWords(figure, unit)}`);
  return made;
}

// Results with a page of their own, such as the comparison of two traces, come before the others.
function sections(first) {
  const unknown = [];
  for (const { name, first: isFirst, heading, unknown: reason, tables } of DATA.sections) {
    if (isFirst !== first) continue;
    if (reason !== null && !tables.length) unknown.push([heading, reason]);
    if (!tables.length) continue;
    const drawn = DATA.pictures.filter((picture) => picture.analysis === name);
    const made = section(`analysis-${name}`, heading);
    for (const picture of drawn) PICTURES[picture.kind](made, picture);
    for (const table of tables) {
      const shown = new DataTable(table, DATA.rows.length ? goTo : null,
        tables.length === 1 && table.title === heading);
      TABLES.push(shown);
      made.append(shown.node);
    }
  }
  if (!unknown.length) return;
  section("unknown", "Not in this trace", element("ul", {}, ...unknown.map(([heading, reason]) =>
    element("li", {}, element("strong", {}, `${heading}: `), reason))));
}

// ---- timeline

function timeline() {
  if (!DATA.rows.length) return;
  const made = section("timeline", "Timeline");
  const [size, unit] = timeUnit(DATA.window_ns);
  const names = DATA.rows.map(plain);
  const few = window.innerWidth < 720;
  timelineNode = chart(made, DATA.words.timeline, () => {
    const known = timelineNode && timelineNode.layout;
    const [begin, end] = known ? timelineNode.layout.xaxis.range : [0, DATA.window_ns / size];
    const cells = Math.max(Math.round((timelineNode.clientWidth - (few ? 60 : 140)) / CELL_PX), 60);
    const tracks = names.map((_, row) => ({
      type: "rect", xref: "paper", x0: 0, x1: 1, y0: row - HEIGHT / 2, y1: row + HEIGHT / 2, layer: "below",
      line: { width: 0 }, fillcolor: variable("--panel"),
    }));
    return [timelineTraces(begin * size, end * size, cells, size), {
      barmode: "overlay", hovermode: "closest", dragmode: few ? "pan" : "zoom",
      height: 80 + 32 * names.length, margin: { l: 8, r: 12, t: 30, b: 34 },
      xaxis: { title: { text: `${DATA.words.axis} (${unit})` }, zeroline: false,
        range: [begin, end] },
      yaxis: { tickvals: names.map((_, row) => row), ticktext: names, range: [names.length - 0.45, -0.55],
        fixedrange: true, showgrid: false, zeroline: false, tickfont: { size: few ? 9 : 12 } },
      shapes: [...tracks, ...timelineMarks],
    }];
  }, !few);
  timelineNode.addEventListener("keydown", moveTimeline);
  const notes = element("p", { class: "note" });
  made.append(notes);
  READY.push(() => {
    timelineNode.on("plotly_relayout", (change) => {
      if (Object.keys(change).some((key) => key.startsWith("xaxis."))) drawTimeline();
    });
    notes.before(rowLegend());
    const rowNotes = ROWS.map((row) => row.note).filter(Boolean);
    notes.textContent = [DATA.words.heights, "Drag to zoom, double-click to show everything.",
      MAIN.querySelector("button.at") && "Click a time on this page to show it here.", ...rowNotes]
      .filter(Boolean).join(" ");
  });
}

let timelineMarks = [];
const READY = [];

function drawTimeline() {
  if (timelineNode && timelineNode.draw) timelineNode.draw();
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

function showTimes(begin, end, marks) {
  if (!timelineNode || !timelineNode.layout) return;
  const [size] = timeUnit(DATA.window_ns);
  timelineMarks = marks || [];
  Plotly.relayout(timelineNode, { "xaxis.range": [begin / size, end / size] });
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

async function charts() {
  const packed = document.getElementById("charts");
  const script = element("script");
  script.textContent = await unpacked(packed.textContent.trim());
  await readRows();
  packed.remove();
  document.head.append(script);
  for (const draw of DRAWINGS) draw();
  for (const ready of READY) ready();
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
sections(true);
timeline();
sections(false);
labelScheme();
document.getElementById("scheme").onclick = () => setScheme(!isDark());
// A section begins below the header, which has several lines if there are many sections.
function makeRoom() {
  const header = document.querySelector("header");
  const covers = getComputedStyle(header).position === "sticky";
  document.documentElement.style.scrollPaddingTop = covers ? `${header.offsetHeight + 12}px` : "";
}

document.addEventListener("keydown", keys);
addEventListener("resize", makeRoom);
makeRoom();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  labelScheme();
  if (window.Plotly) for (const draw of DRAWINGS) draw();
});
// Printed pages use the light colours.
let printed = null;
addEventListener("beforeprint", () => { printed = isDark(); if (printed) setScheme(false); });
addEventListener("afterprint", () => { if (printed) setScheme(true); });
charts().catch((error) => {
  for (const node of document.querySelectorAll(".chart")) node.remove();
  MAIN.prepend(element("p", { class: "notice" },
    `This browser cannot draw the charts (${error.message}); everything else is shown.`));
  document.documentElement.dataset.ready = "no charts";
});
