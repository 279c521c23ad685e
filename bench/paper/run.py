#!/usr/bin/env python3
"""The paper's evaluation on models: Harmony's plans beside what people do today, on its machine, by its profiles.

    bench/paper/run.py DIR [-o build/paper]

DIR holds profiles/*.json of the schema layer-profile/1 (bench/published_planner). Two more models have profiles by their FLOPs
(convolutional.py); two machines of today stand beside published figures (today.py). Writes results.json, tables.md, and where
matplotlib is installed the plots throughput, swap_volume and scaling as SVG and PNG. As many cases at a time as there are cores.
"""
import argparse
import concurrent.futures
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import time

import convolutional
import today

ROOT = pathlib.Path(__file__).resolve().parents[2]
GPUS = (1, 2, 4)
HOST_LINK = 11.5 * 2**30  # bytes a second in each direction, paper_case's default
# Batches as in the published schedules, which there are none of for the convolutional ones.
BATCHES = {"bert_96": (32, 64, 256, 1024), "gpt2_xl": (32, 64, 256, 1024), "gpt2_10b": (16, 32), "vgg_416": (64, 256),
           "resnet_1026": (64, 256)}
ABLATION = {"bert_96": 64, "gpt2_xl": 64, "gpt2_10b": 32}  # on 4 GPUs
# In tables and plots, in this order. Others are in results.json.
SHOWN = ["dp-swap", "dp-swap, recompute", "dp-swap, recompute, on demand", "gpipe-swap", "gpipe-swap, recompute", "1f1b-swap",
         "1f1b-swap, recompute", "1f1b-flush-swap", "1f1b-flush-swap, recompute", "zero-offload", "zero-infinity", "super-offload",
         "fsdp-offload"]
OURS = ["harmony-pp", "harmony-dp"]


def run_case(program, profile, gpus, batch, ablation):
    args = [program, profile, "--gpus", gpus, "--batch", batch] + (["--ablation"] if ablation else [])
    begin = time.monotonic()
    done = subprocess.run([str(a) for a in args], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"error: {' '.join(map(str, args))}: {done.stderr.strip()}")
    case = json.loads(done.stdout) | {"profile": profile.stem, "gpus": gpus, "seconds_taken": time.monotonic() - begin}
    print(f"{profile.stem}, {gpus} GPU{'s' * (gpus > 1)}, {batch} samples: {case['seconds_taken']:.1f} s", flush=True)
    return case


def rows_of(case):
    return {row["name"]: row for row in case["rows"]}


def fitting(case, name):
    row = rows_of(case).get(name)
    return row if row and row["fits"] else None


def cell(row, text):
    return text(row) if row else "-"


def short(name):
    """Fits a column: "dp-swap, recompute" is "dp, R"."""
    return name.replace("-swap", "").replace("recompute", "R")


def table(head, lines):
    return "\n".join(["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)] +
                     ["| " + " | ".join(map(str, line)) + " |" for line in lines]) + "\n"


def speed_table(cases):
    lines = []
    for case in cases:
        ours = [fitting(case, name) for name in OURS]
        line = [case["profile"], case["gpus"], case["global_batch_size"]]
        line += [cell(row, lambda r: f"{r['samples_per_second']:.3f}") for row in ours]
        line += [cell(fitting(case, name), lambda r: f"{r.get('harmony_speedup', 0):.2f}") for name in SHOWN]
        lines.append(line)
    return table(["model", "GPUs", "batch", *OURS, *map(short, SHOWN)], lines)


def swap_table(cases):
    lines = []
    for case in cases:
        line = [case["profile"], case["gpus"], case["global_batch_size"]]
        line += [cell(fitting(case, name), lambda r: f"{r['host_link_bytes'] / 1e9:.1f}") for name in OURS + SHOWN]
        lines.append(line)
    return table(["model", "GPUs", "batch", *OURS, *map(short, SHOWN)], lines)


def scaling_table(cases):
    at = {(c["profile"], c["global_batch_size"], c["gpus"]): c for c in cases}
    lines = []
    for (model, batch, gpus), case in at.items():
        alone = [row for row in (fitting(at[model, batch, 1], name) for name in OURS) if row]
        if gpus == 1 or not alone:
            continue
        speed = max(row["samples_per_second"] for row in alone)
        line = [model, batch, gpus]
        for name in OURS:
            row = fitting(case, name)
            line.append(cell(row, lambda r: f"{r['samples_per_second'] / speed / gpus:.3f}"))
        line += [rows_of(case)[name].get("busiest", "") for name in OURS]
        lines.append(line)
    return table(["model", "batch", "GPUs", "harmony-pp", "harmony-dp", "busiest, pp", "busiest, dp"], lines)


def traffic_table(cases):
    """What `harmony-pp` moves on all GPUs, and the share of the step in which each direction of the link carries it."""
    lines = []
    for case in cases:
        row = fitting(case, "harmony-pp")
        if case["gpus"] != max(GPUS) or not row:
            continue
        moved = [row["bytes"][traffic] / 1e9 for traffic in ("weights", "gradients", "activations")]
        share = row["host_link_bytes"] / 2 / HOST_LINK / row["step_seconds"]
        lines.append([case["profile"], case["global_batch_size"], *(f"{gb:.1f}" for gb in moved), f"{share:.1%}"])
    return table(["model", "batch", "weights", "gradients", "activations", "of the link's time"], lines)


def ablation_table(cases):
    """Times as long, and GB over the host's links."""
    lines = []
    for case in cases:
        if not case.get("ablation"):
            continue
        name = f"{case['profile']}, {case['global_batch_size']}"
        ours = [fitting(case, mode) for mode in OURS]
        lines.append([name, "(the plan)"] + [text for row in ours for text in (
            cell(row, lambda r: f"{r['step_seconds']:.2f} s"), cell(row, lambda r: f"{r['host_link_bytes'] / 1e9:.1f}"))])
        off = [{row["what"]: row for row in case["ablation"][mode]} for mode in OURS]
        for what in off[0] | off[1]:
            line = [name, what]
            for row, changed in zip(ours, (rows.get(what) for rows in off)):
                fits = row and changed and changed["fits"]
                line += [f"{changed['step_seconds'] / row['step_seconds']:.3f}" if fits else "does not fit" if row and changed else "-",
                         f"{changed['host_link_bytes'] / 1e9:.1f}" if fits else "-"]
            lines.append(line)
    return table(["model, batch", "switched off", "pp: times as long", "GB", "dp: times as long", "GB"], lines)


def largest(cases):
    """Of each model the largest batch on all GPUs."""
    result = {}
    for case in cases:
        if case["gpus"] == max(GPUS):
            result[case["profile"]] = case
    return result


def bars(plt, cases, key, unit, label, path, log):
    names = OURS + SHOWN
    figure, axes = panels(plt, len(cases), 4.2)
    for axis, (model, case) in zip(axes, cases.items()):
        rows = [fitting(case, name) for name in names]
        values = [row[key] / unit if row else 0 for row in rows]
        if log:
            axis.set_yscale("log")
        axis.bar(range(len(names)), values, color=["#1b5e8c"] * len(OURS) + ["#b0b0b0"] * len(SHOWN), edgecolor="black",
                 linewidth=0.5)
        for x, row in enumerate(rows):
            if not row:
                axis.text(x, 0.02, "does not fit", rotation=90, va="bottom", ha="center", fontsize=8,
                          transform=axis.get_xaxis_transform())
        axis.set_xticks(range(len(names)), names, rotation=90, fontsize=8)
        axis.set_title(f"{model}, {case['global_batch_size']} samples, {case['gpus']} GPUs", fontsize=10)
        axis.set_ylabel(label)
    save(figure, path)


def panels(plt, count, height):
    """One for each model, three in a row."""
    rows = -(-count // 3)
    figure, axes = plt.subplots(rows, 3, figsize=(12, height * rows), squeeze=False)
    for axis in axes.flat[count:]:
        axis.set_visible(False)
    return figure, axes.flat


def save(figure, path):
    figure.tight_layout()
    for kind in ("svg", "png"):
        figure.savefig(path.with_suffix("." + kind), dpi=150, metadata={"Date": None} if kind == "svg" else None)


def plot_scaling(plt, cases, path):
    figure, axes = panels(plt, len(largest(cases)), 3.2)
    for axis, (model, case) in zip(axes, largest(cases).items()):
        same = [c for c in cases if c["profile"] == model and c["global_batch_size"] == case["global_batch_size"]]
        for name, mark in (("harmony-pp", "o-"), ("harmony-dp", "s--"), ("dp-swap, recompute", "^:"), ("zero-infinity", "d:")):
            points = [(c["gpus"], fitting(c, name)["samples_per_second"]) for c in same if fitting(c, name)]
            axis.plot(*zip(*points), mark, label=name)
        alone = [row["samples_per_second"] for row in (fitting(same[0], name) for name in OURS) if row]
        if alone:
            axis.plot(GPUS, [max(alone) * g for g in GPUS], color="black", linewidth=0.7, label="linear")
        axis.set_xticks(GPUS)
        axis.set_xlabel("GPUs")
        axis.set_ylabel("samples/s")
        axis.set_title(f"{model}, {case['global_batch_size']} samples", fontsize=10)
    axes[0].legend(fontsize=8)
    save(figure, path)


def plot(cases, out):
    if importlib.util.find_spec("matplotlib") is None:
        print(f"no plots: matplotlib is not installed for {sys.executable}; `{sys.executable} -m pip install matplotlib`")
        return
    import matplotlib
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.fonttype"] = "none"  # text stays text
    matplotlib.rcParams["svg.hashsalt"] = "harmony"  # the same file each time
    import matplotlib.pyplot as plt
    bars(plt, largest(cases), "samples_per_second", 1, "samples/s", out / "throughput", log=False)
    bars(plt, largest(cases), "host_link_bytes", 1e9, "GB of a step over the host's links", out / "swap_volume", log=True)
    plot_scaling(plt, cases, out / "scaling")


def write_profiles(bert, folder):
    """Of the models that have no measured one; their paths."""
    paths = {}
    for name in convolutional.MODELS:
        paths[name] = folder / f"{name}.json"
        paths[name].write_text(json.dumps(convolutional.profile(name, *convolutional.speeds_of(bert))))
    return paths


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reference", type=pathlib.Path, help="folder with profiles/*.json")
    parser.add_argument("--plots-of", type=pathlib.Path, metavar="RESULTS", help="only the plots, of a results.json")
    parser.add_argument("-o", "--output", type=pathlib.Path, default=ROOT / "build" / "paper")
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "build" / "bin" / "paper_case")
    parser.add_argument("--harmony", type=pathlib.Path, default=ROOT / "build" / "bin" / "harmony")
    args = parser.parse_args()
    if args.plots_of:
        args.output.mkdir(parents=True, exist_ok=True)
        return plot(json.loads(args.plots_of.read_text())["paper"], args.output)
    for program in (args.program, args.harmony):
        if not program.exists():
            sys.exit(f"error: {program} is not built: ninja -C build paper_case all")
    profiles = {name: args.reference / "profiles" / f"{name}.json" for name in BATCHES if name not in convolutional.MODELS}
    for path in profiles.values():
        if not path.exists():
            sys.exit(f"error: {path}: no such profile")
    args.output.mkdir(parents=True, exist_ok=True)
    profiles |= write_profiles(json.loads(profiles["bert_96"].read_text()), args.output)
    begin = time.monotonic()
    # Each plans in one thread; what a plan is does not depend on how fast it is found.
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        asked = [(args.program, profiles[name], gpus, batch, gpus == max(GPUS) and ABLATION.get(name) == batch)
                 for name, batches in BATCHES.items() for batch in batches for gpus in GPUS]
        cases = list(pool.map(run_case, *zip(*asked)))
        now = today.run(args.harmony, args.output / "today", pool)
    print(f"{len(cases) + len(now)} cases: {time.monotonic() - begin:.0f} s", flush=True)
    (args.output / "results.json").write_text(json.dumps({"paper": cases, "today": now}, indent=1))
    text = "\n".join([
        "Throughput: Harmony in samples/s, and how many times as fast the faster of its modes is as each other:\n", speed_table(cases),
        "GB of a step over the host's links, all GPUs together:\n", swap_table(cases),
        "Throughput over that of one GPU in its faster mode, by GPU (1: linear):\n", scaling_table(cases),
        f"GB of `harmony-pp` on {max(GPUS)} GPUs over the host's links:\n", traffic_table(cases),
        "Each optimisation switched off by itself, on 4 GPUs:\n", ablation_table(cases),
        "Machines of today, models: tokens/s on one GPU, on all, and of linear:\n",
        table(["machine", "model", "system", "1 GPU", "8 GPUs", "of linear", ""], today.lines_of(now)),
        "8 x RTX 4090, published: tokens/s\n",
        table(["model", "system", "1 GPU", "8 GPUs", "of linear", "source"], today.published_lines()),
        "Published for large GPUs: TFLOP/s\n",
        table(["model", "GPUs", "system", "TFLOP/s", "source"], today.PUBLISHED_ON_LARGE)])
    (args.output / "tables.md").write_text(text)
    print(text)
    plot(cases, args.output)


if __name__ == "__main__":
    main()
