#!/usr/bin/env python3
"""Exports models of many kinds, with random weights and random data: what each of deploy/jobs/NAME.yaml trains.

    examples.py bert | t5 | vit | resnet-50 | vgg-16 | mixtral | graph | sequential [--out DIR] [--tiny]

Each is a few lines, to take for a model of one's own. With --tiny sizes are such that a step takes moments on a CPU.
Runs where torch is, and transformers for the first four and mixtral.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "client" / "export"))

import numpy
import torch
from torch import Tensor, nn

from harmony_export import export
from harmony_export.tasks import hugging_face

Example = tuple[nn.Module, Any, dict[str, Tensor], dict[str, Any]]


def of_transformers(task: str, kind: str, length: int | None = None, **sizes: Any) -> Example:
    """A model of transformers by its configuration; what is not given is as published."""
    import transformers

    made = hugging_face(getattr(transformers, kind)(**sizes), task, sequence_length=length)
    return made.model, made.loss, made.sample_batch, {"values_below": made.values_below,
                                                      "sequence_length": made.sequence_length}


def bert(tiny: bool) -> Example:
    """For masked words, which the job draws."""
    sizes = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 256}
    return of_transformers("masked-lm", "BertConfig", 128, **(sizes if tiny else {}))


def t5(tiny: bool) -> Example:
    """An encoder and a decoder."""
    sizes = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4}
    model, loss, batch, options = of_transformers("seq2seq", "T5Config", 64, **(sizes if tiny else {}))
    # All layers add to the gradient of one position bias, in another order than eager PyTorch.
    return model, loss, batch, {**options, "tolerance": 1e-5}


def vit(tiny: bool) -> Example:
    """A transformer of images."""
    sizes = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 128,
             "image_size": 32, "patch_size": 8}
    return of_transformers("image-classification", "ViTConfig", num_labels=10, **(sizes if tiny else {}))


def resnet(tiny: bool) -> Example:
    """ResNet-50."""
    sizes = {"embedding_size": 8, "hidden_sizes": [16, 32], "depths": [2, 2], "image_size": 32}
    return of_transformers("image-classification", "ResNetConfig", num_labels=10, **(sizes if tiny else {}))


def mixtral(tiny: bool) -> Example:
    """A mixture of experts: two of eight for each token."""
    width = 64 if tiny else 512
    return of_transformers("causal-lm", "MixtralConfig", 64, vocab_size=1024, hidden_size=width, num_hidden_layers=4,
                           num_attention_heads=8, num_key_value_heads=4, intermediate_size=2 * width,
                           max_position_embeddings=64, num_local_experts=8, num_experts_per_tok=2)


def vgg(tiny: bool) -> Example:
    """VGG-16, one nn.Sequential: each convolution with what follows it is a layer."""
    layers: list[nn.Module] = []
    inside, scale = 3, 8 if tiny else 1
    for width in (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0):
        if width == 0:
            layers.append(nn.MaxPool2d(2))
        else:
            layers += [nn.Conv2d(inside, width // scale, 3, padding=1), nn.ReLU(inplace=True)]
            inside = width // scale
    size, hidden = (32, 64) if tiny else (224, 4096)
    layers += [nn.Flatten(), nn.Linear(inside * (size // 32)**2, hidden), nn.ReLU(inplace=True), nn.Dropout(),
               nn.Linear(hidden, hidden), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(hidden, 10)]
    batch = {"pixel_values": torch.randn(2, 3, size, size), "labels": torch.tensor([1, 7])}
    return nn.Sequential(*layers), "cross_entropy", batch, {}


class GraphConvolution(nn.Module):
    """Each node takes the mean of its neighbours (Kipf and Welling, 2017); the graph is part of the model."""

    def __init__(self, adjacency: Tensor, inside: int, outside: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inside, outside)
        self.register_buffer("mean", adjacency / adjacency.sum(1, keepdim=True))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.mean @ self.linear(x))


def graph(tiny: bool) -> Example:
    """A graph of 34 nodes, each with eight features in a sample, and one of four classes for each node."""
    nodes, width = 34, 32 if tiny else 256
    edges = (torch.rand(nodes, nodes) < 0.15).float()
    adjacency = ((edges + edges.T + torch.eye(nodes)) > 0).float()
    model = nn.Sequential(*[GraphConvolution(adjacency, 8 if i == 0 else width, width) for i in range(4)],
                          nn.Linear(width, 4))
    batch = {"x": torch.randn(2, nodes, 8), "labels": torch.randint(0, 4, (2, nodes))}
    return model, "cross_entropy", batch, {}


def sequential(tiny: bool) -> Example:
    """A model of one's own."""
    width = 64 if tiny else 2048
    blocks = [nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width), nn.GELU(), nn.Dropout(0.1))
              for _ in range(8)]
    model = nn.Sequential(nn.Linear(32, width), *blocks, nn.Linear(width, 10))
    return model, "cross_entropy", {"x": torch.randn(2, 32), "labels": torch.tensor([3, 8])}, {}


EXAMPLES: dict[str, Callable[[bool], Example]] = {
    "bert": bert, "t5": t5, "vit": vit, "resnet-50": resnet, "vgg-16": vgg, "mixtral": mixtral, "graph": graph,
    "sequential": sequential}


def write_data(folder: Path, name: str, batch: dict[str, Tensor], samples: int) -> None:
    """Random samples like those of the batch; for BERT a file of tokens, of which the job masks some."""
    folder.mkdir()
    if name == "bert":
        length = batch["input_ids"].shape[1]
        numpy.random.randint(1000, 30000, samples * length + 1, dtype=numpy.uint16).tofile(folder / "tokens.bin")
        return
    for key, tensor in batch.items():
        shape = (samples, *tensor.shape[1:])
        values = torch.randn(shape) if tensor.is_floating_point() else torch.randint(0, int(tensor.max()) + 1, shape)
        numpy.save(folder / f"{key}.npy", values.numpy())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("example", choices=EXAMPLES)
    parser.add_argument("--out", type=Path, help="build/models/NAME where it is not given")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--samples", type=int, default=64, help="of the data")
    args = parser.parse_args()
    out = args.out or ROOT / "build" / "models" / args.example
    torch.manual_seed(0)
    numpy.random.seed(0)
    model, loss, batch, options = EXAMPLES[args.example](args.tiny)
    export(model, loss, batch, out=out, name=args.example, overwrite=True, **options)
    write_data(out / "data", args.example, batch, args.samples)
    print(f"written to {out}; train it by: harmony run deploy/jobs/{args.example}.yaml --devices 'sim*2:mem=2GiB'")


if __name__ == "__main__":
    main()
