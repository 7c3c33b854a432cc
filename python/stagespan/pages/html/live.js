"use strict";
// Shows the tables of data.json, and reads it again every second.

const DATA = JSON.parse(document.getElementById("data").textContent);
const SHOWN = new Map();

function show({ page }) {
  document.getElementById("state").textContent = page.state;
  document.getElementById("sentences").replaceChildren(
    ...page.sentences.map((sentence) => element("li", {}, ...withCode(sentence))));
  showProcesses(page.processes);
  const titles = new Set(page.tables.map((table) => table.title));
  for (const [title, shown] of SHOWN) {
    shown.node.hidden = !titles.has(title);
  }
  for (const table of page.tables) {
    table.links = page.links;
    const before = SHOWN.get(table.title);
    if (before && before.update(table)) continue;
    const made = new DataTable(table, null, false);
    if (before) {
      made.follow(before);
      before.node.replaceWith(made.node);
    }
    SHOWN.set(table.title, made);
  }
  // In the order of the data; what is at its place is not moved, so that it keeps the focus.
  const main = document.getElementById("main");
  page.tables.map((table) => SHOWN.get(table.title).node).forEach((node, at, nodes) => {
    const before = at ? nodes[at - 1] : document.getElementById("processes");
    if (before.nextElementSibling !== node) main.insertBefore(node, before.nextElementSibling);
  });
}

// Links to the pages of the processes. They stay if nothing has changed, so that they keep the focus.
function showProcesses(processes) {
  const nav = document.getElementById("processes");
  const now = JSON.stringify(processes);
  if (nav.dataset.shown === now) return;
  nav.dataset.shown = now;
  nav.replaceChildren(...processes.map(([name, href]) => element("a", { href }, name)));
}

async function update() {
  try {
    const answer = await fetch("data.json", { cache: "no-store" });
    if (!answer.ok) throw new Error(answer.statusText);
    show(await answer.json());
  } catch (error) {
    document.getElementById("state").textContent = "The exporter does not answer.";
  }
  setTimeout(update, 1000);
}
update();
