#!/usr/bin/env python3
"""PyTorch's fused CPU AdamW, measured as bench/adamw_bench.cc measures ours.

With --against build/bin/adamw_bench both run in turns (A B A B); each turn gives a ratio of medians,
and the median and spread of these are printed (other load on the machine hits neighbours alike).
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import time


def measure(args):
    """Sorted parameters/s of each round, the first (which allocates) left out."""
    import torch

    torch.set_num_threads(args.threads)
    weight = torch.nn.Parameter(torch.randn(args.parameters) * 0.02)
    weight.grad = torch.randn(args.parameters) * 1e-3
    optimizer = torch.optim.AdamW(
        [weight], lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, fused=True
    )
    rates = []
    for _ in range(args.rounds + 1):
        start = time.monotonic()
        optimizer.step()
        rates.append(args.parameters / (time.monotonic() - start))
    return sorted(rates[1:])


def compare(args):
    flags = [
        f"--parameters={args.parameters}",
        f"--threads={args.threads}",
        f"--rounds={args.rounds}",
    ]
    plain_flags = [part for flag in flags for part in flag.split("=")]
    env = dict(os.environ, OMP_WAIT_POLICY="passive", OMP_DYNAMIC="false")
    medians = {}
    for _ in range(args.turns):
        for command in (
            [args.against, "--best", *plain_flags],
            [sys.executable, __file__, *flags],
        ):
            output = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
            for name, value in re.findall(r"^(.*?) +([0-9.e+]+) parameters/s", output.stdout, re.M):
                medians.setdefault(name, []).append(float(value))
            print(output.stdout, end="")
    reference = medians["pytorch fused"]
    for name, values in medians.items():
        ratios = sorted(value / other for value, other in zip(values, reference))
        print(
            f"ratio {name}: {statistics.median(ratios):.3f} of PyTorch's"
            f" ({ratios[0]:.3f} .. {ratios[-1]:.3f})"
        )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--parameters", type=int, default=64 << 20)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--against", help="adamw_bench to run in turns with this one")
    parser.add_argument("--turns", type=int, default=3)
    args = parser.parse_args()
    if args.against:
        compare(args)
        return
    rates = measure(args)
    median = statistics.median(rates)
    print(
        f"{'pytorch fused':22} {median:.4g} parameters/s ({rates[0]:.4g} .. {rates[-1]:.4g}), "
        f"{median * 28e-9:.1f} GB/s, {args.threads} threads"
    )


if __name__ == "__main__":
    main()
