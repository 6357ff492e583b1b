// Pictures of what commands draw in a terminal: tmux is the terminal, aha makes HTML of its screen.

import { execFileSync } from "node:child_process";

const SESSION = `homing-picture-${process.pid}`;

function tmux(...args) {
  return execFileSync("tmux", ["-L", SESSION, ...args], { encoding: "utf8" });
}

/** Runs `command` for `seconds` in a terminal of `columns` by `rows`, and saves its screen as the picture `path`. */
export async function picture(browser, command, path, { columns, rows, seconds }) {
  const size = ["-x", String(columns), "-y", String(rows)];
  tmux("new-session", "-d", ...size, `sh -c '${command}; sleep 60'`);
  try {
    await new Promise((resolve) => setTimeout(resolve, seconds * 1000));
    const screen = tmux("capture-pane", "-e", "-p").trimEnd();
    const html = execFileSync("aha", ["--black", "--no-header"], { input: screen, encoding: "utf8" });
    const page = await browser.newPage({ deviceScaleFactor: 1 });
    const style = "margin: 0; padding: 12px; width: max-content; background: #111; color: #ddd; font: 14px/1.25 'DejaVu Sans Mono', monospace";
    await page.setContent(`<pre style="${style}">${html}</pre>`);
    await page.locator("pre").screenshot({ path });
    await page.close();
  } finally {
    tmux("kill-server");
  }
}
