"""Processes as the kernel counts them: CPU time, memory, affinity, pausing."""

import os
import signal
import socket
import time
import urllib.error
import urllib.request

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
CPUS = sorted(os.sched_getaffinity(0))
# Proxies on the first CPU, what feeds and answers them on the others: so a proxy has a whole CPU and no more.
PROXY_CPUS = {CPUS[0]}
OTHER_CPUS = set(CPUS[1:]) or set(CPUS)


def stat_fields(pid):
    """The fields of /proc/PID/stat from the third on (state, ppid, ...); None when the process is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rsplit(")", 1)[1].split()
    except OSError:
        return None


def tree(root):
    """`root` and all its descendants."""
    children = {}
    for name in os.listdir("/proc"):
        fields = stat_fields(name) if name.isdigit() else None
        if fields:
            children.setdefault(int(fields[1]), []).append(int(name))
    found, queue = [], [root]
    while queue:
        pid = queue.pop()
        found.append(pid)
        queue += children.get(pid, [])
    return found


def cpu_seconds(pids):
    """User and system time of `pids` and of their children that have ended."""
    total = 0
    for pid in pids:
        fields = stat_fields(pid)
        if fields:
            total += sum(map(int, fields[11:15]))
    return total * TICK_S


def thread_seconds(pids):
    """Time on a CPU of the threads that `pids` have now, to the nanosecond where `cpu_seconds` counts ticks."""
    total = 0
    for pid in pids:
        try:
            for thread in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{thread}/schedstat", encoding="utf-8") as file:
                    total += int(file.read().split()[0])
        except OSError:
            pass
    return total / 1e9


def rss_bytes(pids):
    total = 0
    for pid in pids:
        fields = stat_fields(pid)
        if fields:
            total += int(fields[21]) * PAGE_BYTES
    return total


def machine_busy_seconds():
    """CPU time that all processes of the machine have used: everything but idle and waiting for disks."""
    with open("/proc/stat", encoding="utf-8") as file:
        user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, file.readline().split()[1:9])
    return (user + nice + system + irq + softirq + steal) * TICK_S


def pause(pids):
    for pid in reversed(pids):
        os.kill(pid, signal.SIGSTOP)


def resume(pids):
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def post(port, path, body, timeout_s):
    """Status and body of one POST; status 0 when nobody answers."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", body, {"content-type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except OSError:
        return 0, b""


def wait_until(condition, limit_s):
    """Whether `condition` came true in time."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.1)
    return False
