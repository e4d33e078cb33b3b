// Draws what view.js says, and asks for /status again every two seconds. Elements that can have the keyboard's focus are made once
// and kept; what is in them is replaced. Texts become text nodes, never markup.

const POLL_MS = 2000;
const ANSWER_MS = 8000;  // to wait for a status
const ROWS_SHOWN = 25;
const PROBLEMS_SHOWN = 12;
const PLOT_WIDTH = 600;  // of a plot's own coordinates
const PLOT_HEIGHT = 104;
const PLOT_TOP = 16;     // free for the largest value
const MARKS = {
  good: "M8 0a8 8 0 1 0 0 16A8 8 0 0 0 8 0ZM7 11.6 3.4 8l1.4-1.4L7 8.8l4.4-4.4 1.4 1.4Z",
  warn: "M8 .5 16 15H0ZM7 5.5v5h2v-5Zm0 6.2v2h2v-2Z",
  bad: "M5 0h6l5 5v6l-5 5H5l-5-5V5Zm2 3v6h2V3Zm0 7.5v2.2h2v-2.2Z",
  wait: "M8 0a8 8 0 1 0 0 16A8 8 0 0 0 8 0ZM7 3h2v4.6l3 3-1.4 1.4L7 8.4Z",
};

const at = (id) => document.getElementById(id);
// The namespace of SVG, from the page's own mark.
const SVG = at("mark").namespaceURI;

// An element with text or elements in it. `attributes` are this script's own, except data-column and aria-label.
function make(tag, attributes = {}, ...content) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...content.filter((one) => one !== "" && one !== undefined));
  return element;
}
function draw(tag, attributes) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}
function say(element, content) {
  if (element.textContent !== content) element.textContent = content;
}
const section = (name) => (name ? `What to do: runbook.md, section “${name}”` : "");

function showVerdict(shown) {
  at("verdict").dataset.level = shown.level;
  at("mark").setAttribute("d", MARKS[shown.level]);
  at("mark").setAttribute("fill-rule", "evenodd");
  say(at("verdict-title"), shown.title);
  say(at("verdict-reason"), shown.reason);
  say(at("verdict-chapter"), section(shown.section));
  const colour = { good: "%231a7f37", warn: "%23b97800", bad: "%23c22d20", wait: "%2359636e" }[shown.level];
  const icon = `data:image/svg+xml,<svg xmlns='${SVG}' viewBox='0 0 16 16'><path fill='${colour}' fill-rule='evenodd' d='${MARKS[shown.level]}'/></svg>`;
  if (at("icon").getAttribute("href") !== icon) at("icon").setAttribute("href", icon);
}

function showFigures(figures) {
  at("figures").replaceChildren(...figures.map((figure) => make("div", figure.level ? { "data-level": figure.level } : {},
    make("dt", {}, figure.label), make("dd", { class: "value" }, figure.value), make("dd", { class: "note text" }, figure.note))));
}

function showProblems(problems) {
  at("problems").hidden = problems.length === 0;
  at("problem-list").replaceChildren(...problems.slice(0, PROBLEMS_SHOWN).map((problem) => make("li", { "data-level": problem.level === "note" ? "wait" : "warn" },
    make("b", { class: "text" }, problem.who), ": ", make("span", { class: "text" }, problem.what),
    make("span", { class: "quiet" }, section(problem.section)))));
  const more = problems.length - PROBLEMS_SHOWN;
  say(at("problem-more"), more > 0 ? `And ${grouped(more)} more: the tables below have all of them.` : "");
}

// Plots. -------------------------------------------------------------------------------------------------------------------------

const plots = new Map();  // by key
let chosen = -1;          // the row that all plots point at; -1: the newest

function makePlot(key) {
  const svg = draw("svg", { viewBox: `0 0 ${PLOT_WIDTH} ${PLOT_HEIGHT}`, preserveAspectRatio: "none", tabindex: "0", role: "slider" });
  const plot = { svg, title: make("strong", { id: `plot-${key}` }), readout: make("span", { class: "readout" }), top: make("span"),
    first: make("span"), last: make("span"), keys: make("div", { class: "keys quiet" }), rows: [] };
  svg.setAttribute("aria-labelledby", `plot-${key}`);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    choose(Math.floor(((event.clientX - box.left) / box.width) * plot.rows.length), plot.rows.length);
  });
  svg.addEventListener("pointerleave", () => choose(-1, 0));
  svg.addEventListener("blur", () => choose(-1, 0));
  svg.addEventListener("keydown", (event) => {
    const now = chosen < 0 ? plot.rows.length - 1 : chosen;
    const next = { ArrowLeft: now - 1, ArrowDown: now - 1, ArrowRight: now + 1, ArrowUp: now + 1, PageDown: now - 10, PageUp: now + 10,
      Home: 0, End: plot.rows.length - 1, Escape: -1 }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    choose(event.key === "Escape" ? -1 : Math.max(0, next), plot.rows.length);
  });
  plot.figure = make("figure", { class: "plot" }, make("figcaption", {}, plot.title, plot.readout), svg,
    make("div", { class: "axis quiet" }, plot.first, plot.top, plot.last), plot.keys);
  return plot;
}
function choose(row, rows) {
  const next = Math.min(row, rows - 1);
  if (next === chosen) return;
  chosen = next;
  for (const plot of plots.values()) drawPlot(plot);
}
function heightOf(value, most) {
  return value > 0 && most > 0 ? Math.max(1.5, (Math.min(value, most) / most) * (PLOT_HEIGHT - PLOT_TOP)) : 0;
}
function drawBars(plot, i, most) {
  const step = PLOT_WIDTH / plot.rows.length;
  const row = plot.rows[i];
  const gap = Math.min(step * 0.2, 4);
  const place = { x: i * step + gap / 2, width: Math.min(step - gap, 40) };
  if (!plot.spec.parts) {
    const height = heightOf(plot.spec.value(row), most);
    return [draw("rect", { ...place, y: PLOT_HEIGHT - height, height, class: plot.whole(row) ? "bar whole" : "bar" })];
  }
  let below = 0;
  return plot.spec.parts(row).map((part, which) => {
    const height = most > 0 ? (part / most) * (PLOT_HEIGHT - PLOT_TOP) : 0;
    below += height;
    return draw("rect", { ...place, y: PLOT_HEIGHT - below, height, class: `p${which}` });
  });
}
const readout = (plot, row) => plot.spec.format(plot.value(row)) + (plot.whole(row) ? ", in full" : "");
// The legend: the parts of a bar with their values, or what its colour means.
function keysOf(plot, row) {
  const { spec, rows } = plot;
  if (spec.parts) {
    const parts = spec.parts(row);
    const used = spec.names.map((name, i) => i).filter((i) => spec.names[i] && rows.some((one) => spec.parts(one)[i] > 0));
    return used.length < 2 ? [] : used.map((i) => make("span", { class: `p${i}` }, `${spec.names[i]} ${spec.format(parts[i])}`));
  }
  if (!rows.some(plot.whole)) return [];
  return [make("span", { class: "key-bar" }, "delta"), make("span", { class: "key-whole" }, "in full, cut at the top")];
}
// A version that was sent in full would make all deltas invisible, so it does not stretch the scale.
function scaleOf(plot) {
  const values = plot.rows.map((row) => (plot.spec.parts ? total(plot.spec.parts(row)) : plot.whole(row) ? 0 : plot.spec.value(row)));
  return Math.max(0, ...values.filter(Number.isFinite)) || Math.max(0, ...plot.rows.map((row) => plot.value(row)).filter(Number.isFinite));
}
function drawPlot(plot) {
  const { rows, spec, svg } = plot;
  const most = scaleOf(plot);
  const shown = chosen >= 0 && chosen < rows.length ? chosen : rows.length - 1;
  const step = PLOT_WIDTH / rows.length;
  const bars = rows.flatMap((row, i) => drawBars(plot, i, most));
  const began = rows.map((row, i) => i).filter((i) => i > 0 && rows[i].number <= rows[i - 1].number)
    .map((i) => draw("line", { x1: i * step, x2: i * step, y1: 0, y2: PLOT_HEIGHT, class: "began" }));
  const mark = chosen < 0 ? [] : [draw("rect", { x: shown * step, width: step, y: 0, height: PLOT_HEIGHT, class: "chosen" })];
  svg.replaceChildren(draw("line", { x1: 0, x2: PLOT_WIDTH, y1: PLOT_HEIGHT - 0.5, y2: PLOT_HEIGHT - 0.5, class: "base" }), ...mark, ...began, ...bars);
  const words = readout(plot, rows[shown]);
  plot.readout.replaceChildren(`version ${rows[shown].version}: `, make("b", {}, words));
  plot.keys.replaceChildren(...keysOf(plot, rows[shown]));
  say(plot.top, `highest ${spec.format(most)}`);
  for (const [name, value] of [["min", 0], ["max", rows.length - 1], ["now", shown], ["text", `version ${rows[shown].version}: ${words}`]]) {
    svg.setAttribute(`aria-value${name}`, value);
  }
}
function showPlots(view) {
  const some = view.plots.map((spec) => ({ spec, value: spec.parts ? (row) => total(spec.parts(row)) : spec.value }))
    .filter(({ value }) => view.history.some((row) => value(row) > 0));
  at("plots").hidden = some.length === 0;
  const length = view.history.length;
  say(at("plots-title"), length === 1 ? "The last version" : `The last ${length} versions`);
  say(at("plots-note"), `${view.plotsNote} Point at a plot, or use the arrow keys in it, to read a version's values.`);
  const kept = some.map(({ spec, value }) => {
    if (!plots.has(spec.key)) plots.set(spec.key, makePlot(spec.key));
    const plot = plots.get(spec.key);
    Object.assign(plot, { spec, value, rows: view.history, whole: spec.whole || (() => false) });
    say(plot.title, spec.title);
    say(plot.first, `${view.history[0].version}`);
    say(plot.last, `${view.history[length - 1].version}`);
    drawPlot(plot);
    return plot.figure;
  });
  const list = at("plot-list");
  if (list.children.length !== kept.length || kept.some((figure, i) => list.children[i] !== figure)) list.replaceChildren(...kept);
}

// Tables. ------------------------------------------------------------------------------------------------------------------------

function showShares(shown) {
  at("shares").hidden = shown === undefined;
  if (shown === undefined) return;
  say(at("shares-note"), shown.note);
  at("share-list").replaceChildren(...shown.rows.map((row) => {
    const fill = make("span", { class: "fill" });
    fill.style.width = `${Math.max(0, Math.min(100, (100 * row.count) / shown.total))}%`;
    return make("li", row.late ? { class: "late" } : {}, make("span", { class: "text" }, row.label),
      make("span", { class: "track" }, ...(row.count > 0 ? [fill] : [])),
      make("span", { class: "count" }, `${grouped(row.count)} (${percent(row.count / shown.total)})`));
  }));
}

const tables = new Map();  // by key

function makeTable(key) {
  const table = { key, wanted: ROWS_SHOWN, filter: make("input", { type: "search", id: `filter-${key}`, autocomplete: "off" }),
    title: make("h2", { id: `table-${key}` }), note: make("span", { class: "quiet" }), body: make("tbody", { role: "rowgroup" }),
    columns: make("tr", { role: "row" }), more: make("button", { type: "button", class: "more" }), empty: make("p", { class: "quiet" }) };
  table.label = make("label", {}, make("span", { class: "quiet" }, "Show those with "), table.filter);
  table.grid = make("div", { class: "table" }, make("table", { role: "table", "aria-labelledby": `table-${key}` },
    make("thead", { role: "rowgroup" }, table.columns), table.body));
  table.section = make("section", { "aria-labelledby": `table-${key}` },
    make("div", { class: "head" }, table.title, table.note, table.label), table.grid, table.empty, table.more);
  table.filter.addEventListener("input", () => { table.wanted = ROWS_SHOWN; fillTable(table); });
  table.more.addEventListener("click", () => { table.wanted += 4 * ROWS_SHOWN; fillTable(table); });
  return table;
}
// A row, and below it what it has to say in words.
function makeRows(spec, row) {
  const cells = row.cells.map((cell, i) => {
    const name = spec.columns[i].replace("#", "");
    const kind = spec.columns[i].startsWith("#") ? "n" : i === 1 ? `state ${row.level ? "level" : ""}` : "";
    return i === 0 ? make("th", { role: "rowheader", scope: "row", ...(spec.ids ? { class: "id" } : {}) }, String(cell))
      : make("td", { role: "cell", "data-column": name, class: kind }, cell === "" ? "" : make("span", { class: "text" }, String(cell)));
  });
  const said = row.said ? [make("tr", { role: "row", class: "said" },
    make("td", { role: "cell", colspan: spec.columns.length }, make("span", { class: "text" }, row.said)))] : [];
  return [make("tr", { role: "row", ...(row.level ? { "data-level": row.level } : {}) }, ...cells), ...said];
}
function fillTable(table) {
  const { spec } = table;
  const wanted = table.filter.value.trim().toLowerCase();
  const rows = wanted === "" ? spec.rows : spec.rows.filter((row) => [...row.cells, row.said].some((cell) => String(cell).toLowerCase().includes(wanted)));
  const shown = rows.slice(0, table.wanted);
  table.label.hidden = !(spec.filter && spec.rows.length > 10);
  say(table.title, spec.title);
  say(table.note, [spec.rows.length > 0 && spec.note, shown.length < spec.rows.length && `${grouped(shown.length)} of ${grouped(spec.rows.length)} shown.`]
    .filter(Boolean).join(" "));
  table.columns.replaceChildren(...spec.columns.map((name) =>
    make("th", { role: "columnheader", scope: "col", ...(name.startsWith("#") ? { class: "n" } : {}) }, name.replace("#", ""))));
  table.body.replaceChildren(...shown.flatMap((row) => makeRows(spec, row)));
  table.grid.hidden = shown.length === 0;
  table.empty.hidden = shown.length > 0;
  say(table.empty, spec.rows.length === 0 ? spec.empty : "None matches.");
  table.more.hidden = shown.length === rows.length;
  say(table.more, `Show ${grouped(Math.min(4 * ROWS_SHOWN, rows.length - shown.length))} more`);
}
function showTables(specs) {
  const kept = specs.map((spec) => {
    if (!tables.has(spec.key)) tables.set(spec.key, makeTable(spec.key));
    const table = tables.get(spec.key);
    table.spec = spec;
    if (spec.key === "versions" && table.wanted === ROWS_SHOWN) table.wanted = 10;
    fillTable(table);
    return table.section;
  });
  const place = at("tables");
  if (place.children.length !== kept.length || kept.some((one, i) => place.children[i] !== one)) place.replaceChildren(...kept);
}

// Asking. ------------------------------------------------------------------------------------------------------------------------

let answered;  // when the last status came, in ms of this page's clock
let timer;
let held = false;

function show(status) {
  const view = viewOf(status);
  say(at("title"), view.title);
  say(at("subtitle"), view.subtitle);
  document.title = `${view.verdict.title}: ${view.title} ${view.subtitle}`;
  showVerdict(view.verdict);
  showFigures(view.figures);
  showProblems(view.problems);
  showPlots(view);
  showShares(view.shares);
  showTables(view.tables);
  at("facts").replaceChildren(...view.facts.flatMap(([key, value]) => [make("dt", {}, key), make("dd", {}, value)]));
}
function showSilence(why) {
  const since = answered === undefined ? "" : ` What is below is ${seconds(Math.round((performance.now() - answered) / 1000))} old.`;
  showVerdict({ level: "wait", title: "No answer", reason: `The daemon does not give its status: ${why}.${since}`, section: "DwsDaemonDown" });
  document.title = "No answer: DWS";
}
// The status; undefined: it did not come, which the page says.
async function ask() {
  try {
    const reply = await fetch("status", { cache: "no-store", signal: AbortSignal.timeout(ANSWER_MS) });
    if (!reply.ok) throw new Error(`HTTP ${reply.status}`);
    const status = object(await reply.json());
    answered = performance.now();
    return status;
  } catch (error) {
    showSilence(error.name === "TimeoutError" ? `nothing came within ${ANSWER_MS / 1000} s` : error.message);
    return undefined;
  }
}
async function again() {
  clearTimeout(timer);
  if (held || document.hidden) return;
  const status = await ask();
  clearTimeout(timer);
  timer = setTimeout(again, POLL_MS);
  if (status === undefined) return;
  say(at("asof"), `as of ${clock(number(status.unix_seconds))}`);
  show(status);
}
at("hold").addEventListener("click", () => {
  held = !held;
  at("hold").setAttribute("aria-pressed", String(held));
  say(at("hold"), held ? "Continue" : "Hold");
  again();
});
document.addEventListener("visibilitychange", again);
again();
