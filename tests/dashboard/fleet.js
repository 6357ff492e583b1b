// A fleet of simulated servers behind a gateway, and clients in front of it.

import { spawn } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";

export const HOMING = process.env.HOMING ?? new URL("../../target/debug/homing", import.meta.url).pathname;
const WORDS = "token cache block route prefix decode queue batch engine score".split(" ");

/** Starts `size` simulated servers, each `speed` times as fast as a real one, and a gateway; `more` is YAML of its pool. */
export async function start(size, { speed = 1, preset = "least-cost", more = [] } = {}) {
  const ports = await freePorts(size + 2);
  const [data, admin] = ports.splice(0, 2);
  const folder = mkdtempSync(join(tmpdir(), "homing-dashboard-"));
  const names = ports.map((_, i) => (size > 26 ? `pod-${String(i + 1).padStart(3, "0")}` : `pod-${String.fromCharCode(97 + i)}`));
  const config = join(folder, "homing.yaml");
  writeFileSync(config, yaml(data, admin, names, ports, preset, more));
  const listens = ports.flatMap((port) => ["--listen", `127.0.0.1:${port}`]);
  const processes = [
    run(["sim", "--speed", String(speed), ...listens]),
    run(["run", "--config", config]),
  ];
  const fleet = { admin: `http://127.0.0.1:${admin}`, data: `http://127.0.0.1:${data}`, names, loading: true };
  fleet.stop = async () => {
    fleet.loading = false;
    await Promise.all(processes.map(end));
    rmSync(folder, { recursive: true });
  };
  try {
    await until(async () => (await fetch(`${fleet.admin}/readyz`).catch(() => null))?.ok, "the gateway is ready");
  } catch (fault) {
    await fleet.stop();
    throw fault;
  }
  return fleet;
}

function yaml(data, admin, names, ports, preset, more) {
  const endpoints = names.map((name, i) => `      - { name: ${name}, url: "http://127.0.0.1:${ports[i]}" }`);
  return [
    `listen: 127.0.0.1:${data}`,
    `admin: { listen: "127.0.0.1:${admin}" }`,
    "access_log: { to: off }",
    "pools:",
    "  - name: default",
    `    scheduling: { preset: ${preset} }`,
    `    metrics: { interval: ${names.length > 20 ? "500ms" : "50ms"} }`,
    ...more.map((line) => `    ${line}`),
    "    endpoints:",
    ...endpoints,
    "",
  ].join("\n");
}

function run(args) {
  const child = spawn(HOMING, args, { stdio: ["ignore", "ignore", "pipe"], env: { ...process.env, HOMING_LOG: "error" } });
  child.stderr.pipe(process.stderr);
  // A test that throws must not leave servers behind.
  process.once("exit", () => child.kill("SIGKILL"));
  return child;
}

function end(child) {
  if (child.exitCode != null || child.signalCode != null) return null;
  return new Promise((resolve) => {
    child.once("exit", resolve);
    child.kill("SIGKILL");
  });
}

async function freePorts(count) {
  const servers = await Promise.all(Array.from({ length: count }, () => new Promise((resolve) => {
    const server = createServer().listen(0, "127.0.0.1", () => resolve(server));
  })));
  const ports = servers.map((server) => server.address().port);
  await Promise.all(servers.map((server) => new Promise((resolve) => server.close(resolve))));
  return ports;
}

/** Waits until `condition` holds. */
export async function until(condition, what, seconds = 180) {
  const limit = Date.now() + seconds * 1000;
  while (!(await condition())) {
    if (Date.now() > limit) throw new Error(`waited in vain until ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

/** Sends one chat request and reads the whole answer. */
export async function chat(fleet, messages, maxTokens = 40) {
  const body = { model: "sim", messages, max_tokens: maxTokens, stream: true, stream_options: { include_usage: true } };
  const headers = { "content-type": "application/json" };
  const answer = await fetch(`${fleet.data}/v1/chat/completions`, { method: "POST", headers, body: JSON.stringify(body) });
  await answer.text();
  return answer.status;
}

/** Users that chat in turns, each on one of a few long system prompts, until the fleet stops. */
export function load(fleet, users, { systems = 7, systemTokens = 3000, thinkMs = 400 } = {}) {
  const user = async (i) => {
    while (fleet.loading) {
      const messages = [{ role: "system", content: text(1000 + (i % systems), systemTokens) }];
      for (let turn = 0; turn < 6 && fleet.loading; turn++) {
        messages.push({ role: "user", content: text(Math.floor(Math.random() * 1e9), 150) });
        await chat(fleet, messages, 60).catch(() => null);
        messages.push({ role: "assistant", content: "An answer." });
        await new Promise((resolve) => setTimeout(resolve, Math.random() * thinkMs));
      }
    }
  };
  for (let i = 0; i < users; i++) user(i);
}

/** About `tokens` tokens of text that depend on `seed` alone. */
export function text(seed, tokens) {
  const words = [];
  for (let i = 0; i < tokens; i++) {
    seed = (seed * 1103515245 + 12345) & 0x7fffffff;
    words.push(WORDS[(seed >> 16) % WORDS.length]);
  }
  return words.join(" ");
}
