#!/usr/bin/env python3
"""Memory of the layers of exported models against the same layers in eager PyTorch: a forward and a backward of each
distinct layer by itself, at the sizes of graph_speed.py.

    .deps/export-venv/bin/python bench/layer_memory.py [--models NAME ...]

Eager is the layer's operations under autograd; counted is the most that it allocates beside the layer's inputs,
parameters and their gradients, and what comes back to its outputs. Harmony's is what `harmony profile` sees of the
workspace in a backward task of that layer, which computes its forward again, and the place of its inputs' gradients,
which the task has from its beginning. Dropout is off, for eager PyTorch draws other masks. Counts, not times: they do
not depend on what else the machine does. Exit code 1 when a layer takes more than eager PyTorch does, but for what rounding
to slots costs a few small tensors, which eager PyTorch's count knows nothing of.
"""
import argparse
import json
import pathlib
import sys
import tempfile

import graph_speed  # sets the environment up, and the paths
import numpy
import torch

import harmony_export
from harmony_export.directory import Assembler
from harmony_export.polynomial import SAMPLES
from harmony_export.symbols import expression

MIB = 2**20
ROUNDING = 1024  # bytes: four slots


class Recording(Assembler):
    """Keeps the pieces that an export was made of."""
    chain = None

    def __init__(self, chain, description):
        Recording.chain = chain
        super().__init__(chain, description)


sys.modules["harmony_export.export"].Assembler = Recording


def argument(fake, samples):
    """A tensor like the one that was traced, for so many samples; or their number."""
    if not isinstance(fake, torch.Tensor):
        return samples
    shape = [int(expression(size).subs({SAMPLES: samples})) for size in fake.shape]
    strides = [int(expression(stride).subs({SAMPLES: samples})) for stride in fake.stride()]
    if fake.is_floating_point():
        values = torch.empty_strided(shape, strides).normal_(0, 0.02)
        return values.requires_grad_(fake.requires_grad)
    return torch.ones(shape, dtype=fake.dtype)


class EagerLayer:
    def __init__(self, piece, samples):
        self.module = piece.module
        self.arguments = [argument(fake, samples) for fake in piece.arguments]
        self.inputs = [a for a, parameter in zip(self.arguments, piece.is_parameter)
                       if not parameter and a.requires_grad]
        for tensor in self.arguments:
            if isinstance(tensor, torch.Tensor) and tensor.requires_grad and all(tensor is not i for i in self.inputs):
                tensor.grad = torch.zeros_like(tensor)
        self.tangents = None

    def forward(self):
        made = self.module(*self.arguments)
        made = made if isinstance(made, (tuple, list)) else [made]
        return [tensor for tensor in made if isinstance(tensor, torch.Tensor) and tensor.requires_grad]

    def step(self):
        torch.autograd.backward(self.forward(), self.tangents)
        for tensor in self.inputs:
            tensor.grad = None

    def peak(self):
        self.tangents = [torch.randn_like(tensor) for tensor in self.forward()]
        self.step()
        return graph_speed.peak_of(self.step)


def measure(name, folder):
    torch.manual_seed(0)
    job = graph_speed.Example(name, folder, dropout=False).job
    graph_speed.harmony("profile", job, "--quick", "--recalibrate", "--devices", graph_speed.DEVICES, "-o", folder / "P.json")
    rows = []
    for layer in json.loads((folder / "P.json").read_text())["devices"][0]["layers"]:
        size = layer["sizes"][-1]
        eager = EagerLayer(Recording.chain.pieces[layer["layers"][0]], size["samples"])
        gradients = sum(tensor.numel() * tensor.element_size() for tensor in eager.inputs)
        rows.append((name, layer["kind"], len(layer["layers"]), eager.peak(),
                     size["backward_workspace_bytes"] + gradients))
    return rows


def main():
    names = [*graph_speed.examples.EXAMPLES, *graph_speed.BUILT_IN]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=names, metavar="NAME", default=names)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print("| model | layer | layers | eager, MiB | graphs, MiB | ratio | difference, bytes |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    above = 0
    for name in args.models:
        with tempfile.TemporaryDirectory(prefix="hm-", dir=graph_speed.ROOT / "build") as scratch:
            rows = measure(name, pathlib.Path(scratch))
        for model, kind, count, eager, ours in rows:
            print(f"| {model} | {kind} | {count} | {eager / MIB:.2f} | {ours / MIB:.2f} | {ours / eager:.3f} | {ours - eager:.0f} |", flush=True)
            above += ours > eager + ROUNDING
    sys.exit(1 if above else 0)


if __name__ == "__main__":
    main()
