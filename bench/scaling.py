#!/usr/bin/env python3
"""How the speed of a step grows with the devices: predicted, and measured on paced sim devices.

The same job on 1, 2, 4 and 8 devices of the same memory, links and speed. Seconds of the median step
(the first three and the last left out) beside those that the coordinator predicted, and both as a
share of linear: of so many times the speed of one device. The last row of a case is one device with one
replica, whose gradients leave in one part: what replicas cost where they bring nothing. Without --cases those that two cores can
run in some minutes; a run that was not as modelled is marked.

    python3 bench/scaling.py [--cases NAME ...] [--devices N ...] [--steps 8] [--json FILE] [--only-predict]
"""
import argparse
import dataclasses
import json
import pathlib
import subprocess
import sys
import tempfile

import prediction
from prediction import Case

# Memory: of the footprint, each device. 3 GFLOP/s: what two cores carry for eight of them; at 5 they compute for two
# thirds of the time, and tasks end late. With gpt2-124m eight of 3 keep them busy for three quarters of it, of 2, with
# links slower by as much, for 43%.
CASES = {
    "gpt2-mini": Case("gpt2-mini", "gpt2-mini", 1, 0.5, 64, 4, gflops=3),
    "gpt2-mini-root": Case("gpt2-mini-root", "gpt2-mini", 1, 0.5, 64, 4, gflops=3, root="a"),
    "llama-tight": Case("llama-tight", "llama", 1, 0.2, 64, 4, gflops=5),
    "gpt2-124m": Case("gpt2-124m", "gpt2-124m", 1, 0.5, 32, 1, tokens=16, gflops=2, links=(267, 267, 267)),
}
DEFAULT = ["gpt2-mini", "gpt2-mini-root", "llama-tight"]
DEVICES = [1, 2, 4, 8]


def of_devices(case, devices):
    """`case.memory` of prediction.py is of all devices together."""
    return dataclasses.replace(case, name=f"{case.name}-{devices}", devices=devices, memory=case.memory * devices)


def predict(case, folder):
    """As run_case, but only planned."""
    job, settings = prediction.write_job(case, 8, folder)

    def plan(memory):
        return json.loads(subprocess.run(
            prediction.harmony("plan", job, *settings, "--devices", prediction.devices_of(case, memory), "--json"),
            capture_output=True, text=True, check=True).stdout)

    footprint = plan("1GiB")["footprint"]["total"]
    found = plan(int(footprint * case.memory / case.devices) // 4096 * 4096)
    return {"predicted": found["time_estimate"]["step_seconds"], "mode": found["mode"],
            "replicas": found["virtual_replicas"]}


def measure(case, steps, only_predict):
    with tempfile.TemporaryDirectory(prefix="hm-") as scratch:
        folder = pathlib.Path(scratch)
        (folder / "plan").mkdir()
        row = {"case": case.name, "devices": case.devices, **predict(case, folder / "plan")}
        if only_predict:
            return row
        (folder / "measured").mkdir()
        result = prediction.result_of(case, *prediction.run_case(case, steps, folder / "measured"), folder / "measured")
        return {**row, **{key: result[key] for key in ("measured", "predicted", "error", "swap_equal", "cores", "counts")}}


def report_header():
    print(f"{'case':14} {'devices':>7} {'replicas':>8} {'mode':>10} {'predicted':>10} {'linear':>7} {'measured':>10} {'linear':>7} "
          f"{'error':>7} {'swap':>6} {'cores':>6}", flush=True)


def report(r, one):
    """One row as soon as it is there; `one` is the case's first."""
    share = one["predicted"] * one["devices"] / r["predicted"] / r["devices"]
    text = f"{r['case'].rsplit('-', 1)[0]:14} {r['devices']:7} {r['replicas']:8} {r['mode']:>10} {r['predicted']:8.3f} s {share:7.3f}"
    if "measured" in r:
        text += (f" {r['measured']:8.3f} s {one['measured'] * one['devices'] / r['measured'] / r['devices']:7.3f} "
                 f"{100 * r['error']:+6.1f}% {'equal' if r['swap_equal'] else 'DIFFER':>6} {100 * r['cores']:5.0f}%"
                 f"{'' if r['counts'] else '  not as modelled'}")
    print(text, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=DEFAULT)
    parser.add_argument("--devices", nargs="+", type=int, choices=DEVICES, default=DEVICES,
                        help="rows of a case; linear is by the first of them")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--json", help="file for the figures")
    parser.add_argument("--only-predict", action="store_true")
    args = parser.parse_args()
    everything = []
    report_header()
    for name in args.cases:
        cases = [of_devices(CASES[name], devices) for devices in args.devices]
        if 1 in args.devices:
            cases.append(dataclasses.replace(cases[0], settings=("virtual_replicas=1",)))
        rows = []
        for case in cases:
            rows.append(measure(case, args.steps, args.only_predict))
            report(rows[-1], rows[0])
        everything += rows
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(everything, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
