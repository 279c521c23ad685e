#!/usr/bin/env python3
"""Harmony's training against transformers + PyTorch, in fp32 or mixed precision.

For each architecture: makes a small checkpoint with every parameter away from its default, trains it
20 steps in transformers and by COMMAND on the same data, and compares each step's loss (1e-5
relative) and the final weights (1e-4), loaded through from_pretrained from output_dir/final.

    .deps/parity-venv/bin/python tests/parity/parity_test.py [--command CMD] [--only NAME] [--keep DIR] [--bf16]

With --bf16 it is `bf16: true` that is compared, by three recipes for each architecture: built-in ones, and BERT
exported by `harmony-export --dtype bf16`. PyTorch trains the same model in the same types, bf16 from fp32 masters, by
six choices of its own kernels (reference.py). How far any two of these are from each other is the spread of the losses;
Harmony's must not be further from the first. The first time, torch.compile takes minutes to make its kernels.

CMD gets the job file's path in place of {job}. The default is the plain trainer, `build/bin/plain_trainer {job}`, and for
exported models, which it does not train, `build/bin/harmony run {job} --devices sim:mem=64MiB --no-calibrate`; all by the
system: `build/bin/harmony run {job} --devices sim*2:mem=64MiB`.
Exits 1 when a case fails. Needs tests/parity/requirements.txt.
"""
import argparse
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import torch_loader  # noqa: F401  (before torch)
import torch
import transformers

import built_in
import exported
from reference import ALL_KERNELS, BATCH, MICROBATCH, STEPS, TOKENS, train_reference

BIN = pathlib.Path(__file__).resolve().parents[2] / "build" / "bin"
JOB = dict(learning_rate=3e-4, weight_decay=0.1, adam_beta1=0.9, adam_beta2=0.95, adam_epsilon=1e-8,
           lr_scheduler_type="constant", warmup_steps=0, max_grad_norm=0)
# What --bf16 trains each architecture by.
RECIPES = {
    "constant": {},
    "clipped": dict(max_grad_norm=0.5, lr_scheduler_type="cosine", warmup_steps=5),
    "fast": dict(learning_rate=3e-3, weight_decay=0.0, lr_scheduler_type="linear"),
}
BF16_CASES = ("gpt2", "llama", "qwen3", *exported.CASES)


def kind_of(name):
    """The module that knows the case."""
    return exported if name in exported.CASES else built_in


def make_checkpoint(build, config, directory):
    # Not far from the usual scale: gpt2's key bias has no effect on the loss, so its gradient is
    # rounding noise, which Adam blows up to the size of a step; with larger weights PyTorch differs
    # from itself (another microbatch size) by more than the tolerance there.
    torch.manual_seed(0)
    model = build.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
    model.save_pretrained(directory)


def write_job(path, keys):
    keys = {**keys, "init": "pretrained", "sequence_length": TOKENS, "global_batch_size": BATCH,
            "micro_batch_size": MICROBATCH, "max_steps": STEPS, "optim": "adamw"}
    path.write_text("".join(f"{key}: {value}\n" for key, value in keys.items()))


def losses_of(output):
    metrics = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    if [entry["step"] for entry in metrics] != list(range(1, STEPS + 1)):
        raise AssertionError(f"steps in metrics.jsonl: {[entry['step'] for entry in metrics]}")
    return [entry["loss"] for entry in metrics]


def distance(losses, others):
    """The worst relative difference of a step's loss."""
    return max(abs(other - loss) / abs(loss) for loss, other in zip(losses, others))


def compare(build, losses, weights, output):
    """The worst relative loss difference and the worst absolute weight difference."""
    worst_loss = distance(losses, losses_of(output))
    trained = build.from_pretrained(output / "final", dtype=torch.float32).state_dict()
    if set(trained) != set(weights):
        raise AssertionError(f"tensors differ: {set(trained) ^ set(weights)}")
    worst_weight = max((trained[name] - weights[name]).abs().max().item() for name in weights)
    return worst_loss, worst_weight


def prepare(name, folder, recipe=None):
    """Checkpoint and data of a case; the keys of its recipe."""
    kind = kind_of(name)
    make_config, changes = kind.CASES[name]
    folder.mkdir(parents=True)
    make_checkpoint(kind.BUILD, make_config(), folder / "model")
    kind.make_data(folder)
    kind.prepare(folder)
    return {**JOB, **changes, **(recipe or {})}


def train(name, command, folder, job):
    """By Harmony, from and into the folders of a case; whether it succeeded."""
    kind = kind_of(name)
    write_job(folder / "job.yaml", {**kind.keys(folder), **job, "output_dir": folder / "run"})
    command = command or f"{BIN}/{kind.COMMAND}"
    result = subprocess.run(shlex.split(command.format(job=folder / "job.yaml")),
                            capture_output=True, text=True)
    if result.returncode != 0:
        print(f"{name:16} FAILED: exit code {result.returncode}\n{result.stdout[-2000:]}{result.stderr[-2000:]}")
    return result.returncode == 0


def run_bf16_case(name, recipe, command, folder):
    job = prepare(name, folder, RECIPES[recipe])
    kind = kind_of(name)
    torch.set_num_threads(kind.THREADS)
    references = [train_reference(kind.BUILD, folder / "model", kind.read_data(folder), job, torch.bfloat16, kernels)[0]
                  for kernels in ALL_KERNELS]
    spread = max(distance(one, other) for one in references for other in references)
    if not train(name, command, folder, {**job, "bf16": "true"}):
        return False
    first = references[0]
    ours = distance(first, losses_of(folder / "run"))
    good = ours <= spread
    print(f"{name:11} {recipe:8} {'ok' if good else 'FAILED':6} loss {first[0]:.4f} -> {first[-1]:.4f}, "
          f"spread of PyTorch's kernels {spread:.2e}, Harmony from the first of them {ours:.2e}", flush=True)
    return good


def run_case(name, command, folder):
    job = prepare(name, folder)
    kind = kind_of(name)
    losses, weights = train_reference(kind.BUILD, folder / "model", kind.read_data(folder), job)
    if not train(name, command, folder, job):
        return False
    loss, weight = compare(kind.BUILD, losses, weights, folder / "run")
    good = loss <= 1e-5 and weight <= 1e-4
    print(f"{name:16} {'ok' if good else 'FAILED':6} loss {losses[0]:.4f} -> {losses[-1]:.4f}, "
          f"worst difference: loss {loss:.2e} (relative), weights {weight:.2e}", flush=True)
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--command")
    parser.add_argument("--only", choices=sorted([*built_in.CASES, *exported.CASES]), action="append")
    parser.add_argument("--keep", help="work in this new directory and leave it")
    parser.add_argument("--bf16", action="store_true", help="mixed precision")
    options = parser.parse_args()
    narrow_only = [name for name in options.only or [] if name in exported.CASES]
    if narrow_only and not options.bf16:
        parser.error(f"{', '.join(narrow_only)}: exported models are compared with --bf16")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(options.keep or temporary)
        if options.bf16:
            results = [run_bf16_case(name, recipe, options.command, folder / name / recipe)
                       for name in options.only or BF16_CASES for recipe in RECIPES]
        else:
            results = [run_case(name, options.command, folder / name) for name in options.only or built_in.CASES]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
