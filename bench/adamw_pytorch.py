#!/usr/bin/env python3
"""PyTorch's fused CPU AdamW, measured as bench/adamw_bench.cc measures ours."""

import argparse
import statistics
import time

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--parameters", type=int, default=64 << 20)
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--rounds", type=int, default=7)
args = parser.parse_args()

torch.set_num_threads(args.threads)
weight = torch.nn.Parameter(torch.randn(args.parameters) * 0.02)
weight.grad = torch.randn(args.parameters) * 1e-3
optimizer = torch.optim.AdamW(
    [weight], lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, fused=True
)
rates = []
for round_number in range(-1, args.rounds):
    start = time.monotonic()
    optimizer.step()
    seconds = time.monotonic() - start
    if round_number >= 0:
        rates.append(args.parameters / seconds)
rates.sort()
median = statistics.median(rates)
print(
    f"{'pytorch fused':22} {median:.4g} parameters/s ({rates[0]:.4g} .. {rates[-1]:.4g}), "
    f"{median * 28e-9:.1f} GB/s, {args.threads} threads"
)
