#!/usr/bin/env python3
"""Makes a folder that runs on a machine which has only a GPU's driver and PyTorch of the same version.

    bench/gpu/pack.py OUT [--build DIR] [--fake]

It holds the programs, stripped; libharmony_cuda.so; the shared libraries that they need beside those of the C compiler, of
LibTorch and of CUDA; and the files of the repository that measure.py needs: OUT/bench/gpu/measure.py. With --fake the driver
made for tests lies beside them, to try the folder out without a GPU.
"""
import argparse
import datetime
import json
import pathlib
import re
import shutil
import subprocess
import sys

import machine

MOST_BYTES = 60 << 20
PROGRAMS = ["harmony", "harmony-coordinator", "harmony-cuda", "harmony-swapper", "harmony-worker", "kernels_check", "plain_trainer",
            "probe"]
OPTIONAL = {"probe"}  # built by bench/gpu/probe/build.sh
PLUGIN = "lib/harmony/libharmony_cuda.so"
# Those of the C compiler, which each machine has in its own version.
OF_THE_SYSTEM = re.compile(r"linux-vdso|ld-linux|lib(c|m|dl|rt|pthread|util|resolv|stdc\+\+|gcc_s)\.so")
# LibTorch's and CUDA's, which PyTorch and the driver bring.
OF_TORCH = re.compile(r"lib(torch|c10|gomp|cu|nv|nccl)\w*[.-]")
FILES = ["bench/*.py", "bench/gpu/*.py", "deploy/models/*.py", "tests/export/*.py", "tests/integration/harness.py",
         "tests/integration/exported_test.py", "tests/integration/standing.py", "client/export/harmony_export/*"]
FAKE = ["libcuda.so.1", "libfake_cuda_compute.so"]


def linked(file):
    """{name: path} of all that a program or library needs, at any depth."""
    done = subprocess.run(["ldd", file], text=True, capture_output=True, check=True).stdout
    return dict(re.findall(r"^\s*(\S+) => (/\S+) \(", done, re.MULTILINE))


def needed(file):
    """The names that it asks for itself."""
    done = subprocess.run(["readelf", "-d", file], text=True, capture_output=True, check=True).stdout
    return re.findall(r"\(NEEDED\).*\[(.*)\]", done)


def libraries(files):
    """{name: path} of what has to come along: what is reached from the files, but not by way of LibTorch."""
    found, places, waiting = {}, {}, list(files)
    for file in files:
        places.update(linked(file))
    while waiting:
        for name in needed(waiting.pop()):
            if OF_THE_SYSTEM.match(name) or OF_TORCH.match(name) or name in found:
                continue
            if name not in places:
                sys.exit(f"pack.py: {name} is nowhere on this machine")
            found[name] = places[name]
            waiting.append(places[name])
    return found


def copy_stripped(source, target):
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(pathlib.Path(source).resolve(), target)
    subprocess.run(["strip", "--strip-unneeded", target], check=True)


def copy_files(out):
    for pattern in FILES:
        for file in machine.ROOT.glob(pattern):
            if file.is_file():
                target = out / file.relative_to(machine.ROOT)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, target)


def torch_version(build):
    """Of the LibTorch that the programs were linked with."""
    path = pathlib.Path(linked(build / "bin" / "harmony-worker")["libtorch_cpu.so"])
    return machine.version_of_torch_in(path.parents[1])


def size_of(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def make(build, out, fake):
    programs = [name for name in PROGRAMS if name not in OPTIONAL or (build / "bin" / name).exists()]
    originals = [build / "bin" / name for name in programs] + [build / PLUGIN]
    for file in originals:
        if not file.exists():
            sys.exit(f"pack.py: {file} is not built")
        copy_stripped(file, out / file.relative_to(build))
    for name, path in libraries(originals).items():
        copy_stripped(path, out / "libs" / name)
    copy_files(out)
    if fake:
        for name in FAKE:
            copy_stripped(build / "fake_cuda" / name, out / "fake_cuda" / name)
    version = subprocess.run([build / "bin" / "harmony", "--version"], text=True, capture_output=True, check=True).stdout
    manifest = {"torch": torch_version(build), "version": version.strip(), "programs": programs,
                "made": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")}
    (out / machine.MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
    return manifest


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--build", type=pathlib.Path, default=machine.programs())
    parser.add_argument("--fake", action="store_true", help="with the driver made for tests")
    args = parser.parse_args()
    if args.out.exists() and not (args.out / machine.MANIFEST).exists():
        sys.exit(f"pack.py: {args.out} is there, and no folder of mine")
    shutil.rmtree(args.out, ignore_errors=True)
    manifest = make(args.build, args.out, args.fake)
    size = size_of(args.out)
    print(f"{args.out}: {size / 2**20:.1f} MiB, {manifest['version']} with torch {manifest['torch']}; "
          f"{', '.join(manifest['programs'])}")
    if size > MOST_BYTES:
        sys.exit(f"pack.py: that is more than {MOST_BYTES >> 20} MiB")


if __name__ == "__main__":
    main()
