// Polls the admin port once a second and hands what it says to the parts of the page.

import { colours } from "./charts.js";
import * as decisions from "./decisions.js";
import * as fleet from "./fleet.js";
import { duration, el, setText } from "./format.js";
import { History } from "./model.js";
import * as overview from "./overview.js";

const $ = (id) => document.getElementById(id);
const POLL_MS = 1000;
/** Decisions fetched per poll, and candidates of each. */
const DECISIONS = 30;
const CANDIDATES = 10;
const EXAMPLE = {
  model: "",
  messages: [{ role: "system", content: "You are a helpful assistant." }, { role: "user", content: "Where will this go?" }],
  stream: true,
};

const histories = new Map();
let paused = false;
let poolName = null;
let stats = null;

async function fetchJson(path, options = {}) {
  const answer = await fetch(path, { cache: "no-store", ...options });
  const value = await answer.json();
  if (!answer.ok) throw new Error(value.error?.message ?? `status ${answer.status}`);
  return value;
}

async function poll() {
  const started = performance.now();
  if (!paused && !document.hidden) {
    try {
      const [newStats, newest] = await Promise.all([
        fetchJson("/stats"),
        fetchJson(`/decisions?limit=${DECISIONS}&candidates=${CANDIDATES}`),
      ]);
      stats = newStats;
      $("lost").hidden = true;
      remember();
      show();
      decisions.show(newest.filter((d) => d.pool === poolName));
    } catch (fault) {
      lost(fault);
    }
  }
  setTimeout(poll, Math.max(POLL_MS - (performance.now() - started), 100));
}

function lost(fault) {
  // Told once, not every second: a screen reader would read it each time.
  if (!$("lost").hidden) return;
  setText($("lost"), `Homing does not answer (${fault.message}). What you see is old; trying again.`);
  $("lost").hidden = false;
}

function remember() {
  for (const pool of stats.pools) {
    if (!histories.has(pool.name)) histories.set(pool.name, new History());
    histories.get(pool.name).push(stats, pool.name);
  }
}

function show() {
  choosePool();
  const pool = stats.pools.find((of) => of.name === poolName);
  header(pool);
  if (!pool) return;
  const history = histories.get(pool.name);
  const colourOf = colours(pool.endpoints.map((e) => e.name));
  overview.show(stats, pool, history, colourOf);
  fleet.show(pool, history.latest, colourOf, stats.index_bytes);
}

function choosePool() {
  const names = stats.pools.map((pool) => pool.name);
  if (!names.includes(poolName)) poolName = names[0] ?? null;
  const select = $("pool");
  if ([...select.options].map((o) => o.value).join("\n") !== names.join("\n")) {
    select.replaceChildren(...names.map((name) => el("option", {}, name)));
    select.value = poolName;
  }
  $("pool-choice").hidden = names.length < 2;
}

function header(pool) {
  setText($("version"), stats.version);
  setText($("uptime"), `up ${duration(stats.uptime_ms)}`);
  setText($("policy"), pool?.policy ?? "");
  const ready = stats.pending.length === 0;
  setText($("readiness"), ready ? "ready" : `not ready: ${stats.pending[0]}`);
  $("readiness").title = stats.pending.join("\n");
  $("readiness").className = `badge ${ready ? "ready" : "unready"}`;
  document.title = ready ? "Homing" : "Homing – not ready";
}

async function changeDraining(endpoint, draining) {
  const pool = stats.pools.find((of) => of.name === poolName);
  const othersReady = pool.endpoints.some((e) => e.name !== endpoint && e.state === "ready");
  if (draining && !othersReady && !(await confirmed(`${endpoint} is the only endpoint that takes requests. Without it, pool ${poolName} answers 503.`))) return;
  const verb = draining ? "drain" : "undrain";
  try {
    await fetchJson(`/endpoints/${poolName}/${endpoint}/${verb}`, { method: "POST", headers: { "content-type": "application/json" } });
    setText($("said"), draining ? `${endpoint} takes no new requests.` : `${endpoint} takes requests again.`);
    stats = await fetchJson("/stats");
    show();
  } catch (fault) {
    setText($("lost"), `Cannot ${verb} ${endpoint}: ${fault.message}`);
    $("lost").hidden = false;
  }
}

function confirmed(text) {
  const dialog = $("confirm");
  setText($("confirm-text"), text);
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true }));
}

async function explainBody(event) {
  event.preventDefault();
  const body = $("body").value;
  let content;
  try {
    const headers = { "content-type": "application/json" };
    const decision = await fetchJson(`/explain?path=${$("path").value}`, { method: "POST", headers, body });
    content = [unreadable(body), ...decisions.explain(decision)].filter(Boolean);
  } catch (fault) {
    content = [el("p", { class: "why-text fail" }, fault.message)];
  }
  $("explained").replaceChildren(...content);
}

/** What an operator should know of a body that is no JSON: Homing passes it on, but cannot match its prompt. */
function unreadable(body) {
  try {
    JSON.parse(body);
    return null;
  } catch (fault) {
    return el("p", { class: "why-text fail" }, `This body is no JSON (${fault.message}). It would go by load alone.`);
  }
}

function theme(choice) {
  if (choice) document.documentElement.dataset.theme = choice;
  if (stats) show();
}

/** Storage may be forbidden; the choice then lasts as long as the page. */
function stored(write) {
  try {
    if (write) localStorage.setItem("homing-theme", write);
    return localStorage.getItem("homing-theme");
  } catch {
    return null;
  }
}

const prefersDark = matchMedia("(prefers-color-scheme: dark)");
prefersDark.addEventListener("change", () => theme());
$("theme").addEventListener("click", () => {
  const dark = (document.documentElement.dataset.theme ?? (prefersDark.matches ? "dark" : "light")) === "dark";
  stored(dark ? "light" : "dark");
  theme(dark ? "light" : "dark");
});
$("pause").addEventListener("click", () => {
  paused = !paused;
  $("pause").setAttribute("aria-pressed", String(paused));
  setText($("pause"), paused ? "Resume" : "Pause");
});
$("pool").addEventListener("change", () => {
  poolName = $("pool").value;
  show();
});
$("explain").addEventListener("submit", explainBody);
$("body").value = JSON.stringify(EXAMPLE, null, 2);
theme(stored());
fleet.start(changeDraining);
poll();
