#!/usr/bin/env python3
"""Harmony on one capped device against the plain in-process trainer, alternating A B A B in one run.

    bench/harmony_vs_plain.py JOB.yaml --devices 'sim:mem=512MiB' [--rounds 3] [--steps 3] [--threads 2]

Both train the same job with the same layers, recompute and threads; each round runs one after the other,
with the same OpenMP settings. Prints tokens/s of each round (steps after the first), medians, spread, and
the ratio of the medians. Steps are timed by the programs themselves (metrics.jsonl, `seconds`).
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import environment

BIN = pathlib.Path(__file__).resolve().parents[1] / "build" / "bin"


def tokens_per_second(out):
    """Over all steps but the first, which also pays for starting up."""
    with open(out / "metrics.jsonl") as f:
        steps = [json.loads(line) for line in f][1:]
    return statistics.median(s["tokens_per_second"] for s in steps)


def run(command, env):
    done = subprocess.run([str(c) for c in command], env=env, stdin=subprocess.DEVNULL, text=True,
                          capture_output=True)
    if done.returncode != 0:
        sys.exit(f"{command[0]}: exit {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("job")
    parser.add_argument("--devices", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    args = parser.parse_args()
    env = environment.training()
    settings = ["--set", f"max_steps={args.steps}", "--set", f"compute_threads={args.threads}",
                "--set", "resume_from_checkpoint=none"]
    rates = {"plain": [], "harmony": []}
    with tempfile.TemporaryDirectory(prefix="harmony-bench-") as scratch:
        for round_number in range(args.rounds):
            for name in rates:
                out = pathlib.Path(scratch) / f"{name}-{round_number}"
                program = ([BIN / "plain_trainer", args.job] if name == "plain" else
                           [BIN / "harmony", "run", args.job, "--devices", args.devices])
                run([*program, *settings, "--set", f"output_dir={out}"], env)
                rates[name].append(tokens_per_second(out))
                print(f"round {round_number + 1} {name:8} {rates[name][-1]:9.2f} tokens/s", flush=True)
                subprocess.run(["rm", "-rf", out], check=True)
    for name, values in rates.items():
        print(f"{name:8} median {statistics.median(values):9.2f} tokens/s, from {min(values):.2f} to {max(values):.2f}")
    print(f"ratio harmony/plain {statistics.median(rates['harmony']) / statistics.median(rates['plain']):.3f}")


if __name__ == "__main__":
    main()
