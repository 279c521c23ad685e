"""Plain PyTorch training, for comparison: SGD, microbatches, statistics in the order of the microbatches."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as functional
from safetensors.torch import save_file
from torch import Tensor, nn

from harmony_export.capture import Call
from harmony_export.labels import counted_of


@contextlib.contextmanager
def sums() -> Iterator[None]:
    """Cross entropies are sums inside the block."""
    original = functional.cross_entropy
    functional.cross_entropy = functools.partial(original, reduction="sum")
    try:
        yield
    finally:
        functional.cross_entropy = original


def labels_in(document: Any, batch: Mapping[str, Tensor]) -> int | None:
    """How many labels of a batch count, where model.json says that they are counted."""
    counted = counted_of(document)
    if counted is None:
        return None
    return int(counted.counts(batch[document["inputs"][counted.input]["name"]])[0, 1])


def train(model: nn.Module, call: Call, batches: Sequence[Mapping[str, Tensor]], microbatches: int,
          learning_rate: float, document: Any) -> tuple[list[float], dict[str, Tensor]]:
    """One step of SGD for each batch, which falls into equal microbatches. Each microbatch's sum of losses is divided
    by the labels of the batch before its backward, or, where model.json does not count labels, its mean loss by the
    number of microbatches. Returns the steps' losses and the state dict that training leaves."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    losses = []
    for batch in batches:
        for parameter in trained:
            parameter.grad = None
        total = 0.0
        labels = labels_in(document, batch)
        divisor = microbatches if labels is None else labels
        for microbatch in split(batch, microbatches):
            with contextlib.nullcontext() if labels is None else sums():
                loss = call(model, microbatch)
            (loss / divisor).backward()
            total += float(loss.detach()) / divisor
        with torch.no_grad():
            for parameter in trained:
                if parameter.grad is not None:
                    parameter -= learning_rate * parameter.grad
        losses.append(total)
    return losses, {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def split(batch: Mapping[str, Tensor], microbatches: int) -> list[dict[str, Tensor]]:
    """Equal parts of a batch, in order."""
    parts = {name: tensor.chunk(microbatches) for name, tensor in batch.items()}
    return [{name: chunks[i] for name, chunks in parts.items()} for i in range(microbatches)]


def write_expected(path: Path, losses: Sequence[float], state: Mapping[str, Tensor]) -> None:
    """Saves what training leaves, and the losses as the tensor `losses` (float64)."""
    tensors = {f"state.{name}": tensor.contiguous().clone() for name, tensor in state.items()}
    save_file(tensors | {"losses": torch.tensor(losses, dtype=torch.float64)}, path)
