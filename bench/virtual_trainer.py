#!/usr/bin/env python3
"""What people do today, trained for real, beside Harmony on the same paced devices.

Data parallelism and pipelines whose devices have virtualised memory (build/bin/virtual_trainer: the
product's layers, tensors in a memory of each device's size, replaced as the model of
bench/baselines decides) and `harmony run`: a small GPT-2 on 1, 2 and 4 sim devices whose memory is a
part of what training takes. Two cores compute for all devices: four are half as fast as two, their links
too. Of each: seconds of the median step (the first three and the last left out), measured and modelled; bytes of a step over the links to the host; whether losses are
Harmony's. Then Harmony over each, in time and in bytes: measured, and modelled. Repeats take turns;
of the runs that were as modelled (at most 1% of paced tasks overran by over 2%) the median counts, and where
none was, of all, which is marked.

    python3 bench/virtual_trainer.py [--devices 1 2 4] [--systems NAME ...] [--steps 8] [--repeats 3] [--json FILE] [--realtime]

Bars: steps within 5% of the model, bytes equal to it, losses Harmony's bits (gpipe-swap adds up
gradients in another order and 1f1b-swap trains with weights of the step before: theirs are shown).
Exit code 1 when one is missed.
"""
import argparse
import dataclasses
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import prediction
from prediction import Case

ROOT = pathlib.Path(__file__).resolve().parents[1]
# Untied: the gradient of a tied block is added up in another order by who has one tensor of it.
MODEL = "gpt2-untied"
# A batch for every number of devices; memory: of the footprint, each device.
CASE = Case("gpt2", MODEL, 1, 0.2, 16, 2, gflops=4, links=(100, 100, 100))
DATA_PARALLEL = ["dp-swap", "dp-swap, recompute"]
PIPELINES = ["gpipe-swap", "gpipe-swap, recompute", "1f1b-swap, recompute", "1f1b-flush-swap", "1f1b-flush-swap, recompute"]
OTHER_SUMS = ("gpipe-swap", "1f1b-swap")
CLASSES = {"weights": ["weights"], "gradients": ["gradients"], "optimizer_state": [],
           "activations": ["stash", "boundary_commit"], "inputs": ["tokens", "loss"]}
MOST_OVERRUNS = 0.01


def of_devices(devices, replicas):
    """Two cores compute for all of them: more devices than two are slower, links too, so that cores have as much time to spare."""
    speed = min(1, 2 / devices)
    return dataclasses.replace(CASE, name=f"gpt2-{devices}", devices=devices, memory=CASE.memory * devices,
                               gflops=CASE.gflops * speed, links=tuple(link * speed for link in CASE.links),
                               settings=(f"virtual_replicas={replicas}",))


def memory_of(case, folder):
    """Of each device, in whole pages."""
    job, settings = prediction.write_job(case, 8, folder)
    plan = json.loads(subprocess.run(prediction.harmony("plan", job, *settings, "--devices", prediction.devices_of(case, "1GiB"), "--json"),
                                     capture_output=True, text=True, check=True).stdout)
    return int(plan["footprint"]["total"] * case.memory / case.devices) // 4096 * 4096


def run_system(case, name, steps, memory, folder):
    job, settings = prediction.write_job(case, steps, folder)
    result = subprocess.run([str(ROOT / "build" / "bin" / "virtual_trainer"), "--job", str(job), *settings,
                             "--devices", prediction.devices_of(case, memory), "--baseline", name],
                            capture_output=True, text=True)
    if result.returncode != 0 and " lacks " in result.stderr:  # memory, before anything ran
        return {"system": name, "refused": result.stderr.strip()}
    if result.returncode != 0:
        sys.exit(f"{name}: exit {result.returncode}\n{result.stderr}")
    found = json.loads(result.stdout)
    counted = found["steps"][3:-1]
    return {"system": name, "setting": found["setting"],
            "measured": statistics.median(s["seconds"] for s in counted),
            "modelled": statistics.median(s["modelled_seconds"] for s in counted),
            "update": statistics.median(s["update_seconds"] for s in counted),
            "bytes": counted[-1]["bytes"], "modelled_bytes": counted[-1]["modelled_bytes"],
            "bytes_equal": all(s["bytes"] == s["modelled_bytes"] for s in found["steps"]),
            "losses": [s["loss"] for s in found["steps"]],
            "overruns": found["overruns"] / max(1, found["paced"])}


def swap_of(bytes_by_class):
    """Harmony's classes as those of the others; what goes from device to device apart."""
    of = {name: sum(bytes_by_class[c] for c in classes) for name, classes in CLASSES.items()}
    return {**of, "host_links": sum(of.values()), "peer": bytes_by_class["boundary"]}


def run_harmony(case, steps, folder):
    result = prediction.result_of(case, *prediction.run_case(case, steps, folder), folder)
    lines = [json.loads(line) for line in (folder / "out" / "metrics.jsonl").read_text().splitlines()]
    measured, predicted = result["swap"]
    return {"system": "harmony", "measured": result["measured"], "modelled": result["predicted"],
            "bytes": swap_of(measured), "modelled_bytes": swap_of(predicted), "bytes_equal": result["swap_equal"],
            "losses": [line["loss"] for line in lines], "overruns": result["overruns"]}


def in_folder(run, *args):
    with tempfile.TemporaryDirectory(prefix="hm-") as scratch:
        return run(*args, pathlib.Path(scratch))


def middle(runs):
    """One of several runs that are alike but for their times: the median over those that were as modelled."""
    if "refused" in runs[0]:
        return runs[0]
    good = [r for r in runs if r["overruns"] <= MOST_OVERRUNS] or runs
    return {**runs[0], "measured": statistics.median(r["measured"] for r in good),
            "overruns": statistics.median(r["overruns"] for r in good),
            "all_measured": [[r["measured"], r["overruns"]] for r in runs],
            "counted": sum(r["overruns"] <= MOST_OVERRUNS for r in runs), "runs": len(runs),
            "bytes_equal": all(r["bytes_equal"] for r in runs)}


def measure(devices, systems, steps, repeats):
    rows = []
    # Harmony adds up in the order of the others: replicas are those of data parallelism, or one.
    for replicas, names in ((devices, DATA_PARALLEL), (1, PIPELINES if devices > 1 else [])):
        names = [name for name in names if systems is None or name in systems]
        if not names:
            continue
        case = of_devices(devices, replicas)
        memory = in_folder(memory_of, case)
        runs = {}
        for _ in range(repeats):
            runs.setdefault("harmony", []).append(in_folder(run_harmony, case, steps))
            for name in names:
                runs.setdefault(name, []).append(in_folder(run_system, case, name, steps, memory))
        own = middle(runs.pop("harmony"))
        for row in [own, *map(middle, runs.values())]:
            rows.append({"devices": devices, "replicas": replicas, "memory": memory, **row})
            if "refused" in row:
                continue
            row = rows[-1]
            row["loss_difference"] = max(abs(a - b) for a, b in zip(row["losses"], own["losses"]))
            row["time_ratio"] = [row["measured"] / own["measured"], row["modelled"] / own["modelled"]]
            row["bytes_ratio"] = [row[k]["host_links"] / own[k]["host_links"] for k in ("bytes", "modelled_bytes")]
    return rows


def mebibytes(count):
    return f"{count / 2**20:.1f}"


def report(rows):
    print("| Devices | System | Measured | Modelled | Off | Weights, gradients, moments, activations, inputs (MiB) | Host links | as modelled "
          "| Over Harmony's: time measured | modelled | bytes measured | modelled | Loss: largest difference | Overran (counted runs) |")
    print("|" + "---|" * 14)
    good = True
    for r in rows:
        if "refused" in r:
            print(f"| {r['devices']} | {r['system']} | {r['refused']} |")
            continue
        error = r["measured"] / r["modelled"] - 1
        exact = r["loss_difference"] == 0
        if r["system"] != "harmony":
            good &= abs(error) <= 0.05 and r["bytes_equal"] and (exact or r["system"].startswith(OTHER_SUMS))
        parts = ", ".join(mebibytes(r["bytes"][name]) for name in CLASSES)
        replicas = f" ({r['replicas']} replica{'s' if r['replicas'] > 1 else ''})" if r["system"] == "harmony" else ""
        print(f"| {r['devices']} | {r['system']}{replicas} | {r['measured']:.3f} s | {r['modelled']:.3f} s | {100 * error:+.1f}% | {parts} "
              f"| {mebibytes(r['bytes']['host_links'])} | {'equal' if r['bytes_equal'] else 'DIFFER'} "
              f"| {r['time_ratio'][0]:.2f} | {r['time_ratio'][1]:.2f} | {r['bytes_ratio'][0]:.2f} | {r['bytes_ratio'][1]:.2f} "
              f"| {'none' if exact else format(r['loss_difference'], '.1e')} "
              f"| {100 * r['overruns']:.2f}% ({r['counted']} of {r['runs']}){'' if r['counted'] else ' not as modelled'} |", flush=True)
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", nargs="+", type=int, default=[1, 2, 4])
    parser.add_argument("--systems", nargs="+", choices=DATA_PARALLEL + PIPELINES, metavar="NAME")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", help="file for the figures")
    parser.add_argument("--realtime", action="store_true",
                        help="all of it with real-time priority, where the system allows it: on a machine that others use, too")
    args = parser.parse_args()
    if args.realtime:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    prediction.MODELS[MODEL] = {**prediction.MODELS["gpt2"], "tie_word_embeddings": False}
    rows = []
    for devices in args.devices:
        rows += measure(devices, args.systems, args.steps, args.repeats)
        print(f"{devices} devices measured", file=sys.stderr, flush=True)
        if args.json:
            pathlib.Path(args.json).write_text(json.dumps(rows, indent=1) + "\n")
    sys.exit(0 if report(rows) else 1)


if __name__ == "__main__":
    main()
