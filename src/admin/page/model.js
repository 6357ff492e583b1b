// From polled counters to rates, shares and percentiles. No DOM here: tests run it as it is.

/** Seconds over which rates and percentiles are taken. */
export const WINDOW_S = 15;
/** Seconds of history kept. */
export const KEPT_S = 300;

/** The history of one pool, as derived points. */
export class History {
  constructor() {
    this.samples = [];
    this.points = [];
  }

  /** Takes one answer of /stats for the pool named `name`. */
  push(stats, name) {
    const pool = stats.pools.find((of) => of.name === name);
    if (!pool) return;
    const sample = { t: stats.uptime_ms / 1000, pool, errors: sum(Object.values(stats.errors)) };
    const last = this.samples.at(-1);
    // The gateway was restarted: its counters began anew.
    if (last && sample.t < last.t) this.clear();
    if (last && sample.t === last.t) return;
    this.samples.push(sample);
    while (this.samples.length > 2 && sample.t - this.samples[1].t >= WINDOW_S) this.samples.shift();
    if (this.samples.length > 1) this.points.push(derive(this.samples[0], sample));
    while (this.points.length && sample.t - this.points[0].t > KEPT_S) this.points.shift();
  }

  clear() {
    this.samples.length = 0;
    this.points.length = 0;
  }

  get latest() {
    return this.points.at(-1);
  }
}

/** What happened between two samples of one pool. */
export function derive(from, to) {
  const elapsed = Math.max(to.t - from.t, 1e-3);
  const before = new Map(from.pool.endpoints.map((e) => [e.name, e]));
  const endpoints = to.pool.endpoints.map((e) => rates(before.get(e.name), e, elapsed));
  const totals = (key) => sum(endpoints.map((e) => e[key] ?? 0));
  const firstByte = difference(from.pool.first_byte.counts, to.pool.first_byte.counts);
  const decision = difference(from.pool.decision.counts, to.pool.decision.counts);
  const bounds = to.pool.first_byte.bounds_s;
  const at = (q) => quantile(bounds, firstByte, q);
  return {
    t: to.t,
    names: endpoints.map((e) => e.name),
    endpoints,
    requests: totals("requests"),
    promptTokens: totals("promptTokens"),
    generated: totals("generated"),
    predicted: ratio(totals("matched"), totals("blocks")),
    actual: ratio(totals("hits"), totals("queries")),
    p50: at(0.5),
    p90: at(0.9),
    p99: at(0.99),
    decision50: quantile(to.pool.decision.bounds_s, decision, 0.5),
    decision99: quantile(to.pool.decision.bounds_s, decision, 0.99),
    errors: Math.max(to.errors - from.errors, 0) / elapsed,
  };
}

/** One endpoint's rates per second. An endpoint that is new has none yet. */
function rates(before, now, elapsed) {
  const grown = (key) => {
    const [a, b] = [before?.[key], now[key]];
    // An engine that restarted counts from 0 again.
    return a == null || b == null || b < a ? null : b - a;
  };
  const rate = (key) => (grown(key) ?? 0) / elapsed;
  const [matched, blocks] = [grown("matched_blocks"), grown("prompt_blocks")];
  const [hits, queries] = [grown("engine_cache_hits_tokens"), grown("engine_cache_queries_tokens")];
  return {
    name: now.name,
    requests: rate("requests"),
    promptTokens: rate("prompt_blocks") * now.block_tokens,
    generated: rate("engine_generation_tokens"),
    matched, blocks, hits, queries,
    predicted: ratio(matched, blocks),
    actual: ratio(hits, queries),
    firstByte: ratio(grown("first_byte_sum_s"), grown("first_byte_count")),
  };
}

/** As PromQL's histogram_quantile: linear within a bucket. `counts` are per bucket, the last one unbounded. */
export function quantile(bounds, counts, q) {
  const total = sum(counts);
  if (!total) return null;
  let [below, lower] = [0, 0];
  for (let i = 0; i < bounds.length; i++) {
    if (counts[i] > 0 && below + counts[i] >= q * total) {
      return lower + ((bounds[i] - lower) * (q * total - below)) / counts[i];
    }
    below += counts[i];
    lower = bounds[i];
  }
  return lower;
}

export function ratio(part, whole) {
  return whole > 0 && part != null ? part / whole : null;
}

function difference(a, b) {
  return b.map((now, i) => Math.max(now - (a[i] ?? 0), 0));
}

export function sum(values) {
  let total = 0;
  for (const value of values) total += value;
  return total;
}
