#!/usr/bin/env python3
"""The two promises, asked of a real Prometheus server that scrapes the pods and the gateway.

Starts three simulated pods, a gateway and Prometheus on free loopback ports, sends the experiments' prompts through the
gateway, and asks Prometheus the questions that an operator would ask. Exits 0 only when both promises hold.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request

PODS = ["pod-a", "pod-b", "pod-c"]
BLOCK_TOKENS = 128
SCRAPE_INTERVAL_S = 1
# Of a pod; of the last one all reasons together.
COUNTERS = ["vllm:prompt_tokens_total", "vllm:prefix_cache_hits_total", "vllm:request_success_total"]
REPO = pathlib.Path(__file__).resolve().parents[2]


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def get(url, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.read(), answer.headers


def wait_for(what, condition, limit_s=60):
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        try:
            if condition():
                return
        except OSError:
            pass
        time.sleep(0.1)
    sys.exit(f"{what}: not within {limit_s} s")


class Fleet:
    def __init__(self, homing, folder):
        self.gateway, self.admin, self.prometheus, *self.pods = free_ports(3 + len(PODS))
        self.processes = []
        self.start_pods(homing)
        self.start_gateway(homing, folder)
        self.start_prometheus(folder)

    def spawn(self, *command, **kwargs):
        self.processes.append(subprocess.Popen(command, **kwargs))

    def start_pods(self, homing):
        listeners = []
        for name, port in zip(PODS, self.pods):
            listeners += ["--listen", f"127.0.0.1:{port}", "--name", name]
        self.spawn(homing, "sim", "--model", "demo", "--block-size", str(BLOCK_TOKENS), *listeners)

    def start_gateway(self, homing, folder):
        endpoints = [{"name": name, "url": f"http://127.0.0.1:{port}"} for name, port in zip(PODS, self.pods)]
        config = {
            "listen": f"127.0.0.1:{self.gateway}",
            "admin": {"listen": f"127.0.0.1:{self.admin}"},
            "response_headers": "always",
            "access_log": {"to": "off"},
            "pools": [{"name": "demo", "endpoints": endpoints}],
        }
        path = folder / "homing.yaml"
        path.write_text(json.dumps(config))  # JSON is YAML
        self.spawn(homing, "run", "--config", str(path))

    def start_prometheus(self, folder):
        targets = [{"targets": [f"127.0.0.1:{port}"], "labels": {"name": name}} for name, port in zip(PODS, self.pods)]
        config = {
            "global": {"scrape_interval": f"{SCRAPE_INTERVAL_S}s"},
            "scrape_configs": [
                {
                    "job_name": "pods",
                    "static_configs": targets,
                    "relabel_configs": [{"source_labels": ["name"], "target_label": "pod"}],
                },
                {"job_name": "homing", "static_configs": [{"targets": [f"127.0.0.1:{self.admin}"]}]},
            ],
        }
        path = folder / "prometheus.yml"
        path.write_text(json.dumps(config))
        self.spawn(
            "prometheus",
            f"--config.file={path}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.prometheus}",
            "--log.level=error",
            stdout=subprocess.DEVNULL,
        )

    def wait_until_ready(self):
        def ready():
            endpoints = json.loads(get(f"http://127.0.0.1:{self.admin}/endpoints")[0])
            return sum(endpoint["state"] == "ready" for endpoint in endpoints) == len(PODS)

        wait_for("gateway", ready)
        wait_for("prometheus", lambda: len(self.query("up == 1")) == len(PODS) + 1)

    def complete(self, prompt):
        body = {"model": "demo", "prompt": prompt, "max_tokens": 8}
        _, headers = get(f"http://127.0.0.1:{self.gateway}/v1/completions", body)
        return headers["x-homing-endpoint"]

    def query(self, expression):
        url = f"http://127.0.0.1:{self.prometheus}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
        return json.loads(get(url)[0])["data"]["result"]

    def by_pod(self, expression):
        return {series["metric"]["pod"]: float(series["value"][1]) for series in self.query(expression)}

    def counters(self):
        """What Prometheus has of the pods now: the sum over pods of prompt tokens."""
        return sum(self.by_pod("sum by(pod) (vllm:prompt_tokens_total)").values())

    def pod_counters(self):
        total = 0
        for port in self.pods:
            for line in get(f"http://127.0.0.1:{port}/metrics")[0].decode().splitlines():
                if line.startswith("vllm:prompt_tokens_total"):
                    total += float(line.rsplit(" ", 1)[1])
        return total

    def settle(self):
        """Waits until Prometheus has scraped what the pods have counted."""
        wait_for("scrape", lambda: self.counters() == self.pod_counters())
        time.sleep(2 * SCRAPE_INTERVAL_S)  # increase() needs a sample on each side of the change

    def stop(self):
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            process.wait(timeout=30)


def show(title, window, fleet):
    tokens = fleet.by_pod(f"sum by(pod) (increase(vllm:prompt_tokens_total[{window}]))")
    hits = fleet.by_pod(f"sum by(pod) (increase(vllm:prefix_cache_hits_total[{window}]))")
    print(f"\n{title}\n   {'pod':<8}{'prompt tokens':>16}{'prefix cache hits':>20}   (increase over {window})")
    for pod in PODS:
        print(f"   {pod:<8}{tokens.get(pod, 0):>16.2f}{hits.get(pod, 0):>20.2f}")
    return tokens, hits


def verdict(holds, promise):
    print(("HOLDS   " if holds else "BROKEN  ") + promise)
    return holds


def experiment_a(fleet, window):
    prompt = "Summarise the notes below for somebody who was not there." + " and so on" * 64
    home = collections.Counter(fleet.complete(prompt) for _ in range(6))
    fleet.settle()
    _, hits = show("A. One prompt longer than a block, 6 times", window, fleet)
    warm = [pod for pod, value in hits.items() if value > 0]
    counted = fleet.by_pod("sum by(pod) (vllm:prefix_cache_hits_total) > 0")
    holds = len(home) == 1 and warm == list(home) and list(counted.values()) == [5 * BLOCK_TOKENS]
    return verdict(holds, f"a known prompt is pulled home: {dict(home)}, hit tokens {counted}")


def experiment_b(fleet, window):
    prompts = [f"Write one sentence about topic number {n} in cloud computing." for n in range(30)]
    count = lambda name: fleet.by_pod(f"sum by(pod) ({name})")
    before = [count(name) for name in COUNTERS]
    with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
        served = collections.Counter(pool.map(fleet.complete, prompts))
    fleet.settle()
    show("B. 30 distinct short prompts at once", window, fleet)
    grown = [{pod: count(name)[pod] - old[pod] for pod in PODS} for name, old in zip(COUNTERS, before)]
    tokens, hits, requests = grown
    print(f"   prompt tokens of B alone: {tokens}")
    even = all(served[pod] == requests[pod] == len(prompts) / len(PODS) for pod in PODS)
    # The prompts are about equally long.
    even = even and max(tokens.values()) - min(tokens.values()) <= 0.1 * min(tokens.values())
    return verdict(even and not any(hits.values()), f"newcomers spread: {dict(sorted(served.items()))}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--window", type=int, default=300, help="window of increase(), in seconds (default 300)")
    parser.add_argument("--homing", default=os.environ.get("HOMING", str(REPO / "target/debug/homing")))
    arguments = parser.parse_args()
    if not shutil.which("prometheus"):
        sys.exit("prometheus is missing: apt-get install prometheus")
    if not pathlib.Path(arguments.homing).exists():
        sys.exit(f"{arguments.homing} is missing: cargo build")
    window = f"{arguments.window}s"
    with tempfile.TemporaryDirectory() as folder:
        fleet = Fleet(arguments.homing, pathlib.Path(folder))
        try:
            fleet.wait_until_ready()
            time.sleep(2 * SCRAPE_INTERVAL_S)  # the counters' start, for increase()
            holds = [experiment_a(fleet, window), experiment_b(fleet, window)]
            decisions = fleet.query("sum by(endpoint, kind) (homing_decisions_total) > 0")
            print("\nThe gateway's own count of decisions:")
            for series in decisions:
                print(f"   {series['metric']['endpoint']:<8}{series['metric']['kind']:<8}{series['value'][1]:>6}")
        finally:
            fleet.stop()
    sys.exit(0 if all(holds) else 1)


if __name__ == "__main__":
    main()
