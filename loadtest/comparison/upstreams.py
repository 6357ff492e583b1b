"""The simulated engines behind every program: they parse and answer as vLLM does, and wait for nothing."""

import contextlib
import os
import subprocess
import sys

from . import machine


@contextlib.contextmanager
def running(homing, count, folder):
    """`count` engines in one process, on the CPUs that the proxies do not have: the process and the ports."""
    ports = machine.free_ports(count)
    listeners = [part for port in ports for part in ("--listen", f"127.0.0.1:{port}")]
    sizes = ["--kv-tokens", "8000000", "--max-model-len", "2000000"]
    command = [homing, "sim", "--instant", "--model", "sim", *sizes, *listeners]
    log = folder / "sim.log"
    with open(log, "wb") as output:
        pin = lambda: os.sched_setaffinity(0, machine.OTHER_CPUS)
        process = subprocess.Popen(command, stdout=output, stderr=output, preexec_fn=pin)
    try:
        alive = lambda: all(machine.post(port, "/v1/completions", b'{"model":"sim","prompt":"a"}', 5)[0] for port in ports)
        if not machine.wait_until(alive, 20):
            sys.exit("the simulated engines do not answer:\n" + log.read_text())
        yield process, ports
    finally:
        process.terminate()
        process.wait()
