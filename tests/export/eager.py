"""Plain PyTorch training, for comparison: SGD or AdamW, microbatches, statistics in the order of the microbatches."""

from __future__ import annotations

import contextlib
import fnmatch
import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.nn.functional as functional
from safetensors.torch import save_file
from torch import Tensor, nn

from harmony_export.capture import Call
from harmony_export.labels import label_counts
from harmony_export.precision import Masters


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
    counts = label_counts(document, batch)
    return None if counts is None else int(counts[0, 1])

Rule = Mapping[str, Any]  # one of a job's parameter_rules


class Optimizer(Protocol):
    def step(self) -> Any: ...


class Sgd:
    """weight - learning_rate * gradient, the product rounded first; torch.optim.SGD may round once."""

    def __init__(self, model: nn.Module, learning_rate: float) -> None:
        self.trained = trained_of(model)
        self.learning_rate = learning_rate

    @torch.no_grad()
    def step(self) -> None:
        for parameter in self.trained:
            if parameter.grad is not None:
                parameter -= self.learning_rate * parameter.grad


class MixedSgd:
    """The same of a model in bfloat16: gradients are summed up in float32, and the masters are trained, of which the
    weights are rounded copies."""

    def __init__(self, model: nn.Module, masters: Masters, learning_rate: float) -> None:
        self.trained = {parameter: masters.of(parameter) for parameter in trained_of(model)}
        self.sums: dict[nn.Parameter, Tensor] = {}
        self.learning_rate = learning_rate

    def collect(self) -> None:
        """After each microbatch's backward."""
        for parameter in self.trained:
            if parameter.grad is not None:
                gradient = parameter.grad.float()
                self.sums[parameter] = self.sums[parameter] + gradient if parameter in self.sums else gradient
                parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        for parameter, gradient in self.sums.items():
            master = self.trained[parameter]
            master -= self.learning_rate * gradient
            parameter.copy_(master)
        self.sums = {}


def adamw(model: nn.Module, learning_rate: float, rules: Sequence[Rule]) -> Optimizer:
    """torch.optim.AdamW with what a job's defaults say, and a job's rules as parameter groups."""
    groups = []
    for parameter, names in names_of(model).items():
        rule = next((rule for rule in rules if fits(rule, names, parameter)), {})
        groups.append({"params": [parameter], "lr": learning_rate * rule.get("learning_rate_factor", 1),
                       "weight_decay": rule.get("weight_decay", 0.1 if parameter.dim() >= 2 else 0)})
    return torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-8, foreach=False, fused=False)


def trained_of(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def names_of(model: nn.Module) -> dict[nn.Parameter, list[str]]:
    """The names of each trained parameter; a tied one has several."""
    names: dict[nn.Parameter, list[str]] = {parameter: [] for parameter in trained_of(model)}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if parameter in names:
            names[parameter].append(name)
    return names


def fits(rule: Rule, names: Sequence[str], parameter: Tensor) -> bool:
    patterns = rule.get("names", ["*"])
    return (any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in patterns)
            and parameter.dim() in rule.get("dimensions", [parameter.dim()]))


def deciding(rules: Sequence[Rule], model: nn.Module) -> list[Rule]:
    """Those that decide a parameter of the model: a job is refused with others."""
    first = [next((i for i, rule in enumerate(rules) if fits(rule, names, parameter)), None)
             for parameter, names in names_of(model).items()]
    return [rule for i, rule in enumerate(rules) if i in first]


@torch.no_grad()
def nudge(model: nn.Module, seed: int) -> None:
    """Moves each number of the trained parameters to the next one above or below, at random."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in trained_of(model):
        up = torch.rand(parameter.shape, generator=generator) < 0.5
        parameter.copy_(torch.where(up, torch.nextafter(parameter, torch.tensor(torch.inf)),
                                    torch.nextafter(parameter, torch.tensor(-torch.inf))))


def train(model: nn.Module, call: Call, batches: Sequence[Mapping[str, Tensor]], microbatches: int,
          optimizer: Optimizer, document: Any) -> tuple[list[float], dict[str, Tensor]]:
    """One step of the optimizer for each batch, which falls into equal microbatches. Each microbatch's sum of losses is
    divided by the labels of the batch before its backward, or, where model.json does not count labels, its mean loss by
    the number of microbatches. Returns the steps' losses and the state dict that training leaves."""
    losses = []
    for batch in batches:
        for parameter in model.parameters():
            parameter.grad = None
        total = 0.0
        labels = labels_in(document, batch)
        divisor = microbatches if labels is None else labels
        for microbatch in split(batch, microbatches):
            with contextlib.nullcontext() if labels is None else sums():
                loss = call(model, microbatch)
            (loss / divisor).backward()
            if isinstance(optimizer, MixedSgd):
                optimizer.collect()
            total += float(loss.detach()) / divisor
        optimizer.step()
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
