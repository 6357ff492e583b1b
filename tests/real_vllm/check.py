"""Runs the gateway in front of real vLLM servers and compares what it predicts with what they report.

usage: check.py ROOT HOMING [CHECK...], with the Python of the vLLM installation. Every line of the result says what was
expected and what was seen; the exit code is 0 only when all hold.
"""

import collections
import concurrent.futures
import os
import pathlib
import signal
import subprocess
import sys
import time

from fleet import ADAPTER, MODEL, Gateway, Server, http, start_all, until
from prompts import KINDS, Prompts

REQUESTS = int(os.environ.get("REAL_VLLM_REQUESTS", "500"))
EXACT = {"prefix_cache": {"source": "kv-events"}}


class Results:
    def __init__(self):
        self.failed = 0

    def line(self, what, seen, holds):
        self.failed += not holds
        print(f"{'ok  ' if holds else 'FAIL'} {what}: {seen}", flush=True)

    def note(self, text):
        print(f"     {text}", flush=True)


def complete(gateway, prompt, tokens=4):
    return gateway.ask("/v1/completions", {"model": MODEL, "prompt": prompt, "max_tokens": tokens, "temperature": 0})


def prompt_of(server, tokens, text=" and"):
    """A text of exactly so many tokens, as the engine counts."""
    words = tokens
    while True:
        prompt = "Notes:" + text * words
        count = http("POST", f"{server.url}/tokenize", {"model": MODEL, "prompt": prompt})[2]["count"]
        if count <= tokens:
            return prompt if count == tokens else prompt + " x" * (tokens - count)
        words -= max(1, (count - tokens) // 2)


def seeds(results, root, homing):
    """A prompt that is known is pulled home; newcomers spread."""
    servers = [Server(root, f"pod{n}") for n in range(3)]
    try:
        start_all(servers)
        for source in ("traffic", "kv-events"):
            tokenizer = {"tokenizer": {"path": str(root / "model")}} if source == "kv-events" else {}
            with Gateway(homing, root, servers, {"prefix_cache": {"source": source}} | tokenizer) as gateway:
                seed_a(results, gateway, servers, source)
                seed_b(results, gateway, servers, source)
        probe(results, homing, gateway.config)
    finally:
        for server in servers:
            server.stop()


def probe(results, homing, config):
    output = subprocess.run([homing, "check", "--probe", "--config", config], capture_output=True, text=True)
    for line in output.stdout.splitlines():
        results.note(line)
    results.line("check --probe finds every endpoint as the configuration wants it", f"exit code {output.returncode}",
                 output.returncode == 0)


def seed_a(results, gateway, servers, source):
    before = [server.metrics() for server in servers]
    prompt = prompt_of(servers[0], 207, f" {source.split('-')[0]}")
    hits = []
    for _ in range(6):
        gateway.settled()
        complete(gateway, prompt)
        time.sleep(0.2)
        hits.append(sum(server.metrics()["hits"] for server in servers) - sum(of["hits"] for of in before))
    steps = [after - earlier for earlier, after in zip([0] + hits, hits)]
    sent = [server.metrics()["prompt_tokens"] - of["prompt_tokens"] for server, of in zip(servers, before)]
    results.line(f"seed A, source {source}: six equal prompts of 207 tokens hit 0, then 128 each, on one pod",
                 f"hits {steps}, prompt tokens by pod {sent}", steps == [0] + 5 * [128] and sorted(sent) == [0, 0, 6 * 207])


def seed_b(results, gateway, servers, source):
    for way, workers in [("at once", 30), ("in turn", 1)]:
        before = [server.metrics()["prompt_tokens"] for server in servers]
        prompts = [f"Write one sentence about topic number {n}, {way}, by {source}." for n in range(30)]
        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            answers = list(pool.map(lambda prompt: complete(gateway, prompt), prompts))
        served = collections.Counter(decision["endpoint"] for _, _, decision in answers)
        gateway.settled()
        sent = [server.metrics()["prompt_tokens"] - of for server, of in zip(servers, before)]
        fair = all(status == 200 for status, _, _ in answers) and [served[s.name] for s in servers] == [10, 10, 10]
        results.line(f"seed B, source {source}: 30 short newcomers {way} spread evenly",
                     f"requests {[served[s.name] for s in servers]}, prompt tokens {sent}", fair)


def exact_servers(root, kv_tokens=4096):
    """Three that differ in block size, hash algorithm, hash encoding and replay."""
    return [
        Server(root, "pod0", 32, kv_tokens),
        Server(root, "pod1", 32, kv_tokens, arguments=["--prefix-caching-hash-algo", "sha256_cbor"],
               environment={"PYTHONHASHSEED": "0"}),
        Server(root, "pod2", 64, kv_tokens, replay=False, environment={"VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES": "0"}),
    ]


def exactness(results, root, homing):
    servers = exact_servers(root)
    try:
        start_all(servers)
        with Gateway(homing, root, servers, EXACT | {"tokenizer": {"path": str(root / "model")}}) as gateway:
            predictions(results, gateway, "tokenizer from the model's files", REQUESTS, 20261130)
            agreement(results, gateway, homing)
            resets(results, gateway, servers)
            restarts(results, gateway, servers)
        with Gateway(homing, root, servers, EXACT | {"tokenizer": {"engine": True}}) as gateway:
            predictions(results, gateway, "tokenizer of the engines", REQUESTS // 5, 1)
        with Gateway(homing, root, servers, {}) as gateway:
            predictions(results, gateway, "for comparison by traffic alone", REQUESTS // 5, 2, wanted=0.0)
    finally:
        for server in servers:
            server.stop()


def predictions(results, gateway, what, requests, seed, wanted=0.99):
    prompts = Prompts(seed)
    right, seen, hits, lengths, wrong, far = collections.Counter(), collections.Counter(), 0, 0, [], 0
    for _ in range(requests):
        gateway.settled()
        kind, path, body, conversation = prompts.next()
        status, answer, decision = gateway.ask(path, body)
        if status != 200:
            wrong.append(f"{kind}: {status} {answer}")
            continue
        if conversation is not None:
            prompts.heard(conversation, answer["choices"][0]["message"]["content"])
        usage = answer["usage"]
        reported = (usage["prompt_tokens_details"] or {}).get("cached_tokens") or 0
        predicted = decision["predicted_cached_tokens"]
        seen[kind] += 1
        right[kind] += predicted == reported
        hits += reported
        far += abs(predicted - reported)
        lengths += decision["prompt_tokens"] == usage["prompt_tokens"]
        if predicted != reported:
            wrong.append(f"{kind} on {decision['endpoint']}: predicted {predicted}, reported {reported}, "
                         f"{decision['prompt_tokens']} tokens here, {usage['prompt_tokens']} there, {body['model']}, "
                         f"salt {body.get('cache_salt')}, {body['max_tokens']} generated")
    removed = sum(stream["removed_blocks"] for endpoint in gateway.endpoints().values()
                  for stream in endpoint["kv_events"] or [])
    share = sum(right.values()) / requests
    results.line(f"{requests} requests, {what}: predicted = reported cached tokens",
                 f"{share:.1%}; " + ", ".join(f"{kind} {right[kind]}/{seen[kind]}" for kind in KINDS)
                 + f"; same prompt length {lengths}; {hits} tokens hit, {far} mispredicted; {removed} blocks evicted",
                 share >= wanted)
    for line in wrong[:12] if wanted else wrong[:3]:
        results.note(line)


def agreement(results, gateway, homing):
    probe(results, homing, gateway.config)
    streams = [stream for endpoint in gateway.endpoints().values() for stream in endpoint["kv_events"]]
    trouble = {what: sum(stream[what] for stream in streams)
               for what in ("gaps", "malformed_messages", "unknown_events", "failed_replays")}
    results.line("no gap, no message that was not understood", trouble, not any(trouble.values()))


def twice(gateway, prompt):
    """Predicted and reported match of a prompt that was just sent once before."""
    complete(gateway, prompt)
    return once(gateway, prompt)


def once(gateway, prompt):
    gateway.settled()
    _, answer, decision = complete(gateway, prompt)
    return decision["predicted_cached_tokens"], answer["usage"]["prompt_tokens_details"]["cached_tokens"] or 0


def resets(results, gateway, servers):
    prompt = prompt_of(servers[0], 207, " reset")
    before = twice(gateway, prompt)
    for server in servers:
        http("POST", f"{server.url}/reset_prefix_cache")
    # An engine publishes the reset with its next step: nobody can know of it before.
    for n in range(9):
        complete(gateway, f"Newcomer number {n} makes an engine take a step.")
    after, again = once(gateway, prompt), once(gateway, prompt)
    results.line("after /reset_prefix_cache and one step of each engine nothing is predicted that is gone",
                 f"predicted and reported before {before}, after {after}, again {again}",
                 before[0] == before[1] > 0 and after == (0, 0) and again[0] == again[1] > 0)


def restarts(results, gateway, servers):
    prompt = prompt_of(servers[0], 207, " restart")
    before = twice(gateway, prompt)
    _, _, decision = complete(gateway, prompt)
    victim = next(server for server in servers if server.name == decision["endpoint"])
    victim.stop(signal.SIGKILL)
    statuses = collections.Counter(complete(gateway, f"{n} while a server is gone.")[0] for n in range(20))
    until("the gateway misses the server", lambda: gateway.endpoints()[victim.name]["state"] != "ready")
    gone = gateway.endpoints()[victim.name]["index_blocks"]
    victim.start()
    victim.ready()
    until("the gateway has the server back", lambda: gateway.knows(gateway.endpoints()[victim.name]))
    after = once(gateway, prompt)
    left = gateway.endpoints()[victim.name]["index_blocks"]
    results.line("a killed server fails no request, and nothing of it is believed afterwards",
                 f"before {before}, statuses {dict(statuses)}, blocks {gone} when gone, {left} when back, then {after}",
                 statuses == {200: 20} and gone == 0 and after[0] == after[1])
    http("POST", f"{gateway.admin}/endpoints/real/{[s.name for s in servers if s is not victim][0]}/drain")
    http("POST", f"{gateway.admin}/endpoints/real/{[s.name for s in servers if s is not victim][1]}/drain")
    matches = [once(gateway, prompt + " again") for _ in range(2)]
    for server in servers:
        http("POST", f"{gateway.admin}/endpoints/real/{server.name}/undrain")
    results.line("the restarted server's events count from its first one on", f"{matches}",
                 matches[0][0] == matches[0][1] and matches[1][0] == matches[1][1] > 0)


def ranks(results, root, homing):
    """Two data-parallel ranks behind one address publish on two ports."""
    server = Server(root, "pod0", 32, 8192, arguments=["--data-parallel-size", "2"], ranks=2)
    try:
        start_all([server])
        pool = EXACT | {"kv_events": {"ranks": 2}, "tokenizer": {"path": str(root / "model")}}
        with Gateway(homing, root, [server], pool) as gateway:
            with concurrent.futures.ThreadPoolExecutor(8) as threads:
                list(threads.map(lambda n: complete(gateway, f"Prompt {n}. " + "More of it. " * 60), range(16)))
            gateway.settled()
            endpoint = gateway.endpoints()[server.name]
            owned = [stream["owned_blocks"] for stream in endpoint["kv_events"]]
            predicted, reported = once(gateway, "Prompt 3. " + "More of it. " * 60)
            results.line("both ranks are heard, and a block is the endpoint's when either holds it",
                         f"owned blocks {owned}, index blocks {endpoint['index_blocks']}, predicted {predicted}, "
                         f"reported {reported} (0 when the other rank got it)",
                         len(owned) == 2 and min(owned) > 0 and predicted > 0 and reported in (0, predicted))
    finally:
        server.stop()


CHECKS = {"seeds": seeds, "exactness": exactness, "ranks": ranks}


def main():
    # Ends what was started also when it is stopped itself.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    root, homing, *wanted = sys.argv[1:]
    results = Results()
    version = subprocess.run([f"{root}/venv/bin/vllm", "--version"], capture_output=True, text=True).stdout.split()[-1:]
    results.note(f"vLLM {' '.join(version)}")
    for name in wanted or CHECKS:
        started = time.monotonic()
        CHECKS[name](results, pathlib.Path(root), pathlib.Path(homing).resolve())
        results.note(f"{name}: {time.monotonic() - started:.0f} s")
    print("all hold" if not results.failed else f"{results.failed} do not hold")
    sys.exit(results.failed > 0)


main()
