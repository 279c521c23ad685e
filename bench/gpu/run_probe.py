#!/usr/bin/env python3
"""Runs bench/gpu/probe and notes what it found as figures: a step of measure.py.

    run_probe.py [--parts 1,2,5,6] [--quick] [--fake]
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import figures
import machine

machine.use()


def cublas():
    """PyTorch's packages have it, where the probe does not look by itself."""
    found = [path for folder in machine.package_folders("nvidia") for path in folder.glob("*/lib/libcublas.so.13")]
    return ["--cublas", str(found[0])] if found else []


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts")
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    parser.add_argument("--fake", action="store_true", help="on the driver made for tests")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        file = pathlib.Path(scratch, "probe.json")
        command = [str(machine.programs() / "bin" / "probe"), "--json", str(file), *cublas(), *["--quick"] * args.quick]
        if args.parts:
            command += ["--parts", args.parts]
        done = subprocess.run(command, env={**os.environ, **machine.environment(args.fake)})
        found = json.loads(file.read_text()) if file.exists() else {"parts": {}}
    for name, part in found["parts"].items():
        figures.note(f"probe.{name}.status", part["status"], seconds=part["seconds"])
        for key, result in part["results"].items():
            if isinstance(result, dict):
                value = result["median"] if "median" in result else result["value"]
                figures.note(f"probe.{name}.{key}", value, **{k: v for k, v in result.items() if k not in ("value", "median")})
            else:
                figures.note(f"probe.{name}.{key}", result)
        for verdict, answer in part["verdicts"].items():
            figures.note(f"probe.{name}.{verdict}", answer["text"], met=answer["good"])
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
