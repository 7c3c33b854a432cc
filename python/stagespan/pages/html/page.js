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

let timelineShown = [0, 0]; // in ns
let timelineMarked = null; // an event that was asked for, in ns

function timeline() {
  if (!DATA.rows.length) return;
  const made = section("timeline", "Timeline");
  const [size, unit] = timeUnit(DATA.window_ns);
  const few = window.innerWidth < 720;
  timelineShown = [0, DATA.window_ns];
  timelineNode = chart(made, DATA.words.timeline, () => {
    const [from, to] = timelineShown;
    const width = timelineNode.clientWidth - (few ? 60 : 140);
    const cells = Math.max(Math.round(width / CELL_PX), 60);
    const tracks = DATA.rows.map((_, row) => [from / size, to / size, row - HEIGHT / 2, row + HEIGHT / 2, ""]);
    const marked = timelineMarked
      ? [{ boxes: [[timelineMarked[0] / size, timelineMarked[1] / size, -0.5, DATA.rows.length - 0.5, ""]],
        colour: variable("--accent"), opacity: 0.3 }] : [];
    return {
      height: 60 + 32 * DATA.rows.length,
      x: { title: `${DATA.words.axis} (${unit})`, range: [from / size, to / size] },
      y: { ...rowsDown(DATA.rows.length), ticks: DATA.rows.map((name, row) => [row, name]) },
      marks: [...marked, { boxes: tracks, colour: variable("--panel") }, ...timelineMarks(from, to, cells, size)],
    };
  }, !few);
  timelineNode.addEventListener("keydown", moveTimeline);
  timelineNode.addEventListener("dblclick", () => showTimes(0, DATA.window_ns));
  zoomByDragging(timelineNode, size);
  const notes = element("p", { class: "note" });
  made.append(notes);
  READY.push(() => {
    notes.before(rowLegend());
    const rowNotes = ROWS.map((row) => row.note).filter(Boolean);
    notes.textContent = [DATA.words.heights, "Drag to zoom, double-click to show everything.",
      MAIN.querySelector("button.at") && "Click a time on this page to show it here.", ...rowNotes]
      .filter(Boolean).join(" ");
  });
}

const READY = [];

function zoomByDragging(node, size) {
  let start = null;
  node.addEventListener("pointerdown", (event) => {
    if (event.button === 0 && event.pointerType === "mouse") start = [event.clientX, node.plot.valueAt(event.clientX)];
  });
  node.addEventListener("pointerup", (event) => {
    if (start === null) return;
    const [from, to] = [start[1], node.plot.valueAt(event.clientX)].sort((one, other) => one - other);
    if (Math.abs(event.clientX - start[0]) > 4) showTimes(from * size, to * size);
    start = null;
  });
}

function moveTimeline(event) {
  const factors = { "+": [0.25, 0.75], "=": [0.25, 0.75], "-": [-0.5, 1.5], ArrowLeft: [-0.2, 0.8],
    ArrowRight: [0.2, 1.2] };
  if (event.key === "0") showTimes(0, DATA.window_ns);
  if (!(event.key in factors)) return;
  event.preventDefault();
  const [begin, end] = timelineShown;
  const [from, to] = factors[event.key];
  showTimes(begin + from * (end - begin), begin + to * (end - begin));
}

function showTimes(begin, end, marked = null) {
  if (!timelineNode || !ROWS) return;
  [timelineShown, timelineMarked] = [[begin, Math.max(end, begin + 1)], marked];
  timelineNode.draw();
}

function goTo(time, length = 0) {
  const around = Math.max(length, DATA.window_ns / 400);
  showTimes(time - around, time + length + around, [time, time + length]);
  document.getElementById("timeline").scrollIntoView();
  timelineNode.focus({ preventScroll: true });
}

function drawAll() {
  if (document.documentElement.dataset.ready) for (const draw of DRAWINGS) draw();
}

async function charts() {
  for (const picture of DATA.pictures) {
    if (picture.packed) Object.assign(picture, JSON.parse(await unpacked(picture.packed)));
  }
  await readRows();
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
  drawAll();
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
addEventListener("resize", () => { makeRoom(); drawAll(); });
makeRoom();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  labelScheme();
  drawAll();
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
