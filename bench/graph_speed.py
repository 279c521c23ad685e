#!/usr/bin/env python3
"""Graphs of exported models against the same models in eager PyTorch, at realistic sizes, one thread each.

The yardstick is eager PyTorch's forward and backward of one microbatch, half of its repeats before and half after
Harmony's. That is the sum over all layers of what `harmony profile` measures of a forward and a backward of each, in the
worker that trains. Of both the least of the repeats counts, for what else the machine does only adds to it. The graphs are
measured once more with fast_products. For gpt2 and llama the built-in layers are measured likewise, and both are trained
for a few steps. Memory is layer_memory.py's.

    .deps/export-venv/bin/python bench/graph_speed.py [--models NAME ...] [--repeats 6] [--json FILE]

Bars: at most 1.03 of eager's time in the geometric mean, losses of exported and built-in models within 1e-6 of each
other. Exit code 1 when one is missed. Takes some fifteen minutes and 8 GiB of memory.
"""
import argparse
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / part) for part in ("deploy/models", "client/export", "bench", "tests/export")]

import environment

if __name__ == "__main__" and os.environ.get("OMP_WAIT_POLICY") != "passive":  # read when the program starts
    os.execve(sys.executable, [sys.executable, *sys.argv], environment.training())

import numpy
import torch

import torch.nn.functional as functional

import examples
import harmony_export
import own_models
from harmony_export.export import loss_call
from harmony_export.tasks import torchvision

DEVICES = "sim:mem=6GiB"
BUILT_IN = {"gpt2": ("GPT2Config", {"n_positions": 256, "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}),
            "llama": ("LlamaConfig", {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12,
                                      "num_attention_heads": 12, "vocab_size": 32000})}
LENGTH = 256


def images(model, size, labels):
    """A model of images with two of them."""
    return model, "cross_entropy", {"pixel_values": torch.randn(2, 3, size, size), "labels": labels}, {}


def tagger(kind):
    """Two recurrent layers in both directions over 64 tokens."""
    tokens = torch.randint(0, 10000, (2, 64))
    model = own_models.RecurrentTagger(kind, vocabulary=10000, classes=16, width=384)
    return model, lambda result, batch: functional.cross_entropy(result.flatten(0, 1), batch["labels"].flatten()), {
        "input_ids": tokens, "labels": tokens % 16}, {"values_below": {"input_ids": 10000, "labels": 16}}


def of_torchvision(name):
    made = torchvision(name, "cross_entropy")
    return made.model, made.loss, made.sample_batch, {}


OTHERS = {
    "mobilenet": lambda: of_torchvision("mobilenet_v2"),
    "densenet": lambda: of_torchvision("densenet121"),
    "unet": lambda: images(own_models.UNetwork(width=32), 128, torch.randint(0, 4, (2, 128, 128))),
    "lstm": lambda: tagger(torch.nn.LSTM),
    "gru": lambda: tagger(torch.nn.GRU),
    "mamba": lambda: examples.of_transformers("causal-lm", "MambaConfig", 64, vocab_size=32000, hidden_size=512,
                                              num_hidden_layers=6),
}
SAMPLES = {"graph": 64, "sequential": 64}  # of a microbatch; else 2


def example(name):
    if name in BUILT_IN:
        kind, sizes = BUILT_IN[name]
        return examples.of_transformers("causal-lm", kind, LENGTH, **sizes)
    if name in OTHERS:
        return OTHERS[name]()
    return examples.EXAMPLES[name](False)


def harmony(*args):
    done = subprocess.run([ROOT / "build" / "bin" / "harmony", *map(str, args)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"harmony {' '.join(map(str, args))}: exit {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def like(tensor, samples):
    """Random samples like those of a tensor."""
    shape = (samples, *tensor.shape[1:])
    if tensor.is_floating_point():
        return torch.randn(shape)
    return torch.randint(0, max(int(tensor.max()), 1) + 1, shape)


class Eager:
    def __init__(self, model, call, batch):
        self.model, self.call, self.batch = model.train(), call, batch
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        self.step()

    def step(self):
        begin = time.monotonic()
        self.call(self.model, self.batch).backward()
        return time.monotonic() - begin


def peak_of(run):
    """The most that PyTorch allocates while it runs."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as prof:
        run()
    now = most = 0
    for event in prof.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            most = max(most, now)
    return most


def layers_of(job, folder):
    """Seconds of a forward and a backward of all layers, and [kind, count, seconds] of each kind."""
    harmony("profile", job, "--quick", "--recalibrate", "--devices", DEVICES, "-o", folder / "P.json")
    described = json.loads((folder / "P.json").read_text())["devices"][0]["layers"]
    kinds = [[layer["kind"], len(layer["layers"]), least_seconds(layer)] for layer in described]
    return sum(count * seconds for _, count, seconds in kinds), kinds


def least_seconds(layer):
    size = layer["sizes"][-1]
    return size.get("backward_inner_s", size["backward_s"])["least"]


def losses_of(job, folder, out):
    harmony("run", job, "--devices", DEVICES, "--no-calibrate", "--runtime-dir", folder / "run")
    return [json.loads(line)["loss"] for line in (out / "metrics.jsonl").read_text().splitlines()]


def write_job(folder, name, **keys):
    job = folder / f"{name}.json"
    job.write_text(json.dumps({"init": "pretrained", "optim": "sgd", "learning_rate": 0.01, "compute_threads": 1,
                               "output_dir": str(folder / name), **keys}))
    return job


class Example:
    """A model with a batch of its own, exported into a folder, and a job that trains it on that batch."""

    def __init__(self, name, folder, **options):
        self.model, self.loss, batch, self.options = example(name)
        self.samples = SAMPLES.get(name, 2)
        self.batch = {key: like(tensor, self.samples) for key, tensor in batch.items()}
        if name in BUILT_IN:
            self.model.float()
        self.name, self.folder = name, folder
        self.export(**options)
        inputs = {}
        for key, tensor in self.batch.items():
            inputs[key] = str(folder / f"{key}.npy")
            numpy.save(inputs[key], tensor.numpy())
        self.sizes = {"global_batch_size": self.samples, "micro_batch_size": self.samples, "max_steps": 1}
        if self.options.get("sequence_length"):
            self.sizes["sequence_length"] = self.options["sequence_length"]
        self.job = write_job(folder, "exported", model_name_or_path=str(folder / "model"), data={"inputs": inputs},
                             **self.sizes)

    def export(self, **options):
        harmony_export.export(self.model, self.loss, self.batch, out=self.folder / "model", name=self.name, check=False,
                              overwrite=True, report=lambda text: None, **{**self.options, **options})


def measure(name, repeats, folder):
    torch.manual_seed(0)
    made = Example(name, folder)
    model, job = made.model, made.job
    eager = Eager(model, loss_call(model, made.loss, made.batch), made.batch)
    times = [eager.step() for _ in range(repeats)]
    seconds, layers = layers_of(job, folder)
    made.export(fast_products=True)
    fast, _ = layers_of(job, folder)
    times += [eager.step() for _ in range(repeats)]
    row = {"model": name, "samples": made.samples, "eager": min(times), "most": max(times), "harmony": seconds,
           "ratio": seconds / min(times), "fast": fast, "fast_ratio": fast / min(times), "layers": layers}
    if name in BUILT_IN:
        numpy.random.default_rng(0).integers(0, 32000, 40 * LENGTH, numpy.uint16).tofile(folder / "tokens.bin")
        made.export()
        (model if hasattr(model, "save_pretrained") else model.model).save_pretrained(folder / "built-in")
        tokens = {**made.sizes, "global_batch_size": 4, "max_steps": 5,
                  "data": {"path": str(folder / "tokens.bin"), "format": "tokens-u16"}}
        jobs = {kind: write_job(folder, kind, model_name_or_path=str(path), **tokens)
                for kind, path in (("built-in", folder / "built-in"), ("graphs", folder / "model"))}
        losses = {kind: losses_of(path, folder, folder / kind) for kind, path in jobs.items()}
        row["built_in"], row["built_in_layers"] = layers_of(jobs["built-in"], folder)
        row["losses_apart"] = max(abs(a - b) / abs(b) for a, b in zip(losses["graphs"], losses["built-in"]))
        made.export(fused_loss=True, fast_products=True)
        row["both"], row["both_layers"] = layers_of(job, folder)
        fused = losses_of(write_job(folder, "fused", model_name_or_path=str(folder / "model"), **tokens), folder,
                          folder / "fused")
        row["both_apart"] = max(abs(a - b) / abs(b) for a, b in zip(fused, losses["built-in"]))
    return row


def report(rows):
    print("| model | samples | eager | graphs | ratio | fast products | ratio |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for row in rows:
        print(f"| {row['model']} | {row['samples']} | {row['eager'] * 1e3:.0f} ms | {row['harmony'] * 1e3:.0f} ms | "
              f"{row['ratio']:.3f} | {row['fast'] * 1e3:.0f} ms | {row['fast_ratio']:.3f} |")
    for row in rows:
        if "built_in" not in row:
            continue
        print(f"{row['model']}, built-in: {row['built_in'] * 1e3:.0f} ms; graphs "
              f"{row['harmony'] / row['built_in']:.2f} of its time, losses {row['losses_apart']:.1e} apart; with "
              f"fused loss and fast products {row['both'] / row['built_in']:.2f}, {row['both_apart']:.1e}")
    mean, fast = (math.exp(statistics.mean(math.log(row[key]) for row in rows)) for key in ("ratio", "fast_ratio"))
    print(f"geometric mean of the ratios: {mean:.3f}, with fast products {fast:.3f}")
    return mean <= 1.03 and all(row.get("losses_apart", 0) <= 1e-6 for row in rows)


def main():
    names = [*examples.EXAMPLES, *OTHERS, *BUILT_IN]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=names, metavar="NAME", default=names)
    parser.add_argument("--repeats", type=int, default=6, help="of eager PyTorch, before and after")
    parser.add_argument("--json", help="file for the figures")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name in args.models:
        with tempfile.TemporaryDirectory(prefix="hm-", dir=ROOT / "build") as scratch:
            rows.append(measure(name, args.repeats, pathlib.Path(scratch)))
        print(rows[-1], flush=True)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(rows, indent=1) + "\n")
    sys.exit(0 if report(rows) else 1)


if __name__ == "__main__":
    main()
