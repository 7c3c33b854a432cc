"use strict";
// The timeline: rows of bars, which are computed again for each visible range. Bars that are wide enough are drawn
// unchanged. Narrower ones are summed up in cells of a few pixels, which are filled from below by each kind's share of
// the time. The coloured area is therefore the busy time of the row at any zoom.

const HEIGHT = 0.82; // of a row's height
const CELL_PX = 2.5;
const LEAST_SHARE = 0.02; // half a pixel, so that small parts stay visible

const OTHER_STAGES = "#a9b1bc";

let ROWS = null;

async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

// Returns the rows of a page's data.
async function readRows({ timeline: packed }) {
  const { keys, names, rows } = JSON.parse(await unpacked(packed));
  const read = rows.map((row) => {
    const begin = new Float64Array(row.gaps.length);
    const end = new Float64Array(row.gaps.length);
    let at = 0;
    row.gaps.forEach((gap, bar) => {
      begin[bar] = at + gap;
      end[bar] = begin[bar] + row.lengths[bar];
      at = end[bar];
    });
    const several = new Map(Object.entries(row.several).map(([bar, [count, ...kinds]]) => {
      const parts = [];
      for (let i = 0; i < kinds.length; i += 2) parts.push([kinds[i], kinds[i + 1]]);
      return [Number(bar), { count, parts }];
    }));
    return { ...row, begin, end, several, keys: row.keys, names: row.names.map((i) => names[i] ?? "") };
  });
  read.words = keys;
  return read;
}

// Returns the rectangles of a row in a time range, with at most `cells` cells and as many bars.
function rectangles(row, from, to, cells) {
  const width = (to - from) / cells;
  const found = [];
  const open = new Map();
  const cellOf = (time) => Math.min(Math.max(Math.floor((time - from) / width), 0), cells - 1);
  const cell = (number) => {
    if (!open.has(number)) {
      const low = from + number * width;
      open.set(number, { low, high: low + width, parts: new Map(), count: 0, longest: -1, length: 0 });
    }
    return open.get(number);
  };
  let low = 0;
  let high = row.end.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (row.end[middle] <= from) low = middle + 1;
    else high = middle;
  }
  for (let bar = low; bar < row.end.length && row.begin[bar] < to; bar += 1) {
    const begin = Math.max(row.begin[bar], from);
    const end = Math.min(row.end[bar], to);
    const several = row.several.get(bar);
    const parts = several ? several.parts : [[row.keys[bar], row.end[bar] - row.begin[bar]]];
    const length = row.end[bar] - row.begin[bar];
    if (end - begin >= 2 * width) {
      const shares = parts.map(([key, time]) => [key, time / length]);
      found.push({ begin, end, shares, bar, count: several ? several.count : 1 });
      // The rest of the cells at its ends belongs to the other bars.
      const first = cell(cellOf(begin));
      first.high = Math.min(first.high, begin);
      const last = cell(cellOf(end));
      last.low = Math.max(last.low, end);
      continue;
    }
    for (let number = cellOf(begin); number <= cellOf(end); number += 1) {
      const into = cell(number);
      const inside = Math.min(end, from + (number + 1) * width) - Math.max(begin, from + number * width);
      if (inside <= 0 && length > 0) continue;
      for (const [key, time] of parts) {
        into.parts.set(key, (into.parts.get(key) || 0) + (time * inside) / length);
      }
      if (number === cellOf(begin)) into.count += several ? several.count : 1;
      if (length > into.length) [into.longest, into.length] = [bar, length];
    }
  }
  for (const { low: begin, high: end, parts, count, longest } of open.values()) {
    if (end <= begin || !parts.size) continue;
    const shares = [...parts].map(([key, time]) => [key, Math.min(time / (end - begin), 1)]);
    found.push({ begin, end, shares, bar: longest, count });
  }
  return found;
}

function rectangleText(row, { begin, end, shares, bar, count }) {
  if (count === 1 && shares.length === 1 && end - begin <= row.end[bar] - row.begin[bar]) {
    return `${wrapped(row.names[bar])}\nat ${pointInTime(row.begin[bar])}: `
      + inWords(row.end[bar] - row.begin[bar], "ns");
  }
  const parts = [...shares].sort((one, other) => other[1] - one[1]).slice(0, 4)
    .map(([key, part]) => `${ROWS.words[key][1]} ${inWords(100 * part, "%")}`);
  const many = `${number(Math.max(count, 1), 0)} ${row.what}`;
  return `${many}, the longest: ${wrapped(row.names[bar])}\n${parts.join("\n")}\n`
    + `of the ${inWords(end - begin, "ns")} from ${pointInTime(begin)}`;
}

// The boxes of the visible range, as marks of a chart, one for each colour.
function timelineMarks(from, to, cells, size) {
  const groups = new Map();
  ROWS.forEach((row, at) => {
    for (const shown of rectangles(row, from, to, cells)) {
      const text = rectangleText(row, shown);
      const total = shown.shares.reduce((sum, [, part]) => sum + part, 0);
      const scale = total > 1 ? 1 / total : total > 0 && total < LEAST_SHARE ? LEAST_SHARE / total : 1;
      let bottom = at + HEIGHT / 2;
      for (const [key, part] of shown.shares) {
        const height = HEIGHT * part * scale;
        if (height <= 0) continue;
        if (!groups.has(key)) groups.set(key, []);
        groups.get(key).push([shown.begin / size, shown.end / size, bottom - height, bottom, text]);
        bottom -= height;
      }
    }
  });
  const shades = rowColours();
  return [...groups].map(([key, boxes]) => ({ boxes, colour: colourOf(shades.get(key)[0]) }));
}

// The legend: colour and meaning of each kind in the rows; of many stages, the longest.
function rowColours() {
  const all = new Set(ROWS.flatMap((row) => [...row.keys, ...[...row.several.values()]
    .flatMap(({ parts }) => parts.map(([key]) => key))]));
  let stages = 0;
  return new Map([...all].sort((one, other) => one - other).map((key) => {
    const [name, words] = ROWS.words[key];
    if (!name.startsWith("stage ")) return [key, [name, words]];
    stages += 1;
    if (stages <= STAGE_COLOURS.length) return [key, [STAGE_COLOURS[stages - 1], words]];
    return [key, [OTHER_STAGES, stages === STAGE_COLOURS.length + 1 ? "other stages" : null]];
  }));
}

function rowLegend() {
  return element("ul", { class: "legend" }, ...[...rowColours().values()]
    .filter(([, words]) => words !== null)
    .map(([name, words]) => bullet(variable(`--${name}`) ? `var(--${name})` : colourOf(name), words)));
}
