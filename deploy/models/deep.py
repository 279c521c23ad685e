#!/usr/bin/env python3
"""Exports the deep models of the Harmony paper, with random weights and random data to train them on.

    deep.py bert-96 [--out build/models/bert-96] [--width 256] [--length 128] [--samples 64]

Depths are fixed; widths, lengths and sizes of images are options. Runs where torch is (and transformers, for BERT).
deploy/jobs has a job for each. What each model consists of is said at its function: the paper gives depths only.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "client" / "export"))

import numpy
import torch
from torch import Tensor, nn

from harmony_export import export, without_memory
from harmony_export.tasks import hugging_face


def bert(args: argparse.Namespace) -> tuple[nn.Module, Any, dict[str, Any]]:
    """BERT with 96 encoder layers and the sizes of BERT-large, for masked words."""
    import transformers

    width = args.width or 1024
    config = transformers.BertConfig(hidden_size=width, num_hidden_layers=96, num_attention_heads=max(width // 64, 1),
                                     intermediate_size=4 * width, max_position_embeddings=max(args.length, 512),
                                     vocab_size=args.vocabulary)
    task = hugging_face(config, "masked-lm", sequence_length=args.length, fake=not args.weights, dropout=False)
    return task.model, task.loss, {"values_below": task.values_below, "sequence_length": args.length}


def vgg(args: argparse.Namespace) -> tuple[nn.Module, Any, dict[str, Any]]:
    """VGG-16 with 80 more 3x3 convolutions in each of its five stages: 413 convolutions, each with BatchNorm, and
    three matrices.

    Without shortcuts gradients would grow by a fifth with every normalisation, to infinity in the first layers. So
    convolutions begin as the identity with some noise, and biases keep most of what enters a ReLU above zero."""
    width = args.width or 64
    blocks: list[nn.Module] = []
    channels = 3
    for stage, (count, times) in enumerate(zip((82, 82, 83, 83, 83), (1, 2, 4, 8, 8))):
        for i in range(count):
            convolution = nn.Conv2d(channels, width * times, 3, padding=1, bias=False)
            if channels == width * times:
                nn.init.normal_(convolution.weight, std=0.1 / (3 * channels**0.5))
                with torch.no_grad():
                    convolution.weight += nn.init.dirac_(torch.empty_like(convolution.weight))
            channels = width * times
            norm = nn.BatchNorm2d(channels)
            nn.init.constant_(norm.bias, 3.0)
            pool = [nn.MaxPool2d(2)] if i + 1 == count and args.image >> stage > 1 else []
            blocks.append(nn.Sequential(convolution, norm, nn.ReLU(), *pool))
    pixels, hidden = max(args.image // 32, 1)**2, 64 * width
    classifier = nn.Sequential(nn.Linear(channels * pixels, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(),
                               nn.Linear(hidden, args.classes))
    model = nn.Sequential()
    model.add_module("features", nn.Sequential(*blocks))
    model.add_module("flatten", nn.Flatten())
    model.add_module("classifier", classifier)
    return model, "cross_entropy", {"cuts": ["features.*", "classifier.0", "classifier.2", "classifier.4"]}


class Bottleneck(nn.Module):
    """Three convolutions, each after a normalisation and a ReLU, beside a shortcut."""

    def __init__(self, inside: int, width: int, outside: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(inside), nn.Conv2d(inside, width, 1, bias=False)
        self.norm2, self.conv2 = nn.BatchNorm2d(width), nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.norm3, self.conv3 = nn.BatchNorm2d(width), nn.Conv2d(width, outside, 1, bias=False)
        self.shortcut = nn.Conv2d(inside, outside, 1, stride, bias=False) if inside != outside else None

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm1(x))
        x = x if self.shortcut is None else self.shortcut(y)
        y = self.conv1(y)
        y = self.conv2(torch.relu(self.norm2(y)))
        return x + self.conv3(torch.relu(self.norm3(y)))


def resnet(args: argparse.Namespace) -> tuple[nn.Module, Any, dict[str, Any]]:
    """The pre-activation ResNet for small images of "Identity Mappings in Deep Residual Networks" with three stages of
    114 bottlenecks: 1026 convolutions in these, one before, and a matrix behind them."""
    width = args.width or 16
    blocks: list[nn.Module] = []
    inside = width
    for stage in range(3):
        for i in range(114):
            blocks.append(Bottleneck(inside, width << stage, 4 * width << stage, 2 if stage and i == 0 else 1))
            inside = 4 * width << stage
    model = nn.Sequential()
    model.add_module("stem", nn.Conv2d(3, width, 3, padding=1, bias=False))
    model.add_module("blocks", nn.Sequential(*blocks))
    model.add_module("head", nn.Sequential(nn.BatchNorm2d(inside), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                                           nn.Linear(inside, args.classes)))
    return model, "cross_entropy", {"cuts": ["stem", "blocks.*", "head"]}


MODELS: dict[str, Callable[[argparse.Namespace], tuple[nn.Module, Any, dict[str, Any]]]] = {
    "bert-96": bert, "vgg-416": vgg, "resnet-1026": resnet}


def batch_of(args: argparse.Namespace, samples: int) -> dict[str, Tensor]:
    """Noise with labels: words for BERT, images for the others."""
    if args.model == "bert-96":
        return {name: torch.randint(0, args.vocabulary, (samples, args.length)) for name in ("input_ids", "labels")}
    return {"pixel_values": torch.randn(samples, 3, args.image, args.image),
            "labels": torch.randint(0, args.classes, (samples,))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--out", type=Path, help="build/models/MODEL where it is not given")
    parser.add_argument("--width", type=int, help="hidden size, or channels of the first stage: 1024, 64, 16")
    parser.add_argument("--length", type=int, default=128, help="of a sequence")
    parser.add_argument("--vocabulary", type=int, default=30522)
    parser.add_argument("--image", type=int, default=32, help="pixels of a side")
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--samples", type=int, default=64, help="of the data")
    parser.add_argument("--no-weights", dest="weights", action="store_false", help="only to plan with")
    parser.add_argument("--no-check", dest="check", action="store_false", help="not against plain PyTorch")
    args = parser.parse_args()
    out = args.out or ROOT / "build" / "models" / args.model
    torch.manual_seed(0)
    begin = time.monotonic()
    with contextlib.nullcontext() if args.weights else without_memory():
        model, loss, options = MODELS[args.model](args)
    export(model, loss, batch_of(args, 2), out=out, name=args.model, overwrite=True, check=args.check, **options)
    (out / "data").mkdir()
    for name, values in batch_of(args, args.samples).items():
        numpy.save(out / "data" / f"{name}.npy", values.numpy())
    print(f"{out}: {sum(p.numel() for p in model.parameters()):,} parameters, "
          f"exported in {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
