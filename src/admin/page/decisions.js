// Live decisions, and what one of them weighed: each candidate's terms as a bar, with the reason in words.

import { clock, count, el, NONE, percent, seconds } from "./format.js";
import { ratio } from "./model.js";

const $ = (id) => document.getElementById(id);
/** Candidates shown until more are asked for. */
const SHOWN = 10;
const TERM_COLOURS = ["#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#a463f2", "#ff8ab7", "#3ca951", "#9c6b4e"];
/** What a term stands for; a plugin's term is its weighted score. */
const TERM_HELP = {
  wait: "waiting behind uncached tokens already sent there",
  prefill: "prefill of the part of the prompt that is not cached there",
  drag: "running decodes that share the engine's steps until the first token",
  eviction: "part of the price of the cached blocks that the miss pushes out",
  overflow: "the KV cache would run over",
  decode: "part of the request's own decode time",
};

let decisions = [];
let selected = null;
let drawn = "";

$("decisions").addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  selected = button.dataset.id;
  $("follow").checked = false;
  list();
  detail();
});
$("follow").addEventListener("change", () => {
  list();
  detail();
});

/** Takes the newest decisions of the pool, newest first. */
export function show(newest) {
  decisions = newest;
  // A list that moves under the pointer cannot be clicked.
  if ($("decisions").matches(":hover") && !$("follow").checked) return;
  list();
  detail();
}

function current() {
  if ($("follow").checked || !selected) return decisions[0];
  return decisions.find((d) => d.request_id === selected) ?? null;
}

function list() {
  const at = current()?.request_id;
  const focused = document.activeElement?.dataset?.id;
  const row = (d) => {
    const matched = ratio(d.predicted_cached_tokens, d.prompt_tokens);
    const failed = d.status >= 400 || !d.endpoint;
    return el("li", {}, el("button", { type: "button", "data-id": d.request_id, "aria-current": String(d.request_id === at) },
      el("span", { class: "dim" }, clock(d.at_unix_ms)),
      el("span", { class: `kind ${d.kind}` }, d.kind, d.kind === "warm" ? ` ${percent(matched)}` : ""),
      el("span", { class: "dim", title: d.model }, d.model || d.path_kind),
      el("span", { class: failed ? "fail" : null }, failed ? `${d.endpoint ?? "none"} ${d.status}` : d.endpoint),
      el("span", {}, seconds(d.ttfb_ms == null ? null : d.ttfb_ms / 1000))));
  };
  const empty = el("li", { class: "empty" }, "None yet.");
  $("decisions").replaceChildren(...(decisions.length ? decisions.map(row) : [empty]));
  if (focused) $("decisions").querySelector(`[data-id="${CSS.escape(focused)}"]`)?.focus();
}

function detail() {
  const decision = current();
  if (!decision) {
    if (decisions.length) return; // the selected one has left the list: keep what is shown
    $("why").replaceChildren(el("p", { class: "empty" }, "No request has come yet."));
    return;
  }
  if (drawn === decision.request_id) return;
  drawn = decision.request_id;
  $("why-of").textContent = `request ${decision.request_id}`;
  $("why").replaceChildren(...explain(decision));
}

/** A decision as elements; of a finished request also what became of it. */
export function explain(decision) {
  const facts = [
    ["prompt", `${count(decision.prompt_tokens)} tokens`],
    ["rule", decision.policy],
    ["kind", decision.kind],
  ];
  if (decision.status != null) {
    facts.push(["predicted cached", `${count(decision.predicted_cached_tokens)} tokens`]);
    facts.push(["engine reported", decision.reported_cached_tokens == null ? "nothing" : `${count(decision.reported_cached_tokens)} tokens`]);
    facts.push(["tries", decision.attempts], ["status", decision.status]);
    facts.push(["TTFT", decision.ttfb_ms == null ? NONE : seconds(decision.ttfb_ms / 1000)]);
  } else {
    facts.push(["pool", decision.pool]);
  }
  return [
    el("p", { class: "why-text" }, sentence(decision)),
    el("p", { class: "facts" }, ...facts.map(([name, value]) => el("span", {}, `${name} `, el("b", {}, String(value))))),
    candidates(decision),
  ];
}

function sentence(decision) {
  const sentences = [decision.why, lead(decision)];
  if (decision.endpoint && decision.chosen && decision.endpoint !== decision.chosen) {
    sentences.push(`That try failed, so ${decision.endpoint} answered`);
  }
  return sentences.filter(Boolean).join(". ") + ".";
}

/** The term that decided between the best candidate and the next. */
function lead(decision) {
  const [best, next] = decision.candidates;
  if (!best || !next) return null;
  const sign = decision.lower_is_better ? 1 : -1;
  const gains = termNames(decision).map((name) => [name, sign * (next.terms[name] - best.terms[name])]);
  const [name, gain] = gains.reduce((most, each) => (each[1] > most[1] ? each : most), ["", 0]);
  if (!name) return null;
  return `What decided: ${name}, ${unit(decision)(gain)} ${decision.lower_is_better ? "less" : "more"} than on ${next.endpoint}`;
}

/** How a decision's numbers are written: some rules count in seconds. */
function unit(decision) {
  return ["least-cost", "sticky"].includes(decision.policy) ? seconds : count;
}

function candidates(decision) {
  const box = el("div");
  const draw = (limit) => {
    const shown = decision.candidates.slice(0, limit);
    const more = decision.candidates.length - shown.length;
    const unseen = (decision.candidates_total ?? 0) - decision.candidates.length;
    box.replaceChildren(legend(decision), table(decision, shown));
    if (more > 0) {
      const button = el("button", { type: "button", class: "more" }, `Show ${more} more`);
      button.addEventListener("click", () => draw(Infinity));
      box.append(button);
    } else if (unseen > 0) {
      box.append(el("p", { class: "dim more" }, `and ${unseen} more candidates`));
    }
  };
  draw(SHOWN);
  return box;
}

const termNames = (decision) => Object.keys(decision.candidates[0]?.terms ?? {});
const termColour = (i) => TERM_COLOURS[i % TERM_COLOURS.length];

function legend(decision) {
  const item = (name, i) => el("li", { title: TERM_HELP[name] ?? "weight x score" },
    el("span", { class: "swatch", style: { background: termColour(i) } }), name);
  return el("ul", { class: "terms", "aria-label": "Terms" }, ...termNames(decision).map(item));
}

function table(decision, shown) {
  const names = termNames(decision);
  const length = (c) => names.reduce((all, name) => all + Math.max(c.terms[name], 0), 0);
  const longest = Math.max(...shown.map(length), 1e-12);
  const value = unit(decision);
  const measure = decision.lower_is_better ? "Cost (less is better)" : "Score (more is better)";
  const bar = (c) => {
    const words = names.map((name) => `${name} ${value(c.terms[name])}`).join(", ");
    const parts = names.map((name, i) => el("i", { title: `${name}: ${value(c.terms[name])}`,
      style: { width: `${(100 * Math.max(c.terms[name], 0)) / longest}%`, background: termColour(i) } }));
    return el("div", { class: "stack", role: "img", "aria-label": words, title: words }, ...parts);
  };
  const row = (c) => el("tr", { class: c.endpoint === decision.chosen ? "chosen" : null },
    el("th", { scope: "row" }, (c.endpoint === decision.chosen ? "✓ " : "") + c.endpoint),
    el("td", {}, bar(c)),
    el("td", {}, value(c.total)),
    el("td", {}, percent(ratio(c.matched_tokens, decision.prompt_tokens))));
  const aside = ([reason, of]) => el("tr", { class: "aside" }, el("th", { scope: "row" }, "set aside"),
    el("td", { colspan: "3" }, `${reason}: ${listed(of.map((f) => f.endpoint))}`));
  const reasons = Object.entries(Object.groupBy(decision.filtered, (f) => f.reason));
  const head = ["Candidate", measure, "Total", "Cached"].map((title) => el("th", { scope: "col" }, title));
  return el("table", { class: "bars" }, el("thead", {}, el("tr", {}, ...head)),
    el("tbody", {}, ...shown.map(row), ...reasons.map(aside)));
}

/** The first few of many names. */
function listed(all) {
  const first = all.slice(0, SHOWN).join(", ");
  return all.length > SHOWN ? `${first} and ${all.length - SHOWN} more` : first;
}
