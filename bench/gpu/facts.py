#!/usr/bin/env python3
"""What the machine is, and whether the programs start on it: the first step of measure.py, which says why nothing works
where nothing does."""
import argparse
import json
import os
import pathlib
import platform
import subprocess
import sys

import figures
import machine

machine.use()
LIMIT = 20  # seconds of one command
QUERY = ("name,driver_version,memory.total,memory.used,power.limit,clocks.max.sm,pcie.link.gen.max,pcie.link.width.max,"
         "mig.mode.current")


def say(command, env=None):
    """A command's output, which the log has too; an exit code other than 0 is an error."""
    print("$", *command, flush=True)
    done = subprocess.run(list(map(str, command)), env={**os.environ, **(env or {})}, text=True, timeout=LIMIT,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    print(done.stdout, flush=True)
    if done.returncode != 0:
        raise RuntimeError(f"exit {done.returncode}: {done.stdout[-1000:]}")
    return done.stdout.strip()


def hardware(failures):
    with figures.attempt("facts.gpu", failures):
        figures.note("facts.gpu", say(["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader"]))
    figures.note("facts.kernel", platform.release())
    figures.note("facts.c_library", " ".join(platform.libc_ver()))
    figures.note("facts.cores", len(os.sched_getaffinity(0)))
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            figures.note("facts.processor", line.partition(":")[2].strip())
            break
    memory = machine.memory()
    for key in ("MemTotal", "MemAvailable"):
        figures.note(f"facts.{key}", memory[key] / 2**30, "GiB")
    limit = pathlib.Path("/sys/fs/cgroup/memory.max")
    figures.note("facts.memory_limit", limit.read_text().strip() if limit.exists() else "none")
    figures.note("facts.torch", machine.torch_version())


def libraries(env, failures):
    """Those that the loader does not find."""
    for name in ("bin/harmony", "bin/harmony-worker", "lib/harmony/libharmony_cuda.so"):
        with figures.attempt(f"facts.libraries.{name}", failures):
            missing = [line.strip() for line in say(["ldd", machine.programs() / name], env).splitlines() if "not found" in line]
            assert not missing, f"{name} lacks {'; '.join(missing)}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fake", action="store_true", help="on the driver made for tests")
    args = parser.parse_args()
    failures = []
    env = machine.environment(args.fake)
    if args.fake:
        figures.note("facts.gpu", "none: the driver made for tests, whose figures mean nothing")
    else:
        hardware(failures)
        libraries(env, failures)
    programs = machine.programs() / "bin"
    with figures.attempt("facts.harmony", failures):
        figures.note("facts.harmony", say([programs / "harmony", "--version"], env))
    with figures.attempt("facts.gpus_seen", failures):
        figures.note("facts.gpus_seen", json.loads(say([programs / "harmony-cuda", "list"], env)))
    with figures.attempt("facts.doctor", failures):
        say([programs / "harmony", "doctor", "--devices", "cuda:0,mem=64MiB"], env)
        figures.note("facts.doctor", "ready")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
