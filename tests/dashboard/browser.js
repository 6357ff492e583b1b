// Headless Chromium on the dashboard; every complaint of the page is kept.

import { chromium } from "playwright-core";

const EXECUTABLE = process.env.CHROMIUM ?? "/usr/bin/chromium";

export async function open(fleet, options = {}) {
  // Chromium's own sandbox needs what a container's root seldom has.
  const browser = await chromium.launch({ executablePath: EXECUTABLE, args: ["--no-sandbox"] });
  const page = await browser.newPage({ viewport: { width: 1360, height: 900 }, ...options });
  // A busy machine is slow, not broken.
  page.setDefaultTimeout(120_000);
  const complaints = [];
  page.on("console", (message) => {
    if (["error", "warning"].includes(message.type())) complaints.push(message.text());
  });
  page.on("pageerror", (error) => complaints.push(error.message));
  await page.goto(`${fleet.admin}/`);
  return { browser, page, complaints };
}

/** How many key figures stand in each row. */
export function tilesPerRow(page) {
  return page.evaluate(() => {
    const tops = [...document.querySelectorAll("#tiles > div:not([hidden])")].map((tile) => tile.offsetTop);
    return [...new Set(tops)].map((top) => tops.filter((of) => of === top).length);
  });
}
