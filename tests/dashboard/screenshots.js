// Takes the pictures of docs/screenshots: light and dark, 3 and 50 endpoints.

import { execFileSync } from "node:child_process";
import { open } from "./browser.js";
import { load, start, text } from "./fleet.js";

const FOLDER = new URL("../../docs/screenshots/", import.meta.url).pathname;
const SECONDS = Number(process.env.SECONDS ?? 90);

// Both may be narrowed: screenshots.js 50 dark
const SIZES = process.argv[2] ? [Number(process.argv[2])] : [3, 50];
const SCHEMES = process.argv[3] ? [process.argv[3]] : ["light", "dark"];

for (const size of SIZES) {
  const users = size === 3 ? 14 : 16;
  const fleet = await start(size, { speed: 1 });
  load(fleet, users, { systems: size === 3 ? 7 : 30, systemTokens: 6000, thinkMs: size === 3 ? 1500 : 5000 });
  for (const colorScheme of SCHEMES) {
    const { browser, page } = await open(fleet, { colorScheme, viewport: { width: 1360, height: 900 } });
    await page.locator("#body").fill(JSON.stringify({ model: "sim", messages: [{ role: "system", content: text(1001, 6000) }] }, null, 1));
    await page.waitForTimeout((SECONDS * 1000) / (colorScheme === "light" ? 1 : 1.5));
    await page.locator("#explain").evaluate((form) => form.requestSubmit());
    await page.locator("#explained .bars").waitFor();
    await page.locator("#follow").uncheck();
    await page.evaluate(() => scrollTo(0, 0));
    const path = `${FOLDER}dashboard-${size}-${colorScheme}.png`;
    await page.screenshot({ path, fullPage: true });
    execFileSync("pngquant", ["--force", "--ext", ".png", "--quality", "50-90", path]);
    await browser.close();
  }
  await fleet.stop();
}
