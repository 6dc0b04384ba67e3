"use strict";
// Sorts and filters tables, draws the interactive charts and keeps their selections in step.
// Without it tables stand as written, and in place of a chart the text that says what it shows.

// The order of a click on a heading after another.
const NEXT = { none: "ascending", ascending: "descending", descending: "none" };

// What a cell sorts by: its number, else the first in its text, null without one; in a column of
// words the text.
function sortKey(row, column, isText) {
  const cell = row.cells[column];
  if (cell?.dataset.value) return Number(cell.dataset.value);
  const text = cell?.textContent.trim() ?? "";
  if (isText) return text === "–" ? null : text.toLowerCase();
  const [number] = text.replaceAll(",", "").match(/[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?/i) ?? [];
  if (number === undefined) return null;
  return Number(number) - (text.startsWith("<") ? 1e-12 : 0);
}

function compareKeys(a, b) {
  if (typeof a === "string") return a.localeCompare(b, undefined, { numeric: true });
  return a - b;
}

// Sorts all rows across the groups of a table; `none` brings back the groups as they were.
function sortRows(table, rows, column, order) {
  for (const row of rows) row.home.append(row);
  if (order === "none") return;
  const isText = table.tHead.rows[0].cells[column].classList.contains("word-column");
  const keyed = rows.map((row) => [sortKey(row, column, isText), row]);
  const known = keyed.filter(([key]) => key !== null);
  const unknown = keyed.filter(([key]) => key === null);
  known.sort(([a], [b]) => compareKeys(a, b) * (order === "ascending" ? 1 : -1));
  for (const [, row] of [...known, ...unknown]) table.tBodies[0].append(row);
}

function makeSortable(table, rows) {
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.title = "Sort by this column";
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      const order = NEXT[heading.getAttribute("aria-sort") ?? "none"];
      for (const each of headings) each.removeAttribute("aria-sort");
      if (order !== "none") heading.setAttribute("aria-sort", order);
      sortRows(table, rows, column, order);
    });
  });
}

function makeFilterable(table, rows) {
  const field = document.createElement("input");
  field.type = "search";
  field.placeholder = "Filter rows";
  field.setAttribute("aria-label", "Filter the rows of this table");
  field.addEventListener("input", () => {
    const wanted = field.value.toLowerCase();
    for (const row of rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
  });
  (table.closest(".scroll") ?? table).before(field);
}

for (const table of document.querySelectorAll("table")) {
  const rows = [...table.tBodies].flatMap((body) => [...body.rows]);
  for (const row of rows) row.home = row.parentNode;
  if (!table.tHead || rows.length < 2) continue;
  makeSortable(table, rows);
  if (rows.length > 3) makeFilterable(table, rows);
}

// Shows the settings that two trials differ in; the first and the last are chosen at first.
async function compareSettings(section) {
  const settings = JSON.parse(await unpacked(section.querySelector("script")));
  const trials = Object.keys(settings);
  const headings = [...section.querySelectorAll("th")].slice(1);
  const body = section.querySelector("tbody");
  const choices = [trials[0], trials.at(-1)].map((chosen) => {
    const choice = document.createElement("select");
    choice.setAttribute("aria-label", "A trial");
    choice.append(...trials.map((name) => new Option(name, name, false, name === chosen)));
    choice.addEventListener("change", show);
    section.querySelector(".choice").append(choice);
    return choice;
  });
  function show() {
    const sides = choices.map((choice) => settings[choice.value]);
    headings.forEach((heading, side) => (heading.textContent = choices[side].value));
    body.replaceChildren();
    for (const name of Object.keys(sides[0])) {
      const texts = sides.map((side) => JSON.stringify(side[name]));
      if (texts[0] === texts[1]) continue;
      const row = body.insertRow();
      for (const text of [name, ...texts]) {
        const cell = row.insertCell();
        cell.className = "word-column";
        cell.textContent = text;
      }
    }
  }
  show();
  section.hidden = false;
}

const settings = document.querySelector("#settings");
if (settings && window.DecompressionStream) compareSettings(settings);

// Printing shows everything, and leaves the page as it was.
addEventListener("beforeprint", () => {
  for (const each of document.querySelectorAll("details:not([open])")) {
    each.open = true;
    each.openedToPrint = true;
  }
});
addEventListener("afterprint", () => {
  for (const each of document.querySelectorAll("details[open]")) {
    if (each.openedToPrint) each.open = each.openedToPrint = false;
  }
});

// On a narrow window: pixels beside a panel, for its axis, and the axis of a panel of named rows.
const ROOM = 60;
const INSIDE = { orient: "left", labelAlign: "left", labelPadding: -4, labelOffset: -12, labelLimit: 330,
  ticks: false, domain: false };
const LOG = { type: "log", nice: false };

// The variants that charts show, all of them if empty, and the charts drawn so far.
const STORE = "variants_store";
let shown = [];
const views = [];

function showVariants(view) {
  const fields = [{ type: "E", field: "variant" }];
  view.data(STORE, shown.map((name) => ({ fields, values: [name] }))).runAsync();
}

// Takes a selection made in one chart, or by the boxes above all, to every other one.
function select(names, source) {
  for (const box of boxes()) box.checked = !names.length || names.includes(box.value);
  if (names.length === shown.length && names.every((name) => shown.includes(name))) return;
  shown = names;
  for (const view of views) if (view !== source) showVariants(view);
}

function boxes() {
  return [...document.querySelectorAll("#variants input")];
}

for (const box of boxes()) {
  box.addEventListener("change", () => {
    const checked = boxes().filter((each) => each.checked).map((each) => each.value);
    select(checked.length === boxes().length ? [] : checked, null);
  });
}

// The text of a script that holds it compressed, in base64.
async function unpacked(script) {
  const bytes = Uint8Array.from(atob(script.textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

// Panels below each other, none wider than the window, the names of rows above their marks.
function narrowed(spec, width) {
  if (spec.columns) spec.columns = 1;
  if (typeof spec.width === "number") spec.width = Math.min(spec.width, width - ROOM);
  if (spec.hconcat) {
    spec.vconcat = spec.hconcat;
    delete spec.hconcat;
  }
  const y = spec.encoding?.y;
  if (y?.type === "nominal") {
    y.axis = { ...y.axis, ...INSIDE };
    if (y.axis.labelExpr) y.axis.labelExpr = `join(${y.axis.labelExpr}, ", ")`;
  }
  for (const key of ["layer", "vconcat", "concat"]) {
    for (const part of spec[key] ?? []) narrowed(part, width);
  }
  return spec;
}

// Gives the axes of a figure's panels, `x` or `y`, logarithmic scales. Step 0 stays where it is.
function logarithmic(part, axis) {
  const channel = part.encoding?.[axis];
  if (channel?.type === "quantitative") {
    channel.scale = axis === "x" ? { type: "symlog" } : LOG;
    delete channel.axis?.values;
  }
  for (const inner of [...(part.concat ?? []), ...(part.layer ?? [])]) logarithmic(inner, axis);
}

// Boxes above a figure of curves that draw it anew on logarithmic axes.
function offerAxes(figure) {
  const bar = document.createElement("p");
  bar.className = "axes";
  for (const axis of ["x", "y"]) {
    const label = document.createElement("label");
    const box = document.createElement("input");
    box.type = "checkbox";
    box.value = axis;
    label.append(box, ` log ${axis}`);
    bar.append(label, " ");
    box.addEventListener("change", () => {
      views.splice(views.indexOf(figure.view), 1);
      figure.view.finalize();
      figure.querySelector(".live").remove();
      figure.drawing = drawn(figure);
    });
  }
  figure.querySelector(".chart").before(bar);
}

function draw(figure) {
  return (figure.drawing ??= drawn(figure));
}

async function drawn(figure) {
  await library;
  let spec = JSON.parse(await unpacked(figure.querySelector("script")));
  const box = figure.querySelector(".chart");
  if (spec.usermeta?.axes && !figure.querySelector(".axes")) offerAxes(figure);
  for (const { value } of figure.querySelectorAll(".axes :checked")) logarithmic(spec, value);
  if (innerWidth < 640) {
    spec = narrowed(spec, box.clientWidth);
    spec.config.legend.columns = 2;
    Object.assign(spec.config.title, { fontSize: 12, limit: box.clientWidth - ROOM });
  }
  const live = document.createElement("div");
  live.className = "live";
  box.append(live);
  const { view, vgSpec } = await vegaEmbed(live, spec, {
    mode: "vega-lite",
    renderer: "svg",
    actions: { export: true, source: false, compiled: false, editor: false },
    tooltip: { theme: matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light" },
  });
  figure.classList.add("drawn");
  figure.view = view;
  if (!vgSpec.data?.some((each) => each.name === STORE)) return;
  views.push(view);
  if (shown.length) showVariants(view);
  view.addSignalListener("variants", () => {
    select([...new Set(view.data(STORE).map((tuple) => tuple.values[0]))], view);
  });
}

// Draws charts one after the other, with time for a reader's clicks in between: a page that is
// printed has all of them.
async function drawRest(figures) {
  for (const figure of figures) {
    await new Promise((done) => setTimeout(done, 100));
    await draw(figure);
  }
}

async function addLibrary(packed) {
  const script = document.createElement("script");
  script.textContent = await unpacked(packed);
  document.head.append(script);
}

// A chart that comes near the window is drawn at once, the others later: dozens take seconds.
const packed = document.querySelector("#library");
const library = packed && window.DecompressionStream ? addLibrary(packed) : null;
if (library) {
  const observer = new IntersectionObserver(
    (entries) => {
      for (const entry of entries) if (entry.isIntersecting) draw(entry.target);
    },
    { rootMargin: "600px" },
  );
  const figures = document.querySelectorAll("figure:has(script)");
  for (const figure of figures) observer.observe(figure);
  addEventListener("load", () => drawRest(figures));
  document.querySelector("#variants")?.removeAttribute("hidden");
}
