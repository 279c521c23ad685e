"""Plain PyTorch training, for comparison: SGD, microbatches, statistics in the order of the microbatches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from harmony_export.capture import Call


def train(model: nn.Module, call: Call, batches: Sequence[Mapping[str, Tensor]], microbatches: int,
          learning_rate: float) -> tuple[list[float], dict[str, Tensor]]:
    """One step of SGD for each batch, which falls into equal microbatches. Each microbatch's mean loss is divided by
    their number before its backward. Returns the steps' losses and the state dict that training leaves."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    losses = []
    for batch in batches:
        for parameter in trained:
            parameter.grad = None
        total = 0.0
        for microbatch in split(batch, microbatches):
            loss = call(model, microbatch)
            (loss / microbatches).backward()
            total += float(loss.detach()) / microbatches
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
