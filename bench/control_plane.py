#!/usr/bin/env python3
"""How long devices waited for commands: the control plane's share of each step, from a trace.

    harmony run JOB.yaml --devices 'sim*4:mem=64MiB' --trace T.json     # or: harmony trace JOB -o T.json
    python3 bench/control_plane.py T.json [--max-share 0.02] [--min-step-ms 50]

A device waits for a command when its compute lane is free and the next command has not yet reached
its process ("waiting for commands" in the trace); the time counts whether or not the command's
inputs were there already, so the figure is an upper bound. A step lasts from its first task to the
next step's first task. Prints the share of each device and of all; the exit code is 1 when that
of all is above --max-share, or the median step is shorter than --min-step-ms.
"""
import argparse
import collections
import json
import statistics
import sys


def read(path):
    """(steps in ms, {device: {step: waited ms}}) of the compute rows of the trace."""
    with open(path) as file:
        events = json.load(file)["traceEvents"]
    names = {(e["pid"], e["tid"], e["name"]): e["args"]["name"] for e in events
             if e["name"] in ("process_name", "thread_name")}
    begins, waits = {}, collections.defaultdict(lambda: collections.Counter())
    for event in events:
        if event["ph"] != "X":
            continue
        row = names[event["pid"], event["tid"], "thread_name"]
        if row != "compute, measured":
            continue
        step, device = int(event["args"]["step"]), names[event["pid"], 0, "process_name"]
        if "command_wait_us" in event["args"]:
            waits[device][step] += event["args"]["command_wait_us"] / 1000
        else:
            waits[device][step] += 0
            begins[step] = min(begins.get(step, event["ts"]), event["ts"])
    steps = {step: (begins[step + 1] - begin) / 1000 for step, begin in begins.items()
             if step + 1 in begins}
    return steps, waits


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace")
    parser.add_argument("--max-share", type=float, default=0.02)
    parser.add_argument("--min-step-ms", type=float, default=50)
    args = parser.parse_args()
    steps, waits = read(args.trace)
    if not steps:
        sys.exit(f"{args.trace}: no whole step in it")
    median = statistics.median(steps.values())
    print(f"{len(steps)} steps, {min(steps)} to {max(steps)}; median {median:.1f} ms")
    worst = 0
    for device in sorted(waits):
        shares = [waits[device][step] / length for step, length in steps.items()]
        worst = max(worst, max(shares))
        print(f"{device:10} waited for commands {100 * statistics.fmean(shares):.3f}% of a step on "
              f"average, {100 * statistics.median(shares):.3f}% in the median, {100 * max(shares):.3f}% at most")
    total = sum(waits[device][step] for device in waits for step in steps)
    share = total / (sum(steps.values()) * len(waits))
    print(f"all devices: {100 * share:.3f}% of the time (limit {100 * args.max_share:g}%)")
    sys.exit(1 if share > args.max_share or median < args.min_step_ms else 0)


if __name__ == "__main__":
    main()
