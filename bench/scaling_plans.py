#!/usr/bin/env python3
"""How the speed of a step grows with the devices by plan, for models and machines that need not be here.

Llama-8B, qwen-32B and gpt2-124m on 1 to 8 devices like an RTX 4090 (65 TFLOP/s, 23 GB, 24 GB/s each way and between
devices), with links of their own, on one root and on two roots; the host's memory has 150 GB/s. Of each case the predicted
step, tokens a second, and these as a share of linear: of so many times one device of the same case. Where there is a bar it
is printed beside it; exit code 1 when one is missed.

    python3 bench/scaling_plans.py [--cases NAME ...] [--harmony build/bin/harmony] [--json FILE]

Takes about five minutes, most of it for qwen-32B.
"""
import argparse
import dataclasses
import json
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "bench" / "paper"))

import today  # noqa: E402

DEVICE = "mem=23GB,flops=65T,h2d=24GB/s,d2h=24GB/s,p2p=24GB/s,host=150GB/s"


@dataclasses.dataclass
class Row:
    text: str
    devices: int
    bar: float | None = None  # of linear
    roots: int = 0  # so many share all devices; 0: each has a link of its own


@dataclasses.dataclass
class Case:
    model: str  # of today.MODELS, or a preset
    tokens: int  # of a sample
    batch: int
    rows: list[Row]
    device: str = DEVICE


CASES = {
    "llama-8b": Case("llama-8b", 2048, 64, [
        Row("2 devices", 2, 0.98), Row("4 devices", 4, 0.97), Row("8 devices", 8, 0.96),
        Row("8 devices, two roots", 8, 0.93, roots=2), Row("8 devices, one root", 8, roots=1)]),
    "llama-8b, 16 sequences": Case("llama-8b", 2048, 16, [Row("8 devices, two microbatches each", 8, 0.85)]),
    "gpt2-124m": Case("gpt2-124m", 1024, 128, [Row("4 devices", 4), Row("8 devices", 8, 0.95)],
                      "mem=2GB,flops=5T,h2d=12GB/s,d2h=12GB/s,p2p=12GB/s,host=50GB/s"),
    # Of which the head has no room for the gradient buffers of 16 replicas.
    "gpt2-124m, 512 MB": Case("gpt2-124m", 1024, 128, [Row("8 devices", 8)],
                              "mem=512MB,flops=5T,h2d=12GB/s,d2h=12GB/s,p2p=12GB/s,host=50GB/s"),
    "qwen-32b": Case("qwen-32b", 2048, 64, [
        Row("2 devices", 2, 0.98), Row("4 devices", 4, 0.97), Row("8 devices", 8, 0.96),
        Row("8 devices, two roots", 8, 0.93, roots=2)]),
    "qwen-32b, 16 sequences": Case("qwen-32b", 2048, 16, [Row("8 devices, two microbatches each", 8, 0.85)]),
}


def devices_of(case, row):
    if row.roots == 0:
        return f"sim*{row.devices}:{case.device}"
    return "; ".join(f"sim*{row.devices // row.roots}:{case.device},root=r{root}" for root in range(row.roots))


def plan(harmony, job, devices):
    begin = time.monotonic()
    done = subprocess.run([harmony, "plan", str(job), "--no-calibrate", "--host-memory", "2TB", "--devices", devices, "--json"],
                          capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"error: {job} on {devices}: {done.stderr.strip()}")
    found = json.loads(done.stdout)
    return {"seconds": found["time_estimate"]["step_seconds"], "tokens_per_second": found["time_estimate"]["tokens_per_second"],
            "mode": found["mode"], "replicas": found["virtual_replicas"],
            "microbatches": found["plan"]["num_microbatches"], "searched": time.monotonic() - begin}


def run(harmony, name):
    case = CASES[name]
    results, one = [], None
    with tempfile.TemporaryDirectory(prefix="hm-") as scratch:
        job = today.write_job(pathlib.Path(scratch), case.model, case.tokens, case.batch)
        for row in [Row("1 device", 1), *case.rows]:
            found = plan(harmony, job, devices_of(case, row))
            one = one or found["tokens_per_second"]
            share = found["tokens_per_second"] / one / row.devices
            met = "" if row.bar is None else "met" if share >= row.bar else "MISSED"
            results.append({"case": name, "row": row.text, "of_linear": share, "bar": row.bar, **found})
            print(f"| {name} | {row.text} | {found['seconds']:.3f} s | {found['tokens_per_second']:.0f} | {share:.3f} | "
                  f"{row.bar or '-'} {met} | {found['mode']}, {found['replicas']} replicas, {found['microbatches']} microbatches | "
                  f"{found['searched']:.1f} s |", flush=True)
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--harmony", default=str(ROOT / "build" / "bin" / "harmony"))
    parser.add_argument("--json", help="file for the figures")
    args = parser.parse_args()
    print("| Case | Devices | Step | Tokens/s | Of linear | Bar | Plan | Searched |\n|---|---|---|---|---|---|---|---|")
    results = [row for name in args.cases for row in run(args.harmony, name)]
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(results, indent=1) + "\n")
    return 1 if any(row["bar"] and row["of_linear"] < row["bar"] for row in results) else 0


if __name__ == "__main__":
    sys.exit(main())
