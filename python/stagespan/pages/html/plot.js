"use strict";
// Draws a chart as SVG: boxes, lines, points and texts on two axes, with a tip below the pointer.
//
// A chart is { height, x, y, marks, legend }. An axis is { title, range, log, ticks, grid }: `range` is [first, last] in
// its own numbers, `ticks` is a list of [value, text] or undefined for round numbers. A mark is one of
//   { boxes: [[x0, x1, y0, y1, tip], ...], colour, opacity }
//   { line: [[x, y, tip], ...], colour, width, isStepped, isFilled, label }
//   { points: [[x, y, radius, tip], ...], colour }
//   { texts: [[x0, x1, y0, y1, text], ...] }  shown where a text fits into its box
// All texts are written as text, so that names of a trace are never markup.

const SVG = "http://www.w3.org/2000/svg";
const LETTER_PX = 6.4; // the mean width of a letter at 12 px
const TICK_PX = 90;
const NEAR_PX = 14;

function drawn(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

// Round numbers in a range, about `most` of them; in a logarithmic range, powers of ten or their 1, 2 and 5.
function roundTicks([first, last], most, isLog) {
  const ticks = [];
  if (isLog) {
    const steps = last / first < 1000 ? [1, 2, 5] : [1];
    for (let power = Math.floor(Math.log10(first)); power <= Math.ceil(Math.log10(last)); power += 1) {
      for (const step of steps) ticks.push(step * 10 ** power);
    }
  } else {
    const raw = (last - first) / Math.max(most, 1);
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = power * ([1, 2, 5].find((each) => each * power >= raw) || 10);
    for (let at = Math.ceil(first / step); at * step <= last; at += 1) ticks.push(at * step);
  }
  return ticks.filter((each) => each >= first && each <= last)
    .map((each) => [each, Number(each.toPrecision(6)).toLocaleString("en-US", { maximumSignificantDigits: 6 })]);
}

class Plot {
  constructor(node) {
    this.node = node;
    this.tip = element("div", { class: "tip", hidden: true });
    node.addEventListener("pointermove", (event) => this.showTip(event));
    node.addEventListener("pointerleave", () => { this.tip.hidden = true; });
  }

  draw(chart) {
    this.chart = chart;
    const { height, x, y, marks, legend } = chart;
    const ticksOf = (axis, most) => axis.ticks || roundTicks(axis.range, most, axis.log);
    const rows = ticksOf(y, height / 40);
    const lines = rows.map(([, text]) => text.split("\n"));
    const longest = Math.max(0, ...lines.flat().map((text) => text.length));
    const width = Math.max(this.node.clientWidth, 200);
    const left = Math.min(longest * LETTER_PX + 10, 0.45 * width);
    this.area = { left, top: 8, right: width - 12, bottom: height - (x.title ? 42 : x.ticks && !x.ticks.length ? 4 : 26) };
    const { right, top, bottom } = this.area;
    const picture = drawn("svg", { width, height, "aria-hidden": "true" });
    const style = { stroke: variable("--line"), "stroke-width": 1 };
    const label = { fill: variable("--text"), "font-size": 12 };
    for (const [value, text] of ticksOf(x, (right - left) / TICK_PX)) {
      const at = this.xOf(value);
      if (x.grid !== false) picture.append(drawn("line", { x1: at, x2: at, y1: top, y2: bottom, ...style }));
      picture.append(drawn("text", { x: at, y: bottom + 16, "text-anchor": "middle", ...label }, text));
    }
    rows.forEach(([value], row) => {
      const at = this.yOf(value);
      if (y.grid !== false) picture.append(drawn("line", { x1: left, x2: right, y1: at, y2: at, ...style }));
      lines[row].forEach((text, line) => {
        const down = at + 4 + 13 * (line - (lines[row].length - 1) / 2);
        const most = Math.floor((left - 8) / LETTER_PX);
        const short = text.length > most ? `${text.slice(0, most - 1)}…` : text;
        picture.append(drawn("text", { x: left - 6, y: down, "text-anchor": "end", ...label }, short));
      });
    });
    if (x.title) {
      const soft = { ...label, fill: variable("--soft"), "text-anchor": "middle" };
      picture.append(drawn("text", { x: (left + right) / 2, y: height - 6, ...soft }, x.title));
    }
    const inside = drawn("svg", { x: left, y: top, width: right - left, height: bottom - top,
      viewBox: `${left} ${top} ${right - left} ${bottom - top}` });
    for (const mark of marks) this.add(mark, inside);
    picture.append(inside);
    const unit = y.title ? [element("p", { class: "unit" }, y.title)] : [];
    const names = legend && legend.length
      ? [element("ul", { class: "legend" }, ...legend.map(([colour, text]) => bullet(colour, text)))] : [];
    this.node.replaceChildren(...names, ...unit, picture, this.tip);
    this.picture = picture;
  }

  xOf(value) { return this.scaled(value, this.chart.x, this.area.left, this.area.right); }

  yOf(value) { return this.scaled(value, this.chart.y, this.area.bottom, this.area.top); }

  scaled(value, { range: [first, last], log }, low, high) {
    const of = log ? Math.log10 : (each) => each;
    return low + ((of(value) - of(first)) / (of(last) - of(first) || 1)) * (high - low);
  }

  // The value of the x axis, which must be linear, at a place on the screen.
  valueAt(clientX) {
    const { left, right } = this.area;
    const [first, last] = this.chart.x.range;
    const at = clientX - this.picture.getBoundingClientRect().left;
    return first + ((Math.min(Math.max(at, left), right) - left) / (right - left)) * (last - first);
  }

  add(mark, parent) {
    const { colour } = mark;
    if (mark.boxes) {
      const path = mark.boxes.map(([x0, x1, y0, y1]) => {
        const [from, to] = [this.xOf(x0), this.xOf(x1)];
        const [up, down] = [this.yOf(y0), this.yOf(y1)].sort((one, other) => one - other);
        return `M${from.toFixed(2)} ${up.toFixed(2)}H${to.toFixed(2)}V${down.toFixed(2)}H${from.toFixed(2)}z`;
      }).join("");
      parent.append(drawn("path", { d: path, fill: colour, "fill-opacity": mark.opacity || 1, class: "boxes" }));
    } else if (mark.line) {
      const places = mark.line.map(([x, y]) => [this.xOf(x), this.yOf(y)]);
      const path = places.map(([x, y], at) => (!at ? `M${x} ${y}` : mark.isStepped ? `H${x}V${y}` : `L${x} ${y}`)).join("");
      if (mark.isFilled) {
        const floor = this.yOf(this.chart.y.range[0]);
        parent.append(drawn("path", { d: `${path}V${floor}H${places[0][0]}z`, fill: colour, "fill-opacity": 0.25 }));
      }
      parent.append(drawn("path", { d: path, fill: "none", stroke: colour, "stroke-width": mark.width || 1.5 }));
      if (mark.label) {
        const [x, y] = places.at(-1);
        const style = { fill: variable("--text"), "font-size": 11, "text-anchor": "end" };
        parent.append(drawn("text", { x: x - 4, y: y - 4, ...style }, mark.label));
      }
    } else if (mark.points) {
      for (const [x, y, r] of mark.points) {
        parent.append(drawn("circle", { cx: this.xOf(x), cy: this.yOf(y), r, fill: colour, "fill-opacity": 0.8,
          stroke: variable("--panel") }));
      }
    } else {
      for (const [x0, x1, y0, y1, text] of mark.texts) {
        const most = Math.floor((this.xOf(x1) - this.xOf(x0) - 6) / LETTER_PX);
        if (most < 4) continue;
        const short = text.length > most ? `${text.slice(0, most - 1)}…` : text;
        const style = { fill: mark.colour || "#14171b", "font-size": 11 };
        parent.append(drawn("text", { x: this.xOf(x0) + 4, y: (this.yOf(y0) + this.yOf(y1)) / 2 + 4, ...style }, short));
      }
    }
  }

  // The mark and its element at a place of the picture; the last one drawn lies on top.
  found(x, y) {
    let best = null;
    let least = NEAR_PX;
    for (const mark of this.chart.marks) {
      for (const each of mark.boxes || []) {
        const [low, high] = [this.yOf(each[2]), this.yOf(each[3])].sort((one, other) => one - other);
        if (x >= this.xOf(each[0]) && x <= Math.max(this.xOf(each[1]), this.xOf(each[0]) + 1) && y >= low && y <= high) {
          [best, least] = [each, 0];
        }
      }
      for (const each of mark.points || mark.line || []) {
        const across = Math.abs(this.xOf(each[0]) - x);
        const far = mark.points ? Math.hypot(across, this.yOf(each[1]) - y) : across + 0.2 * Math.abs(this.yOf(each[1]) - y);
        if (far < least) [best, least] = [each, far];
      }
    }
    return best;
  }

  showTip(event) {
    if (!this.picture) return;
    const frame = this.picture.getBoundingClientRect();
    const [x, y] = [event.clientX - frame.left, event.clientY - frame.top];
    const best = this.found(x, y);
    const text = best && best.at(-1);
    this.tip.hidden = typeof text !== "string" || !text;
    if (this.tip.hidden) return;
    this.tip.textContent = text;
    const around = this.node.getBoundingClientRect();
    const half = around.width / 2;
    this.tip.style.left = event.clientX - around.left < half ? `${event.clientX - around.left + 12}px` : "";
    this.tip.style.right = event.clientX - around.left < half ? "" : `${around.right - event.clientX + 12}px`;
    this.tip.style.top = `${event.clientY - around.top + 14}px`;
  }
}
