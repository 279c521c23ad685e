#!/usr/bin/env python3
"""The plain trainer against the same training written in PyTorch (transformers' GPT-2, SDPA, fused
AdamW; Harmony against the plain trainer: harmony_vs_plain.py). Both on the same cores: same model,
batch, microbatch, threads, wait policy; both recompute every block in backward and keep freed memory
mapped. They run in turns (A B A B); tokens/s of each step but a turn's first count.

    .deps/parity-venv/bin/python bench/pytorch_plain.py [--turns 2] [--steps 3] [--threads 2]
"""
import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

import environment

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "parity"))
PRESETS = {"gpt2-124m": {}, "gpt2-355m": dict(n_embd=1024, n_layer=24, n_head=16)}


def measure(args):
    """Trains in this process; prints one line a step."""
    import torch_loader  # noqa: F401  (before torch)
    import torch
    import transformers

    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    config = transformers.GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
                                     attn_implementation="sdpa", **PRESETS[args.model])
    model = transformers.GPT2LMHeadModel(config)
    model.train()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=dict(use_reentrant=False))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), eps=1e-8,
                                  weight_decay=0.1, fused=True)
    for step in range(args.steps):
        start = time.monotonic()
        total = 0.0
        for _ in range(args.batch // args.microbatch):
            tokens = torch.randint(0, config.vocab_size, (args.microbatch, args.tokens + 1))
            logits = model(tokens[:, :-1], use_cache=False).logits
            loss = torch.nn.functional.cross_entropy(
                logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum")
            loss = loss / (args.batch * args.tokens)
            loss.backward()
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        rate = args.batch * args.tokens / (time.monotonic() - start)
        print(json.dumps(dict(step=step + 1, loss=total, tokens_per_second=rate)), flush=True)


def rates(command, args):
    env = dict(environment.training(), OMP_NUM_THREADS=str(args.threads))
    out = subprocess.run(command, env=env, capture_output=True, text=True)
    if out.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{out.stderr[-2000:]}")
    found = [float(x) for x in re.findall(r'"tokens_per_second": ([0-9.e+]+)', out.stdout)]
    return found[1:]


def write_job(args, folder):
    data = folder / "tokens.bin"
    count = args.steps * args.batch * args.tokens + 1
    data.write_bytes(b"".join((i * 7919 % 50000).to_bytes(2, "little") for i in range(count)))
    job = folder / "job.yaml"
    job.write_text(f"""model_name_or_path: {args.model}
init: random
data: {{path: {data}, format: tokens-u16}}
sequence_length: {args.tokens}
global_batch_size: {args.batch}
micro_batch_size: {args.microbatch}
max_steps: {args.steps}
compute_threads: {args.threads}
output_dir: {folder}/run
""")
    return job


def run_turn(runner, args, job):
    """Tokens/s of the steps of one run."""
    if runner == "plain":
        return rates([args.plain_trainer, str(job), "--no-output"], args)
    flags = [f"--{name}={getattr(args, name)}"
             for name in ("model", "steps", "batch", "microbatch", "tokens", "threads")]
    return rates([sys.executable, __file__, "--measure"] + flags, args)


def compare(args):
    found = {runner: [] for runner in ("plain", "pytorch")}
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        job = write_job(args, folder)
        for turn in range(args.turns):
            for runner in found:
                found[runner] += run_turn(runner, args, job)
            print(f"turn {turn + 1}: " + ", ".join(
                f"{runner} {values[-1]:.1f}" for runner, values in found.items()) + " tokens/s",
                flush=True)
    medians = {}
    for runner, values in found.items():
        medians[runner] = statistics.median(values)
        print(f"{runner:8} median {medians[runner]:7.1f} tokens/s, "
              f"{min(values):.1f} to {max(values):.1f} over {len(values)} steps")
    print(f"plain / pytorch: {medians['plain'] / medians['pytorch']:.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="gpt2-124m", choices=sorted(PRESETS))
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--microbatch", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--plain-trainer", default=str(ROOT / "build" / "bin" / "plain_trainer"))
    parser.add_argument("--measure", action="store_true", help="only PyTorch, in this process")
    args = parser.parse_args()
    measure(args) if args.measure else compare(args)


if __name__ == "__main__":
    main()
