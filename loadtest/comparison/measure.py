"""One measurement: wrk or oha against one target, and what the target's processes used meanwhile."""

import dataclasses
import json
import os
import subprocess
import time

from . import install, machine, workloads

LUA = install.REPO / "loadtest/wrk/requests.lua"


@dataclasses.dataclass
class Sample:
    """One round of one workload on one target."""

    requests_per_s: float
    p50_ms: float
    p99_ms: float
    cpu_us: float  # of the target's processes, per request; 0 for `direct`
    errors: int
    rss_mib: float
    # Share of the CPUs of the load generator and the upstreams that was in use: near 1, they are the limit.
    feeder_busy: float
    # CPUs that processes outside of the comparison used.
    foreign_cpus: float


def probe(target, workload):
    """A word on why this target cannot do this workload, or None. One request, looked at."""
    filler = "x" * workload.bytes
    if workload.kind == "chat":
        content = filler[: workload.bytes // workload.count]
        roles = ["user", "assistant"] * (workload.count // 2)
        path, prompt = "/v1/chat/completions", {"messages": [{"role": role, "content": content} for role in roles]}
    else:
        path, prompt = "/v1/completions", {"prompt": filler}
    stream = workload.kind == "stream"
    body = {"model": "sim", "max_tokens": workload.count if stream else 1, "stream": stream, **prompt}
    status, answer = machine.post(target.port, path, json.dumps(body).encode(), 30)
    if status != 200:
        return f"status {status}" if status else "no answer"
    events = answer.count(b"data: ") - 1
    return f"{events} events" if stream and events != workload.events else None


class Wrk:
    """Closed loop: as many requests at a time as there are connections, each sent when the one before has ended."""

    def __init__(self, upstream_pid, tag):
        self.program = install.debian("wrk")
        self.upstream_pid = upstream_pid
        self.tag = tag
        self.runs = 0

    def run(self, target, workload, seconds):
        self.runs += 1
        # Fixed width: the content length is computed once.
        arguments = workload.arguments(f"{self.tag}-{self.runs:05d}")
        command = [self.program, "-t1", f"-c{workload.connections}", f"-d{max(1, round(seconds))}s", "--latency"]
        command += ["--timeout", "30s", "-s", LUA, f"http://127.0.0.1:{target.port}", "--", *arguments]
        pin = lambda: os.sched_setaffinity(0, machine.OTHER_CPUS)
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=pin)
        for line in done.stdout.splitlines():
            if line.startswith("RESULT "):
                return json.loads(line.removeprefix("RESULT "))
        raise RuntimeError(f"wrk on {target.name}: {done.stdout}{done.stderr}")

    def sample(self, target, workload, warm_up_s, seconds):
        if warm_up_s:
            self.run(target, workload, warm_up_s)
        pids = target.pids()
        feeders = [self.upstream_pid, os.getpid()]  # wrk's time is this process's, once wrk has ended
        clock, target_cpu, feeder_cpu = time.monotonic(), machine.thread_seconds(pids), machine.cpu_seconds(feeders)
        machine_cpu = machine.machine_busy_seconds()
        result = self.run(target, workload, seconds)
        elapsed = time.monotonic() - clock
        target_cpu = machine.thread_seconds(pids) - target_cpu
        feeder_cpu = machine.cpu_seconds(feeders) - feeder_cpu
        machine_cpu = machine.machine_busy_seconds() - machine_cpu
        requests = max(result["requests"], 1)
        return Sample(
            requests_per_s=result["requests"] / (result["duration_us"] / 1e6),
            p50_ms=result["p50_us"] / 1e3,
            p99_ms=result["p99_us"] / 1e3,
            cpu_us=target_cpu / requests * 1e6,
            errors=result["bad_status"] + result["broken"],
            rss_mib=machine.rss_bytes(pids) / 2**20,
            feeder_busy=feeder_cpu / elapsed / len(machine.OTHER_CPUS),
            foreign_cpus=max(0.0, machine_cpu - target_cpu - feeder_cpu) / elapsed,
        )


@dataclasses.dataclass
class Steady:
    """Latency at a fixed rate that everybody can carry."""

    p50_ms: float
    p95_ms: float
    p99_ms: float
    good: float  # share of answers 200


def bodies(path, count, tag):
    """A file with one unique request body per line, for oha."""
    filler = "some words of a prompt " * 64
    with open(path, "w", encoding="utf-8") as file:
        for number in range(count):
            prompt = f"{tag} {number} {filler}"[: workloads.KIB]
            file.write(json.dumps({"model": "sim", "prompt": prompt, "max_tokens": 1}) + "\n")
    return path


def steady(target, bodies_file, rate, seconds):
    """Open loop with oha: a request is sent when it is due, whether or not the ones before have been answered, and its
    latency counts from when it was due."""
    command = [install.oha(), "-z", f"{seconds}s", "-q", str(rate), "-c", "64", "--latency-correction", "--no-tui"]
    command += ["--output-format", "json", "-m", "POST", "-T", "application/json", "-Z", bodies_file]
    command.append(f"http://127.0.0.1:{target.port}/v1/completions")
    pin = lambda: os.sched_setaffinity(0, machine.OTHER_CPUS)
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=pin)
    if done.returncode != 0:
        raise RuntimeError(f"oha on {target.name}: {done.stderr}")
    result = json.loads(done.stdout)
    at = result["latencyPercentiles"]
    codes = result["statusCodeDistribution"]
    return Steady(
        p50_ms=at["p50"] * 1e3,
        p95_ms=at["p95"] * 1e3,
        p99_ms=at["p99"] * 1e3,
        good=codes.get("200", 0) / max(sum(codes.values()), 1),
    )
