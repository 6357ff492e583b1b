"""Brings what the comparison needs. Everything but wrk and the two builds is optional: what cannot be had is left out
of the comparison, with a word that says so."""

import os
import pathlib
import shutil
import subprocess
import sys

REPO = pathlib.Path(__file__).resolve().parents[2]
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", REPO / "target"))
RIVALS = TARGET / "rivals"
TOOLS = TARGET / "tools"
OHA_VERSION = "1.16.0"
# The versions that the published tables name.
PYTHON_RIVALS = {
    "sglang-router": ["sglang-router==0.3.2"],
    "smg": ["smg==1.13.0"],
    "vllm-router": ["vllm-router==0.1.17"],
    "litellm": ["litellm[proxy]==1.102.0"],
}


class Missing(Exception):
    """Why something cannot take part."""


def run(command, what):
    done = subprocess.run(command, cwd=REPO, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        tail = "\n".join(done.stdout.strip().splitlines()[-5:])
        raise Missing(f"{what}: {' '.join(map(str, command))} failed\n{tail}")


def debian(tool):
    """The path of a Debian package's program, installed when it is missing."""
    if not shutil.which(tool):
        print(f"installing {tool}", file=sys.stderr)
        run([REPO / "scripts/need", tool], tool)
    return shutil.which(tool)


def python_rival(name):
    """The folder of programs of a rival's own virtual environment."""
    programs = RIVALS / name / "bin"
    if not (programs / name).exists():
        print(f"installing {PYTHON_RIVALS[name][0]}", file=sys.stderr)
        run([sys.executable, "-m", "venv", RIVALS / name], name)
        run([programs / "pip", "install", "-q", "--disable-pip-version-check", *PYTHON_RIVALS[name]], name)
    if not (programs / name).exists():
        raise Missing(f"{name}: {PYTHON_RIVALS[name][0]} brought no program of that name")
    return programs


def oha():
    program = TOOLS / "bin/oha"
    if not program.exists():
        print(f"building oha {OHA_VERSION} (some minutes)", file=sys.stderr)
        command = ["cargo", "install", "oha", "--version", OHA_VERSION, "--locked", "--no-default-features"]
        # Without any TLS it does not compile.
        command += ["--features", "rustls"]
        run([*command, "--root", TOOLS], "oha")
    return program


def build():
    """The gateway and the bare proxy, as they ship."""
    print("building homing and the bare proxy (release)", file=sys.stderr)
    command = ["cargo", "build", "--release", "--locked", "--bin", "homing", "--example", "bare_pingora"]
    if subprocess.run(command, cwd=REPO, check=False).returncode != 0:
        sys.exit("the build failed")
    return homing(), bare()


def homing():
    return TARGET / "release/homing"


def bare():
    return TARGET / "release/examples/bare_pingora"
