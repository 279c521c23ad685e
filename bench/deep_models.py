#!/usr/bin/env python3
"""The deep models of the Harmony paper on devices that together have a fifth of the training footprint.

BERT-96, VGG-416 and ResNet-1026 (deploy/models/deep.py) at their full depth and in widths that two cores bear are
exported where they are not yet, planned, and trained for a few steps by deploy/jobs on two paced sim devices. Measured:
seconds of the median step (the first and the last left out) and the peak memory of each device, both against what was
predicted before the run; bytes that crossed the links to the host, against the least for such groups of layers ("swap").

    .deps/export-venv/bin/python bench/deep_models.py [--models NAME ...] [--steps 5] [--json FILE]

Bars: step time within 10%, swap 1.00, peaks at most the predicted. Exit code 1 when one is missed. Runs that were not as
modelled (over 1% of paced tasks overran by over 2%) do not count. Takes half an hour and 8 GiB of memory.
"""
import argparse
import dataclasses
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]


@dataclasses.dataclass
class Case:
    name: str
    width: int
    gflops: float  # of a device: slower than a core
    link: int  # MB/s, each direction


CASES = [Case("bert-96", 256, 10, 400), Case("vgg-416", 32, 8, 400), Case("resnet-1026", 16, 4, 400)]


def harmony(*args):
    return [str(ROOT / "build" / "bin" / "harmony"), *map(str, args)]


def checked(command, log=None):
    done = subprocess.run(command, stdout=log or subprocess.PIPE, stderr=subprocess.STDOUT if log else subprocess.PIPE,
                          text=True)
    if done.returncode != 0:
        tail = pathlib.Path(log.name).read_text()[-3000:] if log else done.stderr
        sys.exit(f"{' '.join(map(str, command))}: exit {done.returncode}\n{tail}")
    return done.stdout


def devices_of(case, memory):
    link = f"{case.link}MB/s"
    return f"sim*2:mem={memory},flops={case.gflops}G,h2d={link},d2h={link},p2p={link},host=2GB/s"


def run_case(case, share, steps, folder):
    model = ROOT / "build" / "models" / case.name
    begin = time.monotonic()
    if not (model / "data").is_dir():
        checked([sys.executable, ROOT / "deploy" / "models" / "deep.py", case.name, "--width", str(case.width)])
    exported = time.monotonic() - begin
    job = ROOT / "deploy" / "jobs" / f"{case.name}.yaml"
    settings = ["--set", f"max_steps={steps}", "--set", f"output_dir={folder / 'out'}"]

    def plan(memory):
        return json.loads(checked(harmony("plan", job, *settings, "--devices", devices_of(case, memory), "--json")))

    footprint = plan("8GiB")["footprint"]["total"]
    memory = int(footprint * share / 2) // 4096 * 4096
    begin = time.monotonic()
    plan(memory)
    searched = time.monotonic() - begin
    with open(folder / "log", "w") as log:
        checked(harmony("run", job, *settings, "--devices", devices_of(case, memory), "--runtime-dir", folder / "run"),
                log)
    summary = json.loads((folder / "out" / "summary.json").read_text())
    lines = [json.loads(line) for line in (folder / "out" / "metrics.jsonl").read_text().splitlines()][1:-1]
    described = json.loads((model / "model.json").read_text())
    predicted = summary["predicted"]
    seconds = statistics.median(line["seconds"] for line in lines)
    least = {kind: size for kind, size in summary["swap_minimum_per_step"].items() if size > 0}
    swap = {kind: max(line["swap_bytes"][kind] for line in lines) for kind in least}
    peaks = [device["peak_bytes"] / p for device, p in zip(summary["devices"], predicted["peak_device_bytes"])]
    return {"model": case.name, "width": case.width, "layers": len(described["layers"]),
            "graphs": len(described["graphs"]), "exported": exported, "planned": searched, "footprint": footprint,
            "memory": 2 * memory, "measured": seconds, "predicted": predicted["seconds_per_step"],
            "error": seconds / predicted["seconds_per_step"] - 1, "swap": sum(swap.values()) / sum(least.values()),
            "swap_bytes": swap, "swap_least": least, "swap_predicted": predicted["swap_bytes_per_step"],
            "peaks": peaks, "overruns": summary["paced_overruns"] / summary["paced"], "counts": summary["as_modelled"]}


def report(results):
    print("| model | width | layers, graphs | footprint | devices, together | step, predicted | measured | swap | peak "
          "/ predicted | overran |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for r in results:
        peaks = " ".join(f"{peak:.3f}" for peak in r["peaks"])
        print(f"| {r['model']} | {r['width']} | {r['layers']}, {r['graphs']} | {r['footprint'] / 2**20:.0f} MiB | "
              f"{r['memory'] / 2**20:.0f} MiB ({r['memory'] / r['footprint']:.1%}) | {r['predicted']:.2f} s | "
              f"{r['measured']:.2f} s ({r['error']:+.1%}) | {r['swap']:.2f} | {peaks} | {r['overruns']:.2%}"
              f"{'' if r['counts'] else ', not as modelled'} |")
    return all(r["counts"] and abs(r["error"]) <= 0.10 and round(r["swap"], 2) == 1 and max(r["peaks"]) <= 1
               for r in results)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=[case.name for case in CASES], metavar="NAME")
    parser.add_argument("--memory", type=float, default=0.2, help="share of the footprint that both devices have")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--json", help="file for the figures")
    args = parser.parse_args()
    results = []
    for case in CASES:
        if args.models and case.name not in args.models:
            continue
        with tempfile.TemporaryDirectory(prefix="hm-", dir=ROOT / "build") as scratch:
            results.append(run_case(case, args.memory, args.steps, pathlib.Path(scratch)))
        print({key: value for key, value in results[-1].items()}, flush=True)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(results, indent=1) + "\n")
    sys.exit(0 if report(results) else 1)


if __name__ == "__main__":
    main()
