"use strict";
// Tables with search and sorting, and formatted figures. Texts are only inserted with textContent.

const FIRST_ROWS = 15;
const SEARCHED_FROM = 9;
// Matches names of a program, as opposed to words: "idle: the host waited" is words.
const NAME = /[_<(=/]|:(?!\s|$)|^\S{25}/;

function element(name, properties, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties || {})) {
    if (key === "class") made.className = value;
    else if (key.includes("-")) made.setAttribute(key, value);
    else made[key] = value;
  }
  made.append(...children);
  return made;
}

// By the number of digits. They are kept, because creating one takes longer than using it.
const FORMATS = [];

// Rounds like the other outputs.
function number(value, digits) {
  if (!FORMATS[digits]) {
    FORMATS[digits] = new Intl.NumberFormat("en-US", {
      minimumFractionDigits: digits, maximumFractionDigits: digits, roundingMode: "halfEven",
    });
  }
  return FORMATS[digits].format(value);
}

// A number with three significant digits, as by `three_digits` in Python.
function threeDigits(value, mostDecimals = 15) {
  if (!value) return "0";
  const exponent = Number(value.toExponential(2).split("e")[1]);
  return number(value, Math.min(Math.max(2 - exponent, 0), mostDecimals));
}

const LARGER = {
  "ns": [[1e9, "s"], [1e6, "ms"], [1e3, "µs"]],
  "bytes": [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]],
};

// Returns [size, name] of the unit for times up to `most` ns.
function timeUnit(most) {
  if (most >= 1e9) return [1e9, "s"];
  return most >= 1e6 ? [1e6, "ms"] : [1e3, "µs"];
}

// The unit of each column of times, by the longest time of each: the same for all of a table, so that they can be
// compared. Only a column of times far below that unit, which would lose its digits, has the next smaller one.
function columnUnits(longest) {
  const most = Math.max(0, ...longest);
  const base = most < 1e6 ? 0 : most < 1e12 ? 1 : 2;
  const units = [[1e3, "µs"], [1e6, "ms"], [1e9, "s"]];
  return longest.map((each) => units[Math.max(each > 0 && each < units[base][0] / 100 ? base - 1 : base, 0)]);
}

// A time in ns with the digits that people read, as by `duration` in Python.
function rounded(ns) {
  if (ns <= 0) return "0 µs";
  for (const [size, name] of [[1e3, "µs"], [1e6, "ms"]]) {
    if (ns < 1000 * size) return `${number(ns / size, ns < 10 * size ? 1 : 0)} ${name}`;
  }
  if (ns < 120e9) return `${number(ns / 1e9, 1)} s`;
  const minutes = Math.floor(ns / 60e9);
  if (minutes < 120) return `${minutes} min ${Math.floor(ns / 1e9) % 60} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

// A time since the start with three digits after the point: a place that people search for.
function pointInTime(ns) {
  const [size, name] = timeUnit(Math.abs(ns));
  return `${number(ns / size, 3)} ${name}`;
}

function inWords(value, unit) {
  if (value === null) return "unknown";
  if (typeof value === "string") return value;
  if (unit === "%") return `${number(value, Math.abs(value) < 99.95 ? 1 : 0)} %`;
  if (unit === "rounded ns") return rounded(value);
  if (unit === "rate") return number(value, value >= 100 || !value ? 0 : value >= 10 ? 1 : 2);
  for (const [size, name] of LARGER[unit] || []) {
    if (Number((Math.abs(value) / size).toExponential(2)) >= 1) return `${threeDigits(value / size)} ${name}`;
  }
  if (unit === "ns") return `${threeDigits(value / 1e3, 3)} µs`;
  const figure = Number.isInteger(value) ? number(value, 0) : threeDigits(value);
  return `${figure} ${value === 1 ? unit.replace(/s$/, "") : unit}`.trim();
}

// Formats of the columns. Points in time can be much larger than durations, so they have their own unit.
function columnStyles({ columns, rows }) {
  const isTime = ([, unit]) => unit === "ns";
  const isWhen = ([name, unit]) => unit === "ns" && name === "at";
  const longest = columns.map((column, at) => !isTime(column) ? 0
    : rows.reduce((most, row) => (typeof row[at] === "number" ? Math.max(most, Math.abs(row[at])) : most), 0));
  const when = columnUnits(longest.map((each, at) => (isWhen(columns[at]) ? each : 0)));
  const time = columnUnits(longest.map((each, at) => (isWhen(columns[at]) ? 0 : each)));
  return columns.map((column, at) => columnStyle(column[1], rows.map((row) => row[at]),
    (isWhen(column) ? when : time)[at], isWhen(column)));
}

// `when` is whether the column has points in time, which have more digits.
function columnStyle(unit, cells, [size, name], when) {
  const figures = cells.filter((cell) => typeof cell === "number");
  const texts = cells.some((cell) => typeof cell === "string" && cell !== "");
  const figure = !texts && (!["", "state", "words"].includes(unit) || figures.length > 0);
  if (!["", "ns", "%", "bytes", "rounded ns", "state", "words", "rate"].includes(unit)) {
    const plain = (v) => (typeof v === "number" ? inWords(v, "") : inWords(v, unit));
    return { figure, suffix: unit, text: plain };
  }
  if (unit !== "ns" || !figures.length) return { figure, suffix: "", text: (v) => inWords(v, unit) };
  return {
    figure,
    suffix: name,
    text: (v) => (typeof v !== "number" ? inWords(v, unit) : when ? number(v / size, 3) : threeDigits(v / size, 3)),
  };
}

// A text with code in backticks.
function withCode(text) {
  const parts = text.split("`");
  if (parts.length % 2 === 0) return [text];
  return parts.map((part, at) => (at % 2 ? element("code", {}, part) : part));
}

function compare(one, other) {
  if (typeof one === "number" && typeof other === "number") return one - other;
  return String(one).localeCompare(String(other), "en", { numeric: true });
}

class DataTable {
  // `goTo(ns)`, if given, shows a time in the timeline.
  constructor(table, goTo, hideTitle) {
    this.table = table;
    this.goTo = goTo;
    this.wanted = "";
    this.all = false;
    this.by = null;
    this.body = element("tbody");
    this.count = element("span", { class: "soft", "aria-live": "polite" });
    this.more = element("button", { type: "button", onclick: () => { this.all = true; this.fill(); } });
    this.read();
    this.node = this.build(hideTitle);
    this.fill();
  }

  read() {
    this.styles = columnStyles(this.table);
    this.words = this.table.rows.map((row) =>
      row.filter((cell) => typeof cell === "string").join(" ").toLowerCase());
    this.sorted();
  }

  // Shows a later state of the table, if it has the same columns; the search and the order stay.
  update(table) {
    if (JSON.stringify(table.columns) !== JSON.stringify(this.table.columns)) return false;
    this.table = table;
    this.read();
    this.describe();
    this.fill();
    return true;
  }

  // Takes over the search and the order of an earlier state that has other columns.
  follow(earlier) {
    [this.wanted, this.all] = [earlier.wanted, earlier.all];
    this.search.value = this.wanted;
    if (earlier.by) {
      const [before, direction] = earlier.by;
      const name = earlier.table.columns[before][0];
      const at = this.table.columns.findIndex(([each]) => each === name);
      if (at >= 0) {
        this.heads[at].setAttribute("aria-sort", direction);
        this.by = [at, direction];
        this.sorted();
      }
    }
    this.describe();
    this.fill();
  }

  build(hideTitle) {
    const { title, columns } = this.table;
    this.title = element("h3", { hidden: hideTitle });
    this.heads = columns.map((_, at) => element("th", { scope: "col" },
      element("button", { type: "button", onclick: () => this.sort(at) })));
    this.search = element("input", {
      type: "search", placeholder: "Search: rows that contain all words", "aria-label": `Search ${title}`,
      oninput: () => { this.wanted = this.search.value; this.fill(); },
    });
    this.note = element("p", { class: "note" });
    this.describe();
    return element("div", { class: "table" }, this.title,
      element("div", { class: "tools" }, this.search, this.count, this.more),
      element("div", { class: "wide", tabIndex: 0, role: "group", "aria-label": title },
        element("table", {}, element("thead", {}, element("tr", {}, ...this.heads)), this.body)),
      this.note);
  }

  // Writes what depends on the rows: the units in the headings, counts, and whether there is a search.
  describe() {
    const { title, columns, rows, note } = this.table;
    this.title.textContent = title;
    columns.forEach(([name, unit], at) => {
      const { suffix, figure } = this.styles[at];
      const words = [name || (unit === "" ? "what" : unit), suffix && `(${suffix})`];
      this.heads[at].className = figure ? "figure" : "";
      this.heads[at].firstChild.textContent = words.filter(Boolean).join(" ");
    });
    this.search.hidden = rows.length < SEARCHED_FROM && !this.wanted;
    this.note.textContent = note;
    this.note.hidden = !note;
  }

  sort(at) {
    const head = this.heads[at];
    // Figures are sorted from the largest, texts from A.
    const first = this.styles[at].figure ? "descending" : "ascending";
    const before = head.getAttribute("aria-sort");
    const other = first === "descending" ? "ascending" : "descending";
    const direction = before === first ? other : first;
    this.heads.forEach((each) => each.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", direction);
    this.by = [at, direction];
    this.sorted();
    this.fill();
  }

  sorted() {
    this.order = null;
    if (!this.by) return;
    const [at, direction] = this.by;
    const sign = direction === "ascending" ? 1 : -1;
    const rows = this.table.rows;
    this.order = rows.map((_, row) => row).sort((one, other) => {
      const [a, b] = [rows[one][at], rows[other][at]];
      // Unknown values come last in both directions.
      if (a === null || b === null) return (a === null) - (b === null) || one - other;
      return sign * compare(a, b) || one - other;
    });
  }

  fill() {
    const words = this.wanted.toLowerCase().split(/\s+/).filter(Boolean);
    const order = this.order || this.table.rows.map((_, row) => row);
    const found = order.filter((row) => words.every((word) => this.words[row].includes(word)));
    const shown = this.all ? found : found.slice(0, FIRST_ROWS);
    this.body.replaceChildren(...shown.map((row) => this.row(this.table.rows[row])));
    const total = this.table.rows.length;
    const of = words.length ? `${number(found.length, 0)} of ${number(total, 0)} rows`
      : `${number(total, 0)} rows`;
    this.count.textContent = total >= SEARCHED_FROM || words.length ? of : "";
    this.more.hidden = shown.length === found.length;
    this.more.textContent = `Show all ${number(found.length, 0)}`;
  }

  row(cells) {
    return element("tr", {}, ...cells.map((cell, at) => this.cell(cell, at)));
  }

  cell(value, at) {
    const [name, unit] = this.table.columns[at];
    const style = this.styles[at];
    const made = element("td", { class: style.figure ? "figure" : "" });
    if (value === null) {
      made.classList.add("unknown");
      made.textContent = ["", "state", "words", "rounded ns"].includes(unit) ? "-" : "unknown";
    } else if (typeof value === "string") {
      const short = this.table.labels[value] || value;
      const link = at === 0 && this.table.links && this.table.links[value];
      const code = element(NAME.test(value) && unit !== "words" ? "code" : "span", { dir: "auto" }, short);
      if (short.length < 25) made.classList.add("short");
      const state = unit === "state" && DATA.states[value];
      if (state) code.style.color = `var(--${state})`;
      if (unit !== "words" && (short !== value || value.length > 90)) {
        code.title = "Click to show the full name";
        code.onclick = () => {
          const whole = code.classList.toggle("whole");
          code.textContent = whole ? value : short;
        };
      }
      made.append(link ? element("a", { href: link }, code) : code);
    } else if (unit === "ns" && name === "at" && this.goTo) {
      made.append(element("button", {
        type: "button", class: "at", title: "Show in the timeline", onclick: () => this.goTo(value),
      }, style.text(value)));
    } else {
      made.textContent = style.text(value);
      if (unit === "%" && value > 0) {
        made.classList.add("share");
        made.style.setProperty("--part", `${Math.min(value, 100)}%`);
      }
    }
    return made;
  }
}
