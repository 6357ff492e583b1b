"""Processes of the test: vLLM servers with KV events, and the gateway in front of them, all on loopback."""

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request

MODEL = "tiny"
ADAPTER = "adapter"
START_S, STOP_S = 600, 60


def free_ports(count=1):
    """The first of so many free ports in a row."""
    while True:
        with contextlib.ExitStack() as held:
            try:
                first = held.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
                for port in range(first + 1, first + count):
                    held.enter_context(socket.create_server(("127.0.0.1", port)))
                return first
            except OSError:
                continue


def http(method, url, body=None, timeout=120):
    """Status, headers and JSON (or text) of an answer; an error status is an answer too."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            status, headers, answer = response.status, response.headers, response.read()
    except urllib.error.HTTPError as error:
        status, headers, answer = error.code, error.headers, error.read()
    try:
        return status, headers, json.loads(answer)
    except ValueError:
        return status, headers, answer.decode(errors="replace")


def until(what, holds, seconds=30.0, every=0.02):
    end = time.monotonic() + seconds
    while not (result := holds()):
        if time.monotonic() > end:
            raise TimeoutError(f"not within {seconds} s: {what}")
        time.sleep(every)
    return result


class Server:
    """One vLLM server."""

    def __init__(self, root, name, block=128, kv_tokens=65536, replay=True, ranks=1, arguments=(), environment=None):
        self.root, self.name, self.block, self.ranks = pathlib.Path(root), name, block, ranks
        # Data-parallel rank N publishes on the port + N.
        self.port, self.events = free_ports(), free_ports(ranks)
        self.replay = free_ports(ranks) if replay else None
        self.arguments, self.environment = list(arguments), environment or {}
        # Two layers, two KV heads of 32 elements, keys and values, four bytes each.
        self.kv_bytes = kv_tokens * 2 * 2 * 32 * 2 * 4
        self.process = None

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def start(self):
        events = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": f"tcp://*:{self.events}",
                  "topic": f"kv@{self.name}"}
        if self.replay:
            events["replay_endpoint"] = f"tcp://*:{self.replay}"
        model = self.root / "model"
        command = [
            self.root / "venv/bin/vllm", "serve", model, "--served-model-name", MODEL, "--host", "127.0.0.1",
            "--port", self.port, "--dtype", "float32", "--enforce-eager", "--enable-prefix-caching",
            "--block-size", self.block, "--max-model-len", 2048, "--kv-cache-memory-bytes", self.kv_bytes,
            "--kv-events-config", json.dumps(events), "--enable-prompt-tokens-details",
            "--enable-lora", "--max-lora-rank", 8, "--lora-modules", f"{ADAPTER}={model / 'adapter'}",
            "--enable-auto-tool-choice", "--tool-call-parser", "hermes", *self.arguments,
        ]
        environment = os.environ | {
            "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
            "VLLM_TARGET_DEVICE": "cpu", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
            # `/reset_prefix_cache`
            "VLLM_SERVER_DEV_MODE": "1",
        } | self.environment
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        log = open(self.root / f"{self.name}.log", "ab")
        self.process = subprocess.Popen(list(map(str, command)), stdout=log, stderr=log, env=environment,
                                        start_new_session=True)

    def ready(self):
        def healthy():
            if self.process.poll() is not None:
                raise RuntimeError(f"{self.name} ended with {self.process.returncode}: see {self.root}/{self.name}.log")
            try:
                return http("GET", f"{self.url}/health", timeout=5)[0] == 200
            except OSError:
                return False

        until(f"{self.name} is ready", healthy, START_S, 0.5)

    def stop(self, how=signal.SIGTERM):
        """Ends the server and everything it started: a killed API process leaves its engine behind."""
        if self.process is None:
            return
        group = self.process.pid
        try:
            os.killpg(group, how)
        except ProcessLookupError:
            pass
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            pass
        try:
            os.killpg(group, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        self.process = None

    def metrics(self):
        """Sums of the engine's counters that say what it computed and what it found."""
        names = {"prompt_tokens": "vllm:prompt_tokens_total", "hits": "vllm:prefix_cache_hits_total",
                 "queries": "vllm:prefix_cache_queries_total"}
        lines = http("GET", f"{self.url}/metrics")[2].splitlines()
        value = lambda name: sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((name + "{", name + " ")))
        return {short: int(value(name)) for short, name in names.items()}


def start_all(servers):
    for server in servers:
        server.start()
    for server in servers:
        server.ready()


class Gateway:
    """`homing run` in front of servers."""

    def __init__(self, homing, folder, servers, pool):
        self.homing, self.folder, self.servers = homing, pathlib.Path(folder), servers
        self.data, self.admin = (f"http://127.0.0.1:{free_ports()}" for _ in range(2))
        endpoint = lambda server: {"name": server.name, "url": server.url,
                                   "kv_events": f"tcp://127.0.0.1:{server.events}"} | (
                                       {"kv_replay": f"tcp://127.0.0.1:{server.replay}"} if server.replay else {})
        exact = pool.get("prefix_cache", {}).get("source") == "kv-events"
        plain = lambda server: {"name": server.name, "url": server.url}
        endpoints = [endpoint(server) if exact else plain(server) for server in servers]
        # JSON is YAML.
        settings = {"listen": self.data[7:], "admin": {"listen": self.admin[7:]}, "response_headers": "always",
                    # Writing a page of metrics takes a busy server longer than a step of this model.
                    "pools": [{"name": "real", "endpoints": endpoints, "metrics": {"interval": "200ms"}} | pool]}
        self.config = self.folder / "gateway.yaml"
        self.config.write_text(json.dumps(settings, indent=1))
        self.exact, self.process = exact, None

    def __enter__(self):
        log = open(self.folder / "gateway.log", "ab")
        self.process = subprocess.Popen([self.homing, "run", "--config", self.config], stdout=log, stderr=log)

        def ready():
            try:
                return all(self.knows(endpoint) for endpoint in self.endpoints().values())
            except OSError:
                return False

        until("the gateway knows its endpoints", ready)
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()

    def knows(self, endpoint):
        streams = endpoint["kv_events"] or []
        return endpoint["state"] == "ready" and endpoint["capacity_tokens"] and (not self.exact or (
            all(stream["connected"] for stream in streams) and endpoint["adapters"] == [ADAPTER]))

    def endpoints(self):
        return {endpoint["name"]: endpoint for endpoint in http("GET", f"{self.admin}/endpoints")[2]}

    def settled(self):
        """Waits until nothing is in flight and no event has come for a while."""
        look = lambda: [(endpoint["inflight_requests"], [stream["last_sequence"] for stream in endpoint["kv_events"] or []])
                        for endpoint in self.endpoints().values()]

        def calm():
            before = look()
            time.sleep(0.03)
            return all(inflight == 0 for inflight, _ in before) and before == look()

        until("the gateway is at rest", calm, every=0)

    def ask(self, path, body):
        """Sends a request: its status, answer and the gateway's decision on it."""
        status, headers, answer = http("POST", self.data + path, body)
        identity = headers.get("x-request-id")

        def decision():
            decisions = http("GET", f"{self.admin}/decisions?limit=64")[2]
            return next((one for one in decisions if one["request_id"] == identity), None)

        return status, answer, until("the decision is kept", decision, every=0.002)
