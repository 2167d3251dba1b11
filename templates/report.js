// SPDX-License-Identifier: Apache-2.0
// The script of report.html.j2: draws charts, sorts and searches the table, opens details. All words go into the page as
// text, never as HTML.
const data = JSON.parse(document.getElementById("data").textContent);
const make = (tag, text, ...children) => {
  const element = document.createElement(tag);
  if (text) element.textContent = text;
  element.append(...children);
  return element;
};
const short = value =>
  value === null ? "not measured" : value.toLocaleString("en", { maximumSignificantDigits: value >= 1000 ? 4 : 3 });
const share = (used, measured) => (used === null || !measured ? "not measured" : `${short((100 * used) / measured)} %`);

// --- what is under the pointer ---
const tip = document.getElementById("tip");
function say(text, event) {
  tip.hidden = !text;
  if (!text) return;
  tip.textContent = text;
  const { width, height } = tip.getBoundingClientRect();
  const left = Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 4));
  const below = event.clientY + 18;
  tip.style.left = `${left}px`;
  tip.style.top = `${below + height < innerHeight ? below : Math.max(4, event.clientY - height - 12)}px`;
}
addEventListener("scroll", () => say(""), { capture: true, passive: true });
addEventListener("keydown", event => event.key === "Escape" && say(""));

// On a phone each thing to do is a line that opens, so that the table begins on the first screen.
if (matchMedia("(max-width: 40rem)").matches) document.querySelectorAll(".do details").forEach(one => (one.open = false));

// --- charts ---
function draw(element, spec, rows) {
  // The chart is one picture with one description; Vega gives its groups roles without names.
  const canvas = make("div");
  canvas.ariaHidden = "true";
  element.replaceChildren(canvas);
  return vegaEmbed(
    canvas,
    { ...spec, datasets: { [data.charts.rows]: rows } },
    {
      mode: "vega-lite",
      config: data.charts.config,
      renderer: "svg",
      actions: false,
      defaultStyle: false,
      // No code is made of text: the page's policy forbids it.
      ast: true,
      tooltip: (_, event, item, value) => say(value ? String(value) : "", event),
    },
  );
}
for (const element of document.querySelectorAll("[data-figure]")) {
  const figure = data.charts.figures[element.dataset.figure];
  draw(element, figure.spec, figure.rows);
}

// --- the table ---
const table = document.getElementById("table");
const body = table.tBodies[0];
const titles = [...table.tHead.rows[0].cells];
const rows = [...body.rows];
const cell = (row, column) => row.cells[column].textContent.trim();
const names = rows.map(row => cell(row, 0));
const found = document.getElementById("found");
// "<0.01" is more than 0 and less than 0.01; "-" is not known.
const number = text => (text.startsWith("<") ? Number(text.slice(1)) / 2 : Number(text.replace(/[%,]/g, "")));

function sort(column) {
  const by = column ? text => (text === "-" || text === "" ? null : number(text)) : text => text;
  const first = column ? "descending" : "ascending";
  const before = titles[column].getAttribute("aria-sort");
  const order = before === first ? (column ? "ascending" : "descending") : first;
  const sign = order === "ascending" ? 1 : -1;
  const keyed = rows.map(row => [by(cell(row, column)), row]);
  keyed.sort(([a], [b]) => {
    if (a === null || b === null) return (a === null) - (b === null);
    const numbers = typeof a === "number" && !Number.isNaN(a) && !Number.isNaN(b);
    return sign * (numbers ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
  });
  body.append(...keyed.map(([, row]) => row));
  titles.forEach(title => title.removeAttribute("aria-sort"));
  titles[column].setAttribute("aria-sort", order);
  found.textContent = `sorted by ${cell(table.tHead.rows[0], column)}, ${order}`;
}
titles.forEach((title, column) => title.querySelector("button")?.addEventListener("click", () => sort(column)));

document.getElementById("search").addEventListener("input", event => {
  const wanted = event.target.value.trim().toLowerCase();
  let count = 0;
  rows.forEach((row, index) => {
    row.hidden = !names[index].toLowerCase().includes(wanted);
    count += !row.hidden;
  });
  found.textContent = wanted ? `${count} of ${rows.length} shown; the last row is of all` : "";
});

body.addEventListener("pointermove", event => {
  const at = event.target.closest("td");
  if (!at || event.pointerType === "touch") return say("");
  const row = at.parentElement;
  const [util, sm, methods] = data.rows[rows.indexOf(row)];
  const title = cell(table.tHead.rows[0], at.cellIndex);
  const help = titles[at.cellIndex].querySelector("button")?.title;
  const lines = [`${names[rows.indexOf(row)]}: ${title} ${cell(row, at.cellIndex)}`.trim()];
  if (cell(row, at.cellIndex) === "-") lines.push("not measured, or not known");
  if (help) lines.push(help);
  lines.push(`measured: ${short(sm)} GPU-h by SM activity, ${short(util)} GPU-h by GPU_UTIL`);
  lines.push(`method: ${methods.map(index => data.methods[index]).join(", ") || "none, nothing was sampled"}`);
  say(lines.join("\n"), event);
});
body.addEventListener("pointerleave", () => say(""));

// --- tables that are wider than the window ---
function watch(scroll, words) {
  const look = () => {
    scroll.classList.toggle("more", scroll.scrollWidth - scroll.clientWidth - scroll.scrollLeft > 1);
    if (words) words.hidden = scroll.scrollWidth - scroll.clientWidth <= 1;
  };
  scroll.addEventListener("scroll", look, { passive: true });
  new ResizeObserver(look).observe(scroll);
}
document.querySelectorAll(".scroll").forEach(scroll => watch(scroll, scroll.contains(table) && document.getElementById("sideways")));

// --- details of one row ---
const dialog = document.getElementById("detail");
const inside = document.getElementById("detail-body");
function listed(caption, heads, lines) {
  if (!lines.length) return [];
  const head = make("thead", "", make("tr", "", ...heads.map(text => Object.assign(make("th", text), { scope: "col" }))));
  const filled = lines.map(line =>
    make("tr", "", ...line.map((text, at) => (at ? make("td", text) : Object.assign(make("th", text), { scope: "row" })))),
  );
  const scroll = make("div", "", make("table", "", head, make("tbody", "", ...filled)));
  scroll.className = "scroll";
  scroll.tabIndex = 0;
  scroll.setAttribute("role", "region");
  scroll.setAttribute("aria-label", caption);
  watch(scroll);
  return [make("h3", caption), scroll];
}
const stamp = ms => new Date(ms).toISOString().replace("T", " ").slice(0, ms % 60000 ? 19 : 16);
function piece([span, held, measured, used]) {
  const [a, b, hours] = data.spans[span];
  const seen = Math.min(measured, held);
  const said = used === null ? "use not measured" : `${data.metric}: used ${short(used)} of ${short(measured)} GPU-h measured`;
  return {
    a,
    b,
    used: Math.min(used ?? 0, seen) / hours,
    seen: seen / hours,
    held: held / hours,
    installed: null,
    tip: `${stamp(a)} to ${stamp(b)}\nallocated: ${short(held)} GPU-h\n${said}`,
  };
}
function open(index) {
  const [, , , { time, kinds, idlest }, fit] = data.rows[index];
  const row = rows[index];
  document.getElementById("detail-name").textContent = names[index];
  const figures = titles.slice(2).map((title, at) => make("div", "", make("dt", cell(title.parentElement, at + 2)), make("dd", cell(row, at + 2))));
  const parts = [make("dl", "", ...figures)];
  if (fit) {
    const [known, fits, freed, unit, spare] = fit;
    if (spare) parts.push(make("p", `Without GPUs that were never used, at most ${short(spare)} GPU-h would have been left for others.`));
    if (known) parts.push(make("p", fits
      ? `Of ${short(known)} GPU-h of runs compared with pieces, ${short(fits)} would have fitted a smaller piece${unit ? `, each run ${unit}` : ""}; at most ${short(freed)} GPU-h would have been left for others.`
      : `Of ${short(known)} GPU-h of runs compared with pieces, none would have fitted a smaller piece.`));
  }
  const chart = make("div");
  chart.className = "chart";
  chart.setAttribute("role", "img");
  const pieces = time.map(piece);
  const heads = ["GPU-h allocated", "measured", `used by ${data.metric}`, "used, % of measured"];
  const line = (first, [held, measured, used]) => [...first, short(held), short(measured), short(used), share(used, measured)];
  chart.setAttribute("aria-label", `GPUs on average over ${pieces.length} pieces of time; the table below has the figures`);
  if (data.charts.detail && pieces.length) parts.push(make("h3", "Over time: GPUs on average"), document.querySelector("section .legend").cloneNode(true), chart);
  parts.push(...listed("By kind of GPU", ["gres type", "runs", ...heads], kinds.map(([name, runs, ...had]) => line([name, String(runs)], had))));
  parts.push(...listed("The runs that left most idle, by SM activity, else by GPU_UTIL",
    ["job", "name", "given", "GPU-h allocated", "measured and not used"],
    idlest.map(([id, name, gres, held, idle]) => [id, name, gres, short(held), short(idle)])));
  const of = ([span, ...had]) => line([stamp(data.spans[span][0])], had);
  const figuresOfTime = make("details", "", make("summary", "The figures over time as a table"), ...listed("Over time", ["from", ...heads], time.map(of)).slice(1));
  if (time.length) parts.push(figuresOfTime);
  inside.replaceChildren(...parts);
  dialog.showModal();
  dialog.scrollTop = 0;
  if (chart.isConnected) draw(chart, data.charts.detail, pieces);
}
body.addEventListener("click", event => {
  const button = event.target.closest("button");
  if (button) open(rows.indexOf(button.closest("tr")));
});
document.getElementById("close").addEventListener("click", () => dialog.close());
dialog.addEventListener("close", () => say(""));
