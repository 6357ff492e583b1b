// 200 endpoints: the page keeps up.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { open } from "./browser.js";
import { load, start, until } from "./fleet.js";

let fleet, browser, page, complaints;

before(async () => {
  fleet = await start(200, { speed: 50 });
  ({ browser, page, complaints } = await open(fleet));
  load(fleet, 8);
});

after(async () => {
  await browser?.close();
  await fleet?.stop();
});

test("shows 200 endpoints with traffic, and stays responsive", async () => {
  await page.locator("#endpoints tbody tr").nth(199).waitFor();
  await until(async () => parseFloat(await page.locator("#tile-rate .value").innerText()) > 0, "requests are shown");
  await until(async () => (await page.locator("#decisions button").count()) > 5, "decisions are listed");
  const longest = await page.evaluate(() => new Promise((resolve) => {
    let [most, last] = [0, performance.now()];
    const until = last + 3000;
    const frame = (now) => {
      most = Math.max(most, now - last);
      last = now;
      if (now < until) requestAnimationFrame(frame);
      else resolve(most);
    };
    requestAnimationFrame(frame);
  }));
  // Generous: the machine may be busy with other things.
  assert.ok(longest < 1000, `a frame took ${longest} ms`);
  assert.deepEqual(complaints, []);
});
