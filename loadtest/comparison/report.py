"""Medians, spreads and ratios; the Markdown tables."""

import datetime
import os
import pathlib
import platform
import statistics
import subprocess

from . import install, machine

# Above this share of the feeders' CPUs in use, req/s tells their speed, not the target's.
FEEDERS_FULL = 0.9
BASES = ["direct", "bare", "nginx"]


def median(values):
    return statistics.median(values)


def figure(value):
    """Three significant digits, or all before the point."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def spread(values):
    """Median (lowest to highest)."""
    return f"{figure(median(values))} ({figure(min(values))}–{figure(max(values))})"


def of(samples, field):
    return [getattr(sample, field) for sample in samples]


def paired(samples, base, field):
    """Ratios to `base`, each round to the same round's: what a noisy neighbour slows, it slows in both."""
    pairs = zip(of(samples, field), of(base, field))
    return [value / other for value, other in pairs if other > 0]


def ratio(samples, base, field):
    ratios = paired(samples, base, field) if base and samples is not base else []
    return spread(ratios) + "x" if ratios else "–"


def workload_table(workload, by_target, refusals):
    header = ["", "req/s", "of direct", "of bare", "p50 ms", "p99 ms", "CPU µs/request", "of bare", "of nginx", "RSS MiB"]
    lines = ["| " + " | ".join(header) + " |", "|---|" + "---:|" * (len(header) - 1)]
    base = {name: by_target.get(name) for name in BASES}
    for name, samples in by_target.items():
        full = "*" if median(of(samples, "feeder_busy")) > FEEDERS_FULL else ""
        proxied = name != "direct"
        row = [
            name,
            spread(of(samples, "requests_per_s")) + full,
            ratio(samples, base["direct"], "requests_per_s"),
            ratio(samples, base["bare"], "requests_per_s"),
            figure(median(of(samples, "p50_ms"))),
            figure(median(of(samples, "p99_ms"))),
            spread(of(samples, "cpu_us")) if proxied else "–",
            ratio(samples, base["bare"], "cpu_us") if proxied else "–",
            ratio(samples, base["nginx"], "cpu_us") if proxied else "–",
            figure(samples[-1].rss_mib) if proxied else "–",
        ]
        errors = sum(of(samples, "errors"))
        if errors:
            row[0] += f" ({errors} errors)"
        lines.append("| " + " | ".join(row) + " |")
    for name, why in refusals.items():
        lines.append(f"| {name} | not measured: {why} |" + " |" * (len(header) - 2))
    title = f"### {workload.title}, {workload.connections} connections\n"
    return "\n".join([title, *lines, ""])


def steady_table(rate, by_target):
    lines = ["| | p50 ms | p95 ms | p99 ms | p95 added to direct, ms | answered 200 |", "|---|---:|---:|---:|---:|---:|"]
    direct = by_target.get("direct")
    for name, samples in by_target.items():
        added = "–"
        if direct and name != "direct":
            differences = [a.p95_ms - b.p95_ms for a, b in zip(samples, direct)]
            added = f"{median(differences):.2f} ({min(differences):.2f}–{max(differences):.2f})"
        cells = [f"{median(of(samples, field)):.2f}" for field in ["p50_ms", "p95_ms", "p99_ms"]]
        good = f"{100 * min(of(samples, 'good')):.1f} %"
        lines.append("| " + " | ".join([name, *cells, added, good]) + " |")
    return "\n".join([f"### {rate} requests a second of 1 KB, open loop\n", *lines, ""])


def noise(results):
    """What two runs of one program differ by, over all workloads and rounds."""
    ratios = {"requests_per_s": [], "cpu_us": []}
    for by_target in results.values():
        if "bare" in by_target and "bare-again" in by_target:
            for field, found in ratios.items():
                found += paired(by_target["bare-again"], by_target["bare"], field)
    foreign = [s.foreign_cpus for by_target in results.values() for samples in by_target.values() for s in samples]
    lines = []
    if ratios["cpu_us"]:
        lines.append(
            "Noise floor: the bare proxy measured twice differs from itself by "
            f"{spread(ratios['cpu_us'])}x in CPU and {spread(ratios['requests_per_s'])}x in req/s, per round."
        )
    if foreign:
        lines.append(f"Other processes used {spread(foreign)} CPUs meanwhile.")
    return "\n".join(lines)


def version(command):
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        return done.stdout.strip().splitlines()[0]
    except (OSError, IndexError):
        return "unknown"


def cpu_model():
    for line in pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def conditions(options, names):
    commit = version(["git", "-C", str(install.REPO), "rev-parse", "--short", "HEAD"])
    tools = {"wrk": ["wrk", "-v"], "nginx": ["nginx", "-v"], "haproxy": ["haproxy", "-v"]}
    versions = [version(command) for name, command in tools.items() if name in names or name == "wrk"]
    versions += [f"{name} {install.PYTHON_RIVALS[name][0].split('==')[1]}" for name in names if name in install.PYTHON_RIVALS]
    load = "/".join(f"{value:.1f}" for value in os.getloadavg())
    return (
        f"{datetime.date.today()}, commit {commit}, {cpu_model()}, {len(machine.CPUS)} CPUs, Linux {platform.release()}, "
        f"load average at the end {load}. {options.rounds} rounds of {options.seconds:g} s after {options.warm_up:g} s of "
        f"warm-up, seed {options.seed}.\n{'; '.join(versions)}."
    )


LEGEND = """\
Each cell is the median over the rounds, with the lowest and the highest round in brackets. A ratio is taken round by
round, against the same round of the other program. `*`: the load generator and the upstreams were the limit, so req/s
says little about the proxy. What the numbers mean, and what they do not: [loadtest/README.md](../loadtest/README.md).
"""


def markdown(options, results, refusals, steady, skipped):
    names = list(next(iter(results.values()), {}))
    parts = [conditions(options, names), "", noise(results), "", LEGEND]
    parts += [f"Left out: {why}." for why in skipped]
    for workload, by_target in results.items():
        parts += ["", workload_table(workload, by_target, refusals.get(workload, {}))]
    if steady:
        parts += ["", steady_table(options.rate, steady)]
    return "\n".join(parts)


MARKERS = "<!-- measured: begin -->", "<!-- measured: end -->"


def put(path, text):
    """Writes `text` between the file's markers, or as the whole file when it has none."""
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    begin, end = MARKERS
    if begin in old and end in old:
        before, after = old.split(begin)[0], old.split(end)[1]
        text = f"{before}{begin}\n\n{text}\n\n{end}{after}"
    else:
        text += "\n"
    path.write_text(text, encoding="utf-8")
