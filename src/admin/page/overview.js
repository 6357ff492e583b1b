// Key figures, charts, legend, errors by reason.

import { Lines, Stacked } from "./charts.js";
import { count, el, NONE, percent, seconds, setText } from "./format.js";
import { sum } from "./model.js";

const $ = (id) => document.getElementById(id);
/** Endpoints named in the legend at most; beyond that the extremes are. */
const LEGEND_ALL = 12;

/** A wait that is worth a look, in seconds. */
const QUEUE_LONG_S = 10;

const charts = {
  requests: new Stacked($("requests"), "requests", count),
  tokens: new Stacked($("tokens"), "promptTokens", count),
  ttft: new Lines($("ttft"), [
    { key: "p99", colour: "--p99", label: "p99" },
    { key: "p90", colour: "--p90", label: "p90" },
    { key: "p50", colour: "--p50", label: "p50" },
  ], seconds),
  hits: new Lines($("hits"), [
    { key: "predicted", colour: "--p50", label: "predicted by Homing" },
    { key: "actual", colour: "--p90", label: "counted by the engines", dash: [5, 3] },
  ], percent, 1),
};

let asShare = true;
let redraw = () => {};
$("scale").addEventListener("click", () => {
  asShare = !asShare;
  $("scale").setAttribute("aria-pressed", String(asShare));
  setText($("scale"), asShare ? "Share" : "Per second");
  redraw();
});

/** Shows the pool as of now. */
export function show(stats, pool, history, colours) {
  redraw = () => drawCharts(history.points, colours);
  redraw();
  const now = history.latest;
  tiles(stats, pool, now);
  legend(now, colours);
  key("k-ttft", charts.ttft.series, (k) => seconds(now?.[k]));
  key("k-hits", charts.hits.series, (k) => percent(now?.[k]));
  errors(stats.errors);
  labels(now);
}

function drawCharts(points, colours) {
  charts.requests.update(points, colours, asShare);
  charts.tokens.update(points, colours, asShare);
  charts.ttft.update(points);
  charts.hits.update(points);
}

function tiles(stats, pool, now) {
  const ready = pool.endpoints.filter((e) => e.state === "ready").length;
  const all = pool.endpoints.length;
  const pending = sum(pool.endpoints.map((e) => e.pending_prefill_tokens));
  const waiting = sum(pool.endpoints.map((e) => e.waiting ?? 0));
  const failed = sum(Object.values(stats.errors));
  const inflight = sum(pool.endpoints.map((e) => e.inflight_requests));
  // Another pool may have fewer of them.
  for (const { box } of shown.values()) box.hidden = true;
  tile("ready", "Endpoints ready", ready, ` / ${all}`, ready < all ? `${all - ready} out of selection` : "all take requests", ready === 0);
  tile("rate", "Requests", count(now?.requests), " /s", `${count(inflight)} in flight`);
  tile("in", "Prompt tokens", count(now?.promptTokens), " /s", `${count(pending)} pending prefill`);
  tile("out", "Output tokens", count(now?.generated), " /s", `${count(waiting)} queued`);
  tile("hit", "Prefix hit rate", percent(now?.predicted), "", `engines ${percent(now?.actual)}`);
  tile("ttft", "TTFT, median", seconds(now?.p50), "", `p99 ${seconds(now?.p99)}`);
  tile("decide", "Decision, median", seconds(now?.decision50), "", `p99 ${seconds(now?.decision99)}`);
  waiting_tiles(pool);
  tile("errors", "Errors", count(now?.errors), " /s", `${count(failed)} since start`, now?.errors > 0);
}

/** Who waits in the router, and why: a gate that is closing keeps new conversations waiting. */
function waiting_tiles(pool) {
  const queue = pool.queue;
  if (queue) {
    const note = queue.requests > 0 ? `oldest ${seconds(queue.oldest_s)}, empty in ${seconds(queue.drained_in_s)}` : "nobody waits";
    tile("queue", "Waiting in Homing", count(queue.requests), "", note, queue.oldest_s > QUEUE_LONG_S);
  }
  const set = pool.working_set;
  if (set) {
    const held = sum(pool.endpoints.map((e) => sum(e.working_set_tokens ?? [])));
    const limit = sum(pool.endpoints.map((e) => e.working_set_limit_tokens ?? 0));
    const note = `${set.closing ? "gate closing" : "gate open"}, regret ${percent(set.regret)}, ${count(queue?.fresh_requests ?? 0)} new wait`;
    tile("working-set", "Working set", limit > 0 ? percent(held / limit) : count(held), limit > 0 ? " of its limit" : " tokens", note, set.closing);
  }
}

const shown = new Map();
function tile(id, label, value, unit, note, alarm = false) {
  if (!shown.has(id)) {
    const [v, u, n] = [el("span"), el("small"), el("dd", { class: "note" })];
    const box = el("div", { id: `tile-${id}` }, el("dt", {}, label), el("dd", { class: "value" }, v, u), n);
    $("tiles").append(box);
    shown.set(id, { v, u, n, box });
  }
  const { v, u, n, box } = shown.get(id);
  box.hidden = false;
  setText(v, String(value));
  setText(u, value === NONE ? "" : unit);
  setText(n, note);
  n.title = note;
  box.classList.toggle("alarm", Boolean(alarm));
}

function legend(now, colours) {
  const names = [...colours.keys()];
  const shares = new Map((now?.endpoints ?? []).map((e) => [e.name, now.promptTokens ? e.promptTokens / now.promptTokens : null]));
  const item = (name, prefix = "") => el("li", {},
    el("span", { class: "swatch", style: { background: colours.get(name) } }), prefix + name, el("b", {}, percent(shares.get(name))));
  if (names.length <= LEGEND_ALL) {
    $("legend").replaceChildren(...names.map((name) => item(name)));
    return;
  }
  const sorted = names.toSorted((a, b) => (shares.get(b) ?? 0) - (shares.get(a) ?? 0));
  $("legend").replaceChildren(
    ...sorted.slice(0, 5).map((name) => item(name)),
    el("li", { class: "dim" }, `${names.length - 6} between`),
    item(sorted.at(-1), "least: "),
    el("li", { class: "dim" }, `an even share is ${(100 / names.length).toFixed(1)} %`));
}

function key(id, series, value) {
  const entry = ({ key: k, colour, label }) => el("span", {},
    el("span", { class: "swatch", style: { background: `var(${colour})` } }), `${label} `, el("b", {}, value(k)));
  $(id).replaceChildren(...series.map(entry));
}

function errors(byReason) {
  const rows = Object.entries(byReason).sort((a, b) => b[1] - a[1]);
  const most = Math.max(...rows.map(([, n]) => n), 1);
  const row = ([reason, n]) => el("tr", { class: n ? null : "zero" },
    el("th", { scope: "row" }, reason),
    el("td", {}, n ? el("div", { class: "stack" }, el("i", { style: { width: `${(100 * n) / most}%` } })) : null),
    el("td", {}, count(n)));
  const some = rows.filter(([, n]) => n).slice(0, 6);
  const content = some.length
    ? el("table", { class: "reasons" }, el("tbody", {}, ...some.map(row)))
    : el("p", { class: "empty" }, "None. Homing has answered no request itself.");
  $("errors").replaceChildren(content);
}

/** What a chart says, in words. */
function labels(now) {
  const share = (k) => (now?.endpoints ?? []).toSorted((a, b) => b[k] - a[k]).slice(0, 5)
    .map((e) => `${e.name} ${percent(now[k] ? e[k] / now[k] : null)}`).join(", ");
  $("requests").setAttribute("aria-label", `Share of requests per endpoint, last five minutes. Now: ${share("requests") || "no traffic"}`);
  $("tokens").setAttribute("aria-label", `Share of prompt tokens per endpoint, last five minutes. Now: ${share("promptTokens") || "no traffic"}`);
  $("ttft").setAttribute("aria-label", `Time to first token. Median ${seconds(now?.p50)}, 90th percentile ${seconds(now?.p90)}, 99th ${seconds(now?.p99)}`);
  $("hits").setAttribute("aria-label", `Prefix hit rate. Predicted ${percent(now?.predicted)}, counted by the engines ${percent(now?.actual)}`);
}

