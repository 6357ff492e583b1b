"""Stands in for the CUDA libraries that PyPI's torch is linked with, so that it loads on a machine without them.

usage: cuda_stubs.py TORCH_LIB_FOLDER, with gcc and readelf at hand.

Every library that is asked for and not there is made with its soname and with each symbol and symbol version that
torch's libraries want of it. A function that is called answers 100, CUDA's "no device"; on a CPU none is.
"""

import pathlib
import re
import subprocess
import sys
import tempfile
from collections import defaultdict

SYSTEM = re.compile(r"(libc|libm|libdl|librt|libpthread|libgcc_s|libstdc\+\+|libgomp|libmvec|ld-linux[\w-]*)\.so")
CUDA_NAME = re.compile(r"_*(cuda|cu[A-Z]|cublas|cudnn|cufft|cufile|curand|cusparse|cusolver|nccl|nvrtc|nvtx|nvshmem"
                       r"|cupti|nvJit)|__nv")
TEXTS = re.compile(r".*(GetErrorString|GetErrorName|GetLastError|GetStatusString)$")
# Called while the libraries load, or asked for a version: these must succeed.
QUIET = re.compile(r"__cuda(Register|Unregister|Init)|cu\w+GetVersion$")


def readelf(flags, path):
    return subprocess.run(["readelf", *flags, path], capture_output=True, text=True, check=True).stdout


class Needs:
    """What the libraries of one folder want of libraries that are not there."""

    def __init__(self, folder):
        present = {path.name for path in folder.glob("*.so*")}
        self.symbols = defaultdict(lambda: defaultdict(set))  # library -> version -> names
        self.libraries, self.defined, self.unversioned = set(), set(), set()
        for path in sorted(folder.glob("*.so*")):
            wanted = re.findall(r"NEEDED.*\[(.*?)\]", readelf(["-dW"], path))
            self.libraries |= {name for name in wanted if name not in present and not SYSTEM.match(name)}
            self.read_symbols(path)

    def read_symbols(self, path):
        library_of, library = {}, None
        for line in readelf(["-VW"], path).splitlines():
            if file := re.search(r"Version: 1\s+File: (\S+)", line):
                library = file.group(1)
            elif (version := re.search(r"Name: (\S+)\s+Flags", line)) and library:
                library_of[version.group(1)] = library
        for line in readelf(["--dyn-syms", "-W"], path).splitlines():
            fields = line.split()
            if len(fields) < 8 or fields[4] not in ("GLOBAL", "WEAK"):
                continue
            name, _, version = fields[7].partition("@")
            version = version.lstrip("@")
            if fields[6] != "UND":
                self.defined.add(name)
            elif not version:
                self.unversioned.add(name)
            elif library_of.get(version) in self.libraries:
                self.symbols[library_of[version]][version].add(name)

    def loose(self):
        """Names without a version: any library may define them."""
        return {name for name in self.unversioned - self.defined if CUDA_NAME.match(name)}


def source(names):
    def function(name):
        if TEXTS.match(name):
            return f'const char *{name}(void) {{ return "no CUDA here"; }}'
        if name == "__cudaRegisterFatBinary":
            return f"static void *handle; void **{name}(void) {{ return &handle; }}"
        return f"long {name}(void) {{ return {0 if QUIET.match(name) else 100}; }}"

    return "\n".join(map(function, sorted(names))) or "typedef int nothing;"


def build(folder, library, versions, extra):
    names = set().union(extra, *versions.values())
    with tempfile.TemporaryDirectory() as scratch:
        code, script = pathlib.Path(scratch, "stubs.c"), pathlib.Path(scratch, "versions.map")
        code.write_text(source(names))
        script.write_text("".join(f"{version} {{ global: {' '.join(f'{name};' for name in sorted(of))} }};\n"
                                  for version, of in versions.items()))
        command = ["gcc", "-w", "-shared", "-fPIC", "-fno-builtin", "-o", folder / library, code,
                   f"-Wl,-soname,{library}"]
        subprocess.run(command + ([f"-Wl,--version-script={script}"] if versions else []), check=True)


def main():
    folder = pathlib.Path(sys.argv[1])
    needs = Needs(folder)
    for library in sorted(needs.libraries):
        loose = needs.loose() if library.startswith("libcudart") else set()
        build(folder, library, needs.symbols[library], loose)
    print(f"{len(needs.libraries)} stand-ins for CUDA libraries in {folder}")


main()
