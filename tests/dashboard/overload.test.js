// More prefill than two slow servers can take: who waits in the gateway is shown.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { open, tilesPerRow } from "./browser.js";
import { load, start, until } from "./fleet.js";

let fleet, browser, page, complaints;

before(async () => {
  const more = ["overload: { queue: { hold_above: 50ms }, working_set: { enabled: true } }"];
  fleet = await start(2, { speed: 0.3, more });
  ({ browser, page, complaints } = await open(fleet));
  load(fleet, 12, { systems: 50, thinkMs: 50 });
});

after(async () => {
  await browser?.close();
  await fleet?.stop();
});

const tile = (id) => page.locator(`#tile-${id} .value`).innerText();

test("shows how many requests wait, and since when", async () => {
  await until(async () => parseFloat(await tile("queue")) > 0, "waiting requests are shown");
  assert.match(await page.locator("#tile-queue .note").innerText(), /\d/);
});

test("shows the working set, of the fleet and of each endpoint", async () => {
  await until(async () => /\d/.test(await tile("working-set")), "the working set is shown");
  const heads = await page.locator("#endpoints thead th").allInnerTexts();
  const cell = page.locator("#endpoints tbody tr").first().locator("th, td").nth(heads.findIndex((head) => /Working set/.test(head)));
  await until(async () => /\d/.test(await cell.innerText()), "the endpoint's is shown");
});

test("key figures fill their rows", async () => assert.deepEqual(await tilesPerRow(page), [5, 5]));

test("the page had nothing to complain of", () => assert.deepEqual(complaints, []));
