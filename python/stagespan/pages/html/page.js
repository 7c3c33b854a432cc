"use strict";
// Builds the page from its data block: verdict, findings, timeline, idle causes, then every analysis.

let DATA = JSON.parse(document.getElementById("data").textContent);
const MAIN = document.getElementById("main");
const TABLES = [];
let earlierTables = new Map(); // of a live page, by their sections and titles
let timelineNode = null;

// Returns what the content of a section is appended to. Charts need a width, so those of a folded section are drawn
// when it opens.
function section(id, title, isOpen = true) {
  const made = element("section", { id, "aria-labelledby": `${id}-title` });
  const heading = element("h2", { id: `${id}-title` }, title);
  let body = made;
  if (isOpen) made.append(heading);
  else {
    body = element("details", { ontoggle: () => { if (body.open) drawAll(body); } }, element("summary", {}, heading));
    made.append(body);
  }
  MAIN.append(made);
  document.getElementById("contents").append(element("a", { href: `#${id}`, onclick: () => openSection(id) }, title));
  return body;
}

function openSection(id) {
  const folded = document.querySelector(`#${CSS.escape(id)} > details`);
  if (folded) folded.open = true;
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
  for (const line of DATA.lines) made.append(element("p", {}, ...withCode(line)));
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
    element("li", { class: finding.severity }, element("details", {},
      element("summary", {}, element("span", { class: "severity" }, finding.severity), ...withCode(finding.sentence)),
      ...(finding.rest ? [element("p", {}, ...withCode(finding.rest))] : []),
      element("ul", { class: "evidence" }, ...finding.evidence.map(evidence)))))));
}

function evidence([event, time, figure, unit]) {
  const made = element("li", {}, element("code", { dir: "auto" }, event));
  if (time !== null) {
    const words = `at ${pointInTime(time)}`;
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
  for (const { name, first: isFirst, open, heading, unknown: reason, tables } of DATA.sections) {
    if (isFirst !== first) continue;
    if (reason !== null && !tables.length) unknown.push([heading, reason]);
    if (!tables.length) continue;
    const drawn = DATA.pictures.filter((picture) => picture.analysis === name);
    const made = section(`analysis-${name}`, heading, open);
    for (const picture of drawn) PICTURES[picture.kind](made, picture);
    for (const table of tables) {
      const key = `${name} ${table.title.replace(/\d[\d,]*/g, "N")}`; // counts in titles change
      const earlier = earlierTables.get(key);
      let shown = earlier;
      if (!earlier || !earlier.update(table)) {
        shown = new DataTable(table, DATA.rows.length ? goTo : null, tables.length === 1 && table.title === heading);
        if (earlier) shown.follow(earlier);
      }
      shown.key = key;
      TABLES.push(shown);
      made.append(shown.node);
    }
  }
  if (!unknown.length) return;
  section("unknown", "Not in this trace", !DATA.folded).append(element("ul", {}, ...unknown.map(([heading, reason]) =>
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
  freeze(true);
  [timelineShown, timelineMarked] = [[begin, Math.max(end, begin + 1)], marked];
  timelineNode.draw();
}

function goTo(time, length = 0) {
  const around = Math.max(length, DATA.window_ns / 400);
  showTimes(time - around, time + length + around, [time, time + length]);
  document.getElementById("timeline").scrollIntoView();
  timelineNode.focus({ preventScroll: true });
}

function drawAll(inside = document) {
  if (!document.documentElement.dataset.ready) return;
  for (const each of inside.querySelectorAll(".chart")) each.draw();
}

// Reads what is compressed in the data.
async function read(data) {
  for (const picture of data.pictures) {
    if (picture.packed) Object.assign(picture, JSON.parse(await unpacked(picture.packed)));
  }
  return readRows(data);
}

function drawCharts(rows) {
  ROWS = rows;
  for (const draw of DRAWINGS) draw();
  for (const ready of READY) ready();
  document.documentElement.dataset.ready = "yes";
}

// ---- a live page, which is read again every second

const EVERY_MS = 1000;
let isFrozen = false;

function freeze(wanted) {
  isFrozen = wanted;
  document.getElementById("freeze").textContent = wanted ? "Go on" : "Freeze";
}

// Nothing moves below the pointer, or while something is searched or selected.
const isInUse = () => isFrozen || !getSelection().isCollapsed || MAIN.querySelector(".chart:hover, input:focus") !== null;

async function update() {
  try {
    if (!isInUse()) {
      const answer = await fetch("data.json", { cache: "no-store" });
      if (!answer.ok) throw new Error(answer.statusText);
      const data = await answer.json();
      const rows = await read(data);
      if (!isInUse()) replace(data, rows);
    }
  } catch (error) {
    if (!document.getElementById("silent")) {
      MAIN.prepend(element("p", { class: "notice", id: "silent" },
        "There is no answer any more: this is the last state that was shown."));
    }
  }
  setTimeout(update, EVERY_MS);
}

// The searches and orders of tables, folded sections and the place on the page stay.
function replace(data, rows) {
  const focused = document.activeElement;
  const top = scrollY;
  const opened = [...MAIN.querySelectorAll("section > details[open]")].map((each) => each.parentNode.id);
  earlierTables = new Map(TABLES.map((table) => [table.key, table]));
  for (const list of [TABLES, DRAWINGS, READY]) list.length = 0;
  DATA = { ...data, states: DATA.states, live: DATA.live };
  MAIN.replaceChildren();
  document.getElementById("contents").replaceChildren();
  build();
  opened.forEach(openSection);
  drawCharts(rows);
  scrollTo(0, top);
  if (focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true });
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
  const searches = TABLES.map((table) => table.search).filter((search) => !search.hidden);
  const place = (each) => each.closest("details:not([open])") || each;
  const below = searches.find((each) => place(each).getBoundingClientRect().top > 40);
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
    if (search) {
      event.preventDefault();
      openSection(search.closest("section").id);
      search.focus();
      search.scrollIntoView({ block: "center" });
    }
  } else if (event.key === "t") setScheme(!isDark());
  else if (event.key === "f" && DATA.live) freeze(!isFrozen);
  else if (event.key === "n") nextSection(1);
  else if (event.key === "p") nextSection(-1);
}

function build() {
  head();
  findings();
  sections(true);
  timeline();
  sections(false);
}

build();
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
// Printed pages use the light colours, and nothing is folded on them.
let printed = null;
let folded = [];
addEventListener("beforeprint", () => {
  folded = [...MAIN.querySelectorAll("details:not([open])")];
  for (const each of folded) each.open = true;
  printed = isDark();
  if (printed) setScheme(false);
  else drawAll();
});
addEventListener("afterprint", () => {
  for (const each of folded) each.open = false;
  if (printed) setScheme(true);
});
if (DATA.live) {
  const button = document.getElementById("freeze");
  button.hidden = false;
  button.onclick = () => freeze(!isFrozen);
  setTimeout(update, EVERY_MS);
}
read(DATA).then(drawCharts).catch((error) => {
  for (const node of document.querySelectorAll(".chart")) node.remove();
  MAIN.prepend(element("p", { class: "notice" },
    `This browser cannot draw the charts (${error.message}); everything else is shown.`));
  document.documentElement.dataset.ready = "no charts";
});
