// Takes the pictures of docs/screenshots: the dashboard in light and dark with 3 and 50 endpoints, `homing top`, and what
// `homing check` says of a faulty file.

import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { open } from "./browser.js";
import { HOMING, load, start, text } from "./fleet.js";
import { picture } from "./terminal.js";

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
    shrink(path);
    if (size === 3 && colorScheme === "light") await terminals(browser, fleet);
    await browser.close();
  }
  await fleet.stop();
}

async function terminals(browser, fleet) {
  const top = `${FOLDER}homing-top.png`;
  await picture(browser, `${HOMING} top --admin ${fleet.admin}`, top, { columns: 120, rows: 30, seconds: 12 });
  shrink(top);
  const folder = mkdtempSync(join(tmpdir(), "homing-check-"));
  const faulty = readFileSync(new URL("../fixtures/config/broken/first-try.yaml", import.meta.url), "utf8");
  writeFileSync(join(folder, "homing.yaml"), faulty.replaceAll(" # <-- here", ""));
  const check = `${FOLDER}homing-check.png`;
  await picture(browser, `cd ${folder} && ${HOMING} check --config homing.yaml`, check, { columns: 120, rows: 45, seconds: 2 });
  shrink(check);
  rmSync(folder, { recursive: true });
}

function shrink(path) {
  execFileSync("pngquant", ["--force", "--ext", ".png", "--quality", "50-90", path]);
}
