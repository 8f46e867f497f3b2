// Shows what /status/stream says. Text goes into the page as text only, never as markup.
"use strict";

const byId = (id) => document.getElementById(id);

function make(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

const seconds = (value) => value.toFixed(value < 10 ? 1 : 0) + " s";
const percent = (part, whole) => (whole ? Math.round((100 * part) / whole) + " %" : "–");

// A table that keeps its rows: what does not change stays selected, focused and scrolled.
// Columns: [heading, cell text of a row, class].
class Table {
  constructor(parent, label, columns, empty) {
    this.columns = columns;
    this.heading = make("h3", "", label);
    this.empty = make("p", "note", empty);
    this.scroll = make("div", "scroll");
    this.scroll.tabIndex = 0;
    this.scroll.setAttribute("role", "region");
    this.scroll.setAttribute("aria-label", label);
    const table = this.scroll.appendChild(make("table"));
    const head = table.createTHead().insertRow();
    for (const [title, , kind] of columns) {
      const cell = head.appendChild(make("th", kind, title));
      cell.scope = "col";
    }
    this.body = table.appendChild(make("tbody"));
    parent.append(this.heading, this.empty, this.scroll);
  }

  show(rows) {
    this.scroll.hidden = !rows.length;
    this.empty.hidden = rows.length > 0;
    while (this.body.rows.length > rows.length) this.body.deleteRow(-1);
    while (this.body.rows.length < rows.length) this.addRow();
    rows.forEach((row, i) => {
      this.body.rows[i].className = row.chosen ? "chosen" : "";
      this.columns.forEach(([, text], j) => say(this.body.rows[i].cells[j], String(text(row))));
    });
  }

  addRow() {
    const row = this.body.insertRow();
    for (const [, , kind] of this.columns) row.insertCell().className = kind || "";
  }
}

const holders = new Table(byId("holders"), "Who holds them", [
  ["request", (r) => r.id, "text name"],
  ["doing", (r) => r.doing.join(", "), "text"],
  ["since", (r) => seconds(r.seconds)],
  ["permits", (r) => r.weight],
], "Nobody holds a permit.");

const TILES = [
  ["total", (p) => p.total],
  ["free", (p) => p.free],
  ["held", (p) => p.held],
  ["waiting", (p) => p.waiting],
  ["threads", (p) => p.threads],
];

const tiles = TILES.map(([name]) => {
  const tile = make("div");
  tile.append(make("dt", "", name), make("dd", "", "–"));
  tile.lastChild.id = "permits-" + name;
  byId("tiles").append(tile);
  return tile.lastChild;
});

function showPermits(permits) {
  TILES.forEach(([, value], i) => say(tiles[i], String(value(permits))));
  const meter = byId("meter");
  meter.max = permits.total || 1;
  meter.high = 0.8 * meter.max;
  meter.value = permits.held;
  meter.textContent = permits.held + " of " + permits.total;
  holders.show(permits.requests);
}

const WORKERS = [
  ["worker", (w) => w.rank, "text name"],
  ["running", (w) => w.requests],
  ["prefill tokens", (w) => w.prefill_tokens],
  ["decode blocks", (w) => w.decode_blocks],
  ["coverage blocks", (w) => w.coverage_blocks],
  ["predicted hits", (w) => w.predicted_tokens],
  ["measured hits", (w) => w.measured_tokens],
  ["kept", (w) => percent(w.measured_tokens, w.predicted_tokens)],
  ["state", (w) => w.left_out || "serving", "text"],
];

const LANES = [
  ["lane", (l) => l.lane],
  ["depth", (l) => l.depth],
  ["ranks", (l) => l.ranks],
  ["applied", (l) => l.applied],
  ["leased", (l) => l.leases_granted],
  ["refreshed", (l) => l.leases_refreshed],
  ["expired", (l) => l.leases_expired],
  ["expiry lag", (l) => l.expiry_lag_seconds.toFixed(3) + " s"],
  ["dropped", (l) => l.posts_dropped],
];

class ModelView {
  constructor(parent, name) {
    const section = parent.appendChild(make("section", "model"));
    const title = section.appendChild(make("h2", "", name + " "));
    this.summary = title.appendChild(make("small"));
    this.problems = section.appendChild(make("div"));
    this.workers = new Table(section, "Workers", WORKERS, "No worker is registered.");
    this.lanes = new Table(section, "Lanes", LANES, "No lanes.");
  }

  show(model) {
    const index = model.index;
    say(this.summary, (model.ready ? "ready" : "not ready") + " · " + model.open_requests +
      " open · index: " + index.entries + " blocks, " + index.leased_blocks + " leased places");
    const problems = this.problems;
    while (problems.childElementCount > model.problems.length) problems.lastChild.remove();
    while (problems.childElementCount < model.problems.length) problems.append(make("p", "problem"));
    model.problems.forEach((text, i) => say(problems.children[i], text));
    this.workers.show(model.workers);
    this.lanes.show(model.lanes);
  }
}

const models = new Map();

function showModels(list) {
  for (const model of list) {
    if (!models.has(model.name)) models.set(model.name, new ModelView(byId("models"), model.name));
    models.get(model.name).show(model);
  }
}

const CANDIDATES = [
  ["candidate", (r) => r.rank, "text name"],
  ["cached blocks", (r) => r.held_blocks],
  ["prefill", (r) => r.prefill.toFixed(2)],
  ["saved", (r) => r.saved.toFixed(2)],
  ["decode", (r) => r.decode],
  ["running", (r) => r.requests],
  ["cost", (r) => r.cost.toFixed(2)],
];

const decisions = new Map();

function showDecisions(list) {
  byId("quiet").hidden = list.length > 0;
  const kept = new Set(list.map((decision) => decision.serial));
  for (const [serial, element] of decisions) {
    if (kept.has(serial)) continue;
    element.remove();
    decisions.delete(serial);
  }
  // Oldest first: each new one goes to the top.
  for (const decision of list) {
    if (decisions.has(decision.serial)) continue;
    const element = decisionView(decision);
    decisions.set(decision.serial, element);
    byId("decisions").prepend(element);
  }
}

function decisionView(decision) {
  const details = make("details");
  const summary = details.appendChild(make("summary"));
  summary.append(make("span", "", decision.request_id + " → " + decision.worker + " "));
  summary.append(make("span", "soft", decision.model + " · " + decision.overlap + " of " +
    decision.blocks + " blocks cached (" + decision.source + ") · regret " + decision.regret));
  const table = new Table(details, "Candidates, costs in blocks", CANDIDATES, "");
  table.show(decision.rows);
  for (const [rank, why] of decision.excluded) {
    details.append(make("p", "note", rank + " left out: " + why));
  }
  return details;
}

let paused = false;
let latest = null;

function show(status) {
  latest = status;
  if (paused) return;
  showPermits(status.permits);
  showModels(status.models);
  showDecisions(status.decisions);
}

byId("pause").addEventListener("click", () => {
  paused = !paused;
  byId("pause").setAttribute("aria-pressed", String(paused));
  if (!paused && latest) show(latest);
});

function connection(text, kind) {
  say(byId("state"), text);
  byId("dot").className = "dot " + kind;
}

const stream = new EventSource("/status/stream");
stream.addEventListener("open", () => {
  // It may be another server, which numbers its decisions anew.
  showDecisions([]);
  connection("live", "live");
});
stream.addEventListener("error", () => {
  const closed = stream.readyState === EventSource.CLOSED;
  connection(closed ? "not served: too many pages are open" : "connection lost, trying again", "lost");
});
stream.addEventListener("status", (event) => show(JSON.parse(event.data)));
