// The arithmetic of rates and percentiles, checked by hand. No browser.

import assert from "node:assert/strict";
import { test } from "node:test";
import { derive, History, quantile } from "../../src/admin/page/model.js";

const endpoint = (name, of = {}) => ({
  name, block_tokens: 16, requests: 0, prompt_blocks: 0, matched_blocks: 0, first_byte_sum_s: 0, first_byte_count: 0,
  engine_cache_hits_tokens: null, engine_cache_queries_tokens: null, engine_generation_tokens: null, ...of,
});
const buckets = (counts) => ({ bounds_s: [0.1, 0.2, 0.4], counts });
const stats = (seconds, endpoints, firstByte = [0, 0, 0, 0]) => ({
  uptime_ms: seconds * 1000,
  errors: {},
  pools: [{ name: "p", endpoints, first_byte: buckets(firstByte), decision: buckets([0, 0, 0, 0]) }],
});

test("rates, hit rates and means are differences over the time between", () => {
  const from = { t: 10, errors: 1, pool: stats(10, [endpoint("a", { requests: 5 })]).pools[0] };
  const now = endpoint("a", {
    requests: 25, prompt_blocks: 100, matched_blocks: 75, first_byte_sum_s: 4, first_byte_count: 20,
  });
  const point = derive(from, { t: 20, errors: 6, pool: stats(20, [now], [10, 10, 0, 0]).pools[0] });
  assert.equal(point.requests, 2);
  assert.equal(point.promptTokens, 160);
  assert.equal(point.predicted, 0.75);
  assert.equal(point.endpoints[0].firstByte, 0.2);
  assert.equal(point.errors, 0.5);
  assert.equal(point.p50, 0.1);
  assert.ok(Math.abs(point.p90 - 0.18) < 1e-12);
});

test("an engine that restarted has no rate instead of a negative one", () => {
  const from = { t: 0, errors: 0, pool: stats(0, [endpoint("a", { engine_generation_tokens: 900 })]).pools[0] };
  const to = { t: 1, errors: 0, pool: stats(1, [endpoint("a", { engine_generation_tokens: 3 })]).pools[0] };
  assert.equal(derive(from, to).generated, 0);
});

test("unknown is not zero", () => {
  const pool = stats(0, [endpoint("a")]).pools[0];
  const point = derive({ t: 0, errors: 0, pool }, { t: 1, errors: 0, pool });
  assert.equal(point.actual, null);
  assert.equal(point.p50, null);
});

test("quantiles lie within their bucket, and at the last bound beyond it", () => {
  assert.equal(quantile([1, 2, 4], [0, 4, 0, 0], 0.5), 1.5);
  assert.equal(quantile([1, 2, 4], [0, 0, 0, 9], 0.5), 4);
});

test("history starts anew when the gateway did, and forgets what is old", () => {
  const history = new History();
  for (let t = 0; t <= 400; t++) history.push(stats(t, [endpoint("a", { requests: t })]), "p");
  assert.equal(history.points[0].t, 100);
  assert.equal(history.latest.requests, 1);
  history.push(stats(1, [endpoint("a")]), "p");
  assert.equal(history.points.length, 0);
});
