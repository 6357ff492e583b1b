// The table of endpoints: sorted, filtered, updated in place; drain and undrain.

import { bytes, count, el, NONE, percent, seconds, setText } from "./format.js";

const $ = (id) => document.getElementById(id);
/** KV use from which the bar is red: vLLM begins to preempt near the top. */
const KV_HIGH = 0.9;

/** [title, help, value to sort by, how a cell is filled] */
const COLUMNS = [
  ["Endpoint", "Name and address", (e) => e.name],
  ["State", "Whether it takes new requests", (e) => e.state, state],
  ["In flight", "Requests sent whose response has not ended", (e) => e.inflight_requests, (td, e) => number(td, e.inflight_requests)],
  ["Pending prefill", "Uncached prompt tokens sent and not yet at their first response byte", (e) => e.pending_prefill_tokens,
    (td, e) => number(td, e.pending_prefill_tokens)],
  ["Queue", "Waiting in the engine's queue", (e) => e.waiting, (td, e) => number(td, e.waiting)],
  ["Running", "In the engine's batch", (e) => e.running, (td, e) => number(td, e.running)],
  ["KV in use", "Share of the engine's KV blocks held by running requests", (e) => e.kv_usage, meter],
  ["Working set", "Tokens of conversations in use or likely to come back, against what the gate allows", workingSet,
    (td, e) => setText(td, percent(workingSet(e)))],
  ["Hit rate", "Share of prompt blocks that Homing predicted cached", (e) => e.now?.predicted, (td, e) => setText(td, percent(e.now?.predicted))],
  ["Engine hits", "Share of prompt tokens that the engine found cached", (e) => e.now?.actual, (td, e) => setText(td, percent(e.now?.actual))],
  ["TTFT", "Mean time to the first byte", (e) => e.now?.firstByte, (td, e) => setText(td, seconds(e.now?.firstByte))],
  ["Req/s", "Requests that ended per second", (e) => e.now?.requests, (td, e) => number(td, e.now?.requests)],
  ["Out tok/s", "Tokens generated per second", (e) => e.now?.generated, (td, e) => number(td, e.now?.generated)],
  ["Index", "Prompt blocks that Homing's index credits to the endpoint", (e) => e.index_blocks, (td, e) => number(td, e.index_blocks)],
];

/** Share of its limit that an endpoint's working set takes; nothing without a gate. */
function workingSet(e) {
  return e.working_set_limit_tokens ? (e.working_set_tokens[0] + e.working_set_tokens[1]) / e.working_set_limit_tokens : undefined;
}

const rows = new Map();
let sortBy = null;
let descending = false;
let shownPool = null;
let last = null;

/** Builds the header. `change` is called with (endpoint, draining) when the operator presses a button. */
export function start(change) {
  const head = $("endpoints").tHead.rows[0];
  COLUMNS.forEach(([title, help], i) => {
    const button = el("button", { type: "button", title: help }, title);
    button.addEventListener("click", () => sort(i));
    head.append(el("th", { scope: "col", class: i < 2 ? "left" : null }, button));
  });
  head.append(el("th", { scope: "col" }, el("span", { class: "visually-hidden" }, "Action")));
  $("filter").addEventListener("input", arrange);
  $("endpoints").tBodies[0].addEventListener("click", (event) => {
    const button = event.target.closest("button[data-endpoint]");
    if (button) change(button.dataset.endpoint, button.dataset.draining === "true");
  });
}

/** Shows the pool as of now. */
export function show(pool, point, colours, indexBytes) {
  if (shownPool !== pool.name) {
    $("endpoints").tBodies[0].replaceChildren();
    rows.clear();
    shownPool = pool.name;
  }
  const now = new Map((point?.endpoints ?? []).map((e) => [e.name, e]));
  last = pool.endpoints.map((e) => ({ ...e, now: now.get(e.name) }));
  for (const endpoint of last) fill(endpoint, colours.get(endpoint.name));
  const names = new Set(last.map((e) => e.name));
  for (const [name, row] of rows) {
    if (names.has(name)) continue;
    row.remove();
    rows.delete(name);
  }
  const states = Object.entries(Object.groupBy(last, (e) => e.state)).map(([s, of]) => `${of.length} ${s}`);
  setText($("fleet-summary"), [...states, `prefix index ${bytes(indexBytes)}`].join(" · "));
  arrange();
}

function fill(endpoint, colour) {
  let row = rows.get(endpoint.name);
  if (!row) {
    const host = endpoint.url.replace(/^https?:\/\//, "").replace(/\/$/, "");
    row = el("tr", {}, el("th", { scope: "row", title: endpoint.url },
      el("span", { class: "swatch", style: { background: colour } }), endpoint.name, " ", el("small", {}, host)));
    COLUMNS.slice(1).forEach((_, i) => row.append(el("td", { class: i === 0 ? "left" : null })));
    row.append(el("td", {}, el("button", { type: "button", "data-endpoint": endpoint.name })));
    rows.set(endpoint.name, row);
  }
  row.cells[0].firstChild.style.background = colour;
  COLUMNS.slice(1).forEach(([, , , render], i) => render(row.cells[i + 1], endpoint));
  const button = row.lastChild.firstChild;
  const draining = endpoint.state === "draining";
  setText(button, draining ? "Undrain" : "Drain");
  button.dataset.draining = String(!draining);
  button.setAttribute("aria-label", `${button.textContent} ${endpoint.name}`);
}

function state(td, endpoint) {
  if (td.dataset.shown === endpoint.state + endpoint.reason) return;
  td.dataset.shown = endpoint.state + endpoint.reason;
  td.replaceChildren(
    el("span", { class: `badge ${endpoint.state}` }, endpoint.state),
    endpoint.reason ? el("span", { class: "reason", title: endpoint.reason }, endpoint.reason) : "");
}

function meter(td, endpoint) {
  if (!td.firstChild) td.append(el("span", { class: "meter" }, el("i", {}, el("i")), el("span")));
  const [bar, text] = td.firstChild.children;
  bar.firstChild.style.width = `${100 * (endpoint.kv_usage ?? 0)}%`;
  td.firstChild.classList.toggle("high", endpoint.kv_usage >= KV_HIGH);
  setText(text, percent(endpoint.kv_usage));
}

function number(td, value) {
  const text = count(value);
  if (td.textContent === text) return;
  td.textContent = text;
  td.classList.toggle("quiet", text === "0" || text === NONE);
}

function sort(column) {
  descending = sortBy === column ? !descending : column > 1;
  sortBy = column;
  [...$("endpoints").tHead.rows[0].cells].forEach((th, i) => {
    if (i === column) th.setAttribute("aria-sort", descending ? "descending" : "ascending");
    else th.removeAttribute("aria-sort");
  });
  arrange();
}

/** Puts the rows in order; touches the document only where the order changed. */
function arrange() {
  if (!last) return;
  const wanted = $("filter").value.trim().toLowerCase();
  const order = sortBy == null ? last : last.toSorted((a, b) => compare(COLUMNS[sortBy][2](a), COLUMNS[sortBy][2](b)));
  const body = $("endpoints").tBodies[0];
  order.forEach((endpoint, i) => {
    const row = rows.get(endpoint.name);
    row.hidden = wanted !== "" && !`${endpoint.name} ${endpoint.url} ${endpoint.state}`.toLowerCase().includes(wanted);
    if (body.rows[i] !== row) body.insertBefore(row, body.rows[i] ?? null);
  });
}

/** Unknown values last, in either direction. */
function compare(a, b) {
  if (a == null || b == null) return (a == null) - (b == null);
  const order = typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b;
  return descending ? -order : order;
}
