#!/usr/bin/env python3
"""Our search against the published planner, judged (a) by its cost model and (b) by our dispatcher.

    bench/published_planner/compare.py DIR               every case of DIR/schedules.json with DIR/profiles/MODEL.json
    bench/published_planner/compare.py --long-chain      a generated model of 1000 layers, batch 1024, 8 GPUs

A case is a model, number of GPUs, minibatch, mode and capacity. "listed" is the best schedule of the file
that fits that capacity by the published formula, published or re-run; by (a) and by (b) it may be another one.
By (b) ours must fit by our own count of memory, the listed one need not; in vDP the gradients of both are
reduced in no time. First our implementation of the published
cost model is compared with the file's times. README.md beside this file describes all of this.
"""
import argparse
import json
import math
import pathlib
import random
import resource
import subprocess
import sys
import tempfile
import time

PROGRAM = pathlib.Path(__file__).resolve().parents[2] / "build" / "bin" / "published_planner"
GIB_10 = 10 * 2**30
# What the capacities of the file's re-runs are called there (`rerun_options`).
SMALL = {"bert_96": 9_000_000_000, "gpt2_xl": 9_000_000_000}


def plan(profile, case, memory, *more, cost_model="published"):
    """(what published_planner says, seconds of the whole command)"""
    begin = time.monotonic()
    done = subprocess.run(
        [PROGRAM, profile, "--cost-model", cost_model, "--gpus", str(case["gpus"]), "--minibatch", str(case["minibatch"]), "--mode", case["mode"],
         "--memory", str(memory), *more], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"published_planner: exit {done.returncode}\n{done.stderr}")
    return json.loads(done.stdout), time.monotonic() - begin


def needs(schedule):
    return max(schedule["max_pack_memory_fwd_bytes"], schedule["max_pack_memory_bwd_bytes"])


def capacities(schedule):
    """At which capacities a listed schedule makes a case."""
    small = SMALL.get(schedule["model"], GIB_10)
    if "options" in schedule:
        return [GIB_10 if schedule["options"].endswith("10GiB") else small]
    return [capacity for capacity in {small, GIB_10} if needs(schedule) <= capacity]


def check_estimates(root, listed):
    worst = 0
    with tempfile.TemporaryDirectory() as folder:
        for schedule in listed:
            path = pathlib.Path(folder) / "schedule.json"
            path.write_text(json.dumps(schedule))
            ours, _ = plan(root / "profiles" / f"{schedule['model']}.json", schedule, GIB_10,
                           "--schedule", str(path))
            for key in ("est_time_s", "est_time_prefetch_s"):
                worst = max(worst, abs(ours[key] - schedule[key]))
    print(f"{len(listed)} listed schedules: est_time_s and est_time_prefetch_s differ by at most {worst:.1e} s\n")


def best_by_us(root, model, listed, memory):
    """The least time of listed schedules by our dispatcher."""
    times = {}
    with tempfile.TemporaryDirectory() as folder:
        for schedule in listed:
            key = json.dumps([schedule[k] for k in ("u_fwd", "pack_fwd", "u_bwd", "pack_bwd")])
            if key in times:
                continue
            path = pathlib.Path(folder) / "schedule.json"
            path.write_text(json.dumps(schedule))
            judged, _ = plan(root / "profiles" / f"{model}.json", schedule, memory, "--schedule", str(path),
                             cost_model="harmony")
            times[key] = judged["step_s"]
    return min(times.values())


def summary(name, ratios, slowest):
    for mode, values in ratios.items():
        if values:
            print(f"{name} {mode}: geometric mean of {len(values)} ratios "
                  f"{math.exp(sum(map(math.log, values)) / len(values)):.4f}, worst {max(values):.4f}")
    over = sum(ratio > 1 + 1e-9 for values in ratios.values() for ratio in values)
    print(f"{name} over 1.00: {over}; slowest command {slowest:.2f} s")


def table(root):
    file = json.loads((root / "schedules.json").read_text())
    listed = file["published"] + file["reruns"]
    check_estimates(root, listed)
    best = {}
    for schedule in listed:
        for capacity in capacities(schedule):
            key = tuple(schedule[k] for k in ("model", "gpus", "mode", "minibatch")) + (capacity,)
            best.setdefault(key, math.inf)
    for key in best:
        best[key] = [s for s in listed if needs(s) <= key[4] and
                     tuple(s[k] for k in ("model", "gpus", "mode", "minibatch")) == key[:4]]
    columns = f"{'listed s':>9} {'ours s':>9} {'ratio':>6} {'u_f/u_b':>7} {'packs':>7} {'gap':>6} {'search s':>8}"
    print(f"{'':37} {'(a) by the published cost model':{len(columns)}}   (b) by our dispatcher")
    print(f"{'model':9} {'GPUs':>4} {'mode':4} {'batch':>5} {'capacity':>11} {columns}   {columns}")
    ratios, slowest = [{"vPP": [], "vDP": []}, {"vPP": [], "vDP": []}], [0, 0]
    for key in sorted(best):
        model, gpus, mode, minibatch, capacity = key
        case = {"gpus": gpus, "minibatch": minibatch, "mode": mode}
        profile = root / "profiles" / f"{model}.json"
        print(f"{model:9} {gpus:4} {mode:4} {minibatch:5} {capacity:11}", end="", flush=True)
        for judge, field in enumerate(("est_time_s", "step_s")):
            if judge == 0:
                ours, command_s = plan(profile, case, capacity)
                least = min(s[field] for s in best[key])
            else:
                ours, command_s = plan(profile, case, capacity, cost_model="harmony")
                least = best_by_us(root, model, best[key], capacity)
            ratio = ours[field] / least
            ratios[judge][mode].append(ratio)
            slowest[judge] = max(slowest[judge], command_s)
            print(f" {least:9.4f} {ours[field]:9.4f} {ratio:6.4f} {ours['u_fwd']:3}/{ours['u_bwd']:<3} "
                  f"{len(ours['pack_fwd']):3}+{len(ours['pack_bwd']):<3} {ours['gap']:6.1%} "
                  f"{ours['search_s']:8.3f}", end="  ", flush=True)
        print()
    for judge, name in enumerate(("(a)", "(b)")):
        summary(name, ratios[judge], slowest[judge])
    print(peak_memory())


def peak_memory():
    return f"peak memory {resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024:.0f} MiB"


def long_chain():
    """1000 layers of four kinds, sizes 1 to 64."""
    rng = random.Random(1)
    sizes = list(range(1, 65))
    kinds = [{"w": int(rng.uniform(2e7, 2e8)), "x": int(rng.uniform(5e5, 8e6)), "f": rng.uniform(1e-3, 8e-3)}
             for _ in range(4)]
    rows = [kinds[rng.randrange(4)] for _ in range(1000)]
    inputs = [row["x"] for row in rows]
    weights = [row["w"] for row in rows]
    forward = [[row["f"] * (u + 0.6) for u in sizes] for row in rows]
    outputs = inputs[1:] + [0]
    profile = {
        "schema": "layer-profile/1", "model": "generated_1000", "layers": 1000, "sample": "generated",
        "dtype": "float32", "optimizer": "Adam", "param_bytes": weights, "grad_bytes": weights,
        "buffer_bytes": [0] * 1000, "optimizer_state_bytes": [2 * w for w in weights],
        "update_time_s": [w * 2e-10 for w in weights], "input_bytes_per_sample": inputs,
        "output_bytes_per_sample": outputs,
        "fwd": {"microbatch": sizes, "time_s": forward,
                "peak_bytes": [[w + u * (x + 2 * y) for u in sizes]
                               for w, x, y in zip(weights, inputs, outputs)]},
        "bwd": {"microbatch": sizes, "time_s": [[3 * t for t in row] for row in forward],
                "peak_bytes": [[2 * w + u * (4 * x + 4 * y) for u in sizes]
                               for w, x, y in zip(weights, inputs, outputs)]}}
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "profile.json"
        path.write_text(json.dumps(profile))
        for mode in ("vPP", "vDP"):
            ours, command_s = plan(path, {"gpus": 8, "minibatch": 1024, "mode": mode}, GIB_10)
            print(f"1000 layers, batch 1024, 8 GPUs, {mode}: {ours['est_time_s']:.3f} s, "
                  f"u {ours['u_fwd']}/{ours['u_bwd']}, {len(ours['pack_fwd'])}+{len(ours['pack_bwd'])} packs, "
                  f"bound gap {ours['gap']:.2%}, search {ours['search_s']:.2f} s, command {command_s:.2f} s")
    print(peak_memory())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("reference", nargs="?", type=pathlib.Path, help="folder of the reference data")
    parser.add_argument("--long-chain", action="store_true")
    arguments = parser.parse_args()
    if arguments.reference is None and not arguments.long_chain:
        parser.error("a folder, or --long-chain")
    if arguments.reference is not None:
        table(arguments.reference)
    if arguments.long_chain:
        long_chain()


if __name__ == "__main__":
    main()
