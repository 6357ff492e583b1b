"""The programs compared: how each is started in front of the same two upstreams, on one CPU and with one worker."""

import json
import os
import subprocess

from . import install, machine


class Target:
    """One program under test. `command` gets its folder and returns what to run."""

    name = ""
    start_limit_s = 60

    def __init__(self, upstreams, folder):
        self.upstreams = upstreams
        self.folder = folder / self.name
        self.folder.mkdir(parents=True)
        self.port, self.extra_port = machine.free_ports(2)
        self.process = None

    def urls(self):
        return [f"http://127.0.0.1:{port}" for port in self.upstreams]

    def command(self):
        raise NotImplementedError

    def start(self):
        command = [str(part) for part in self.command()]
        output = open(self.folder / "output.log", "wb")
        pin = lambda: os.sched_setaffinity(0, machine.PROXY_CPUS)
        self.process = subprocess.Popen(command, cwd=self.folder, stdout=output, stderr=output, preexec_fn=pin)
        body = json.dumps({"model": "sim", "prompt": "are you there?", "max_tokens": 1}).encode()
        ready = lambda: machine.post(self.port, "/v1/completions", body, 5)[0] == 200
        if not machine.wait_until(ready, self.start_limit_s):
            tail = (self.folder / "output.log").read_text(errors="replace").strip().splitlines()[-3:]
            self.stop()
            raise install.Missing(f"{self.name}: no answer in {self.start_limit_s} s\n" + "\n".join(tail))

    def pids(self):
        return machine.tree(self.process.pid) if self.process else []

    def pause(self):
        machine.pause(self.pids())

    def resume(self):
        machine.resume(self.pids())

    def stop(self):
        if not self.process:
            return
        machine.resume(self.pids())
        self.process.terminate()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            for pid in self.pids():
                os.kill(pid, 9)
            self.process.wait()
        self.process = None


class Direct(Target):
    """No proxy: requests go to one upstream."""

    name = "direct"

    def start(self):
        self.port = self.upstreams[0]


class Nginx(Target):
    """Consistent hash of the first 1,024 bytes of the body; its own access log, as it ships."""

    name = "nginx"

    def command(self):
        nginx = install.debian("nginx")
        servers = " ".join(f"server 127.0.0.1:{port};" for port in self.upstreams)
        temporary = " ".join(
            f"{kind}_temp_path {self.folder}/{kind};" for kind in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        )
        (self.folder / "nginx.conf").write_text(f"""
            user root; worker_processes 1; daemon off; pid {self.folder}/pid; error_log {self.folder}/error.log;
            events {{ worker_connections 4096; }}
            http {{
              access_log {self.folder}/access.log combined buffer=64k flush=1s; {temporary}
              client_max_body_size 64m; client_body_buffer_size 4m; keepalive_requests 100000000;
              map $request_body $beginning {{ "~(?s)^(?<captured>.{{1,1024}})" $captured; default ""; }}
              upstream pods {{
                hash $beginning consistent; {servers}
                keepalive 512; keepalive_timeout 4s; keepalive_requests 100000000;
              }}
              server {{
                listen 127.0.0.1:{self.port};
                location / {{
                  proxy_pass http://pods; proxy_http_version 1.1; proxy_set_header Connection "";
                  proxy_buffering off;
                }}
              }}
            }}""")
        return [nginx, "-p", self.folder, "-e", self.folder / "error.log", "-c", self.folder / "nginx.conf"]


class Haproxy(Target):
    """Bounded-load hash of the first 1,024 bytes of the body; no log."""

    name = "haproxy"

    def command(self):
        haproxy = install.debian("haproxy")
        servers = "\n".join(f"  server pod-{port} 127.0.0.1:{port}" for port in self.upstreams)
        (self.folder / "haproxy.cfg").write_text(f"""
global
  nbthread 1
  maxconn 4096
defaults
  mode http
  timeout connect 1s
  timeout client 600s
  timeout server 600s
  option http-buffer-request
  option http-no-delay
frontend data
  bind 127.0.0.1:{self.port}
  default_backend pods
backend pods
  balance hash req.body,bytes(0,1024)
  hash-type consistent
  hash-balance-factor 125
  http-reuse always
{servers}
""")
        return [haproxy, "-db", "-f", self.folder / "haproxy.cfg"]


class Bare(Target):
    """examples/bare_pingora.rs: what Pingora itself costs."""

    name = "bare"

    def command(self):
        upstreams = [part for port in self.upstreams for part in ("--upstream", f"127.0.0.1:{port}")]
        return [install.bare(), "--listen", f"127.0.0.1:{self.port}", *upstreams]


class BareAgain(Bare):
    """The same program once more: what differs from `bare` is noise."""

    name = "bare-again"


class Homing(Target):
    """The gateway with one worker thread and otherwise its defaults, the access log among them. `pool` adds settings."""

    name = "homing"

    def __init__(self, upstreams, folder, **pool):
        super().__init__(upstreams, folder)
        self.pool = pool

    def command(self):
        config = {
            "listen": f"127.0.0.1:{self.port}",
            "admin": {"listen": f"127.0.0.1:{self.extra_port}"},
            "threads": 1,
            "pools": [{"endpoints": [{"url": url} for url in self.urls()], **self.pool}],
        }
        (self.folder / "homing.yaml").write_text(json.dumps(config))  # JSON is YAML
        return [install.homing(), "run", "--config", self.folder / "homing.yaml"]


class SglangRouter(Target):
    name = "sglang-router"
    log_level = "warn"

    def command(self):
        programs = install.python_rival(self.name)
        launch = [programs / "python", "-m", "sglang_router.launch_router"]
        if (programs / "sglang-router").exists():
            launch = [programs / "sglang-router", "launch"]
        return [*launch, *self.flags()]

    def flags(self):
        return [
            *["--host", "127.0.0.1", "--port", self.port],
            *["--prometheus-host", "127.0.0.1", "--prometheus-port", self.extra_port],
            *["--worker-urls", *self.urls(), "--policy", "cache_aware", "--log-level", self.log_level],
        ]


class Smg(SglangRouter):
    name = "smg"

    def command(self):
        return [install.python_rival(self.name) / "smg", "launch", *self.flags()]


class VllmRouter(SglangRouter):
    name = "vllm-router"
    log_level = "warning"

    def command(self):
        return [install.python_rival(self.name) / "vllm-router", *self.flags()]


class Litellm(Target):
    name = "litellm"
    start_limit_s = 120

    def command(self):
        model = lambda url: {
            "model_name": "sim",
            "litellm_params": {"model": "hosted_vllm/sim", "api_base": f"{url}/v1", "api_key": "none"},
        }
        config = {
            "model_list": [model(url) for url in self.urls()],
            "router_settings": {
                "routing_strategy": "least-busy",
                "optional_pre_call_checks": ["prompt_caching"],
            },
        }
        (self.folder / "config.yaml").write_text(json.dumps(config))
        command = [install.python_rival(self.name) / "litellm", "--config", self.folder / "config.yaml"]
        return [*command, "--host", "127.0.0.1", "--port", self.port, "--num_workers", "1", "--telemetry", "False"]


ALL = [Direct, Nginx, Haproxy, Bare, BareAgain, Homing, SglangRouter, Smg, VllmRouter, Litellm]
BY_NAME = {target.name: target for target in ALL}
