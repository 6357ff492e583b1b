// The dashboard in headless Chromium, against a gateway with simulated servers behind it.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { open, tilesPerRow } from "./browser.js";
import { chat, load, start, text, until } from "./fleet.js";

let fleet, browser, page, complaints;

before(async () => {
  fleet = await start(3, { speed: 5 });
  ({ browser, page, complaints } = await open(fleet));
  load(fleet, 6);
});

after(async () => {
  await browser?.close();
  await fleet?.stop();
});

const tile = (id) => page.locator(`#tile-${id} .value`).innerText();
const row = (name) => page.locator("#endpoints tbody tr", { hasText: name });
const decisionsOf = async () => (await (await fetch(`${fleet.admin}/decisions?limit=1000`)).json());

test("shows the fleet and that it is ready", async () => {
  await page.locator("#endpoints tbody tr").nth(2).waitFor();
  assert.deepEqual(await page.locator("#endpoints tbody th").allInnerTexts().then((all) => all.map((t) => t.split(/\s/)[0])), fleet.names);
  assert.equal(await page.locator("#readiness").innerText(), "ready");
  assert.match(await tile("ready"), /^3\s*\/ 3$/);
});

test("shows traffic", async () => {
  await until(async () => parseFloat(await tile("rate")) > 0, "requests are shown");
  await until(async () => /\d+\s*%/.test(await tile("hit")), "a hit rate is shown");
  await until(async () => /\d/.test(await tile("ttft")), "a time to first token is shown");
  await until(async () => (await page.locator("#decisions button").count()) > 5, "decisions are listed");
  assert.match(await page.locator("#tokens").getAttribute("aria-label"), /pod-\w \d/);
});

test("key figures fill their rows", async () => assert.deepEqual(await tilesPerRow(page), [9]));

test("a decision is told in words and bars", async () => {
  await page.locator("#decisions button").nth(1).click();
  assert.equal(await page.locator("#follow").isChecked(), false);
  const bars = page.locator("#why .bars tbody tr");
  await bars.first().waitFor();
  assert.equal(await bars.count(), 3);
  assert.match(await page.locator("#why .why-text").innerText(), /best cost/);
  assert.match(await bars.first().locator("[role=img]").getAttribute("aria-label"), /wait .*prefill /);
});

test("explain shows where a body would go, and sends nothing", async () => {
  const system = text(424242, 2000);
  const messages = [{ role: "system", content: system }, { role: "user", content: "first" }];
  assert.equal(await chat(fleet, messages), 200);
  const mine = (d) => d.prompt_tokens > 1000 && d.kind === "cold";
  await until(async () => (await decisionsOf()).some(mine), "the request is a decision");
  await page.locator("#body").fill(JSON.stringify({ model: "sim", messages: [messages[0], { role: "user", content: "second" }] }));
  await page.getByRole("button", { name: "Explain", exact: true }).click();
  await page.locator("#explained .bars").waitFor();
  assert.match(await page.locator("#explained .why-text").innerText(), /holds \d+ tokens of the prompt/);
});

test("explain says what is wrong with a body", async () => {
  await page.locator("#body").fill("{ no json");
  await page.getByRole("button", { name: "Explain", exact: true }).click();
  await page.locator("#explained .fail").waitFor();
  assert.match(await page.locator("#explained .fail").innerText(), /no JSON/);
});

test("drain takes an endpoint out, undrain brings it back", async () => {
  await row("pod-b").getByRole("button", { name: "Drain pod-b", exact: true }).click();
  await row("pod-b").locator(".badge.draining").waitFor();
  const endpoints = await (await fetch(`${fleet.admin}/endpoints`)).json();
  assert.equal(endpoints.find((e) => e.name === "pod-b").state, "draining");
  await row("pod-b").getByRole("button", { name: "Undrain pod-b" }).click();
  await row("pod-b").locator(".badge.ready").waitFor();
});

test("draining the last ready endpoint asks first", async () => {
  for (const name of ["pod-a", "pod-b"]) {
    await row(name).getByRole("button", { name: `Drain ${name}`, exact: true }).click();
    await row(name).locator(".badge.draining").waitFor();
  }
  await row("pod-c").getByRole("button", { name: "Drain pod-c", exact: true }).click();
  await page.locator("#confirm").getByRole("button", { name: "Cancel" }).click();
  assert.equal(await row("pod-c").locator(".badge").innerText(), "ready");
  for (const name of ["pod-a", "pod-b"]) {
    await row(name).getByRole("button", { name: `Undrain ${name}` }).click();
    await row(name).locator(".badge.ready").waitFor();
  }
});

test("sorts and filters from the keyboard", async () => {
  const head = page.getByRole("button", { name: "Endpoint", exact: true });
  await head.focus();
  await page.keyboard.press("Enter");
  await page.keyboard.press("Enter");
  assert.match(await page.locator("#endpoints tbody th").first().innerText(), /pod-c/);
  await page.locator("#filter").fill("pod-b");
  assert.equal(await page.locator("#endpoints tbody tr:visible").count(), 1);
  await page.locator("#filter").fill("");
});

test("every control has a name, and every chart says what it shows", async () => {
  const nameless = await page.evaluate(() => [...document.querySelectorAll("button, select, input, textarea")]
    .filter((e) => !(e.innerText || e.ariaLabel || e.labels?.length)).map((e) => e.outerHTML));
  assert.deepEqual(nameless, []);
  for (const chart of await page.locator("canvas").all()) assert.ok(await chart.getAttribute("aria-label"));
});

test("a chart answers to the arrow keys", async () => {
  await page.locator("#tokens").focus();
  await page.keyboard.press("ArrowLeft");
  assert.match(await page.locator("#tip").innerText(), /pod-a/);
  await page.keyboard.press("Escape");
  assert.equal(await page.locator("#tip").isVisible(), false);
});

test("the theme button changes the colours and is remembered", async () => {
  const ground = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const before = await ground();
  await page.getByRole("button", { name: /light and dark/ }).click();
  const changed = await ground();
  assert.notEqual(changed, before);
  await page.reload();
  await page.locator("#endpoints tbody tr").first().waitFor();
  assert.equal(await ground(), changed);
});

test("a small screen does not scroll sideways", async () => {
  await page.setViewportSize({ width: 420, height: 800 });
  const wider = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  assert.ok(wider <= 0, `${wider} pixels too wide`);
  await page.setViewportSize({ width: 1360, height: 900 });
});

test("the page had nothing to complain of", () => assert.deepEqual(complaints, []));
