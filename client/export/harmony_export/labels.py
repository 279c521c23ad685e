"""Labels of which not all count, such as -100 of a cross entropy: the loss becomes a sum, which the labels of the
whole batch divide, in whichever microbatches they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload

from .analysis import is_size
from .capture import Captured
from .symbols import at, expression

aten = torch.ops.aten

COUNTS = "label_counts"  # the batch input that brings their numbers

_MEAN, _SUM = 1, 2
_LOSSES = (aten.cross_entropy_loss.default, aten.nll_loss_nd.default, aten.nll_loss.default)
_SAMPLES = 3  # to see which labels the loss looks at


@dataclass(frozen=True)
class Counted:
    """The labels that the loss looks at: of each sample of a batch input so many, from the first on, but for those
    that are `ignored`."""

    input: int
    first: int
    per_sample: int
    ignored: int

    def counts(self, labels: Tensor) -> Tensor:
        """The batch input: of each sample how many count, and of all together."""
        looked_at = labels.flatten(1)[:, self.first:self.first + self.per_sample] if labels.dim() > 1 else (
            labels.unsqueeze(1))
        own = (looked_at != self.ignored).sum(1)
        return torch.stack((own, own.sum().expand(len(own))), dim=1)


def counted_of(document: Any) -> Counted | None:
    """What model.json says of them."""
    loss = document["loss"]
    if "counted" not in loss:
        return None
    entry = loss["counted"]
    return Counted(entry["input"], entry["first"], loss["labels_per_sample"], entry["ignored"])


def make_sum(captured: Captured) -> Counted | None:
    """Where the loss is the mean of a cross entropy over labels that a batch input brings: makes it their sum."""
    loss = captured.loss
    if not isinstance(loss.target, OpOverload) or loss.target not in _LOSSES:
        return None
    given: dict[str, Any] = {}
    for position, argument in enumerate(loss.target._schema.arguments):
        value = loss.args[position] if position < len(loss.args) else loss.kwargs.get(argument.name,
                                                                                       argument.default_value)
        given[argument.name] = value
    if given["weight"] is not None or given["reduction"] != _MEAN:
        return None
    counted = _find(captured, given["target"], int(given["ignore_index"]))
    if counted is not None:
        given["reduction"] = _SUM
        loss.args, loss.kwargs = tuple(given.values()), {}
        captured.module.recompile()
    return counted


def _find(captured: Captured, target: fx.Node, ignored: int) -> Counted | None:
    found = _leaves(captured, target)
    if found is None or target.meta["val"].is_floating_point():
        return None
    node, index = found
    per_sample = at(expression(node.meta["val"].numel()), _SAMPLES) // _SAMPLES
    # Each label's number in its place shows where it goes.
    shape = [at(expression(size), _SAMPLES) for size in node.meta["val"].shape]
    numbers = torch.arange(_SAMPLES * per_sample, dtype=torch.int64)
    seen = _evaluate(target, {node: numbers.reshape(shape).to(node.meta["val"].dtype)})
    if ignored >= 0 or seen is None:
        return None
    used = sorted(int(number) for number in seen.flatten() if int(number) != ignored)
    count = len(used) // _SAMPLES
    first = used[0] if used else 0
    expected = [sample * per_sample + first + i for sample in range(_SAMPLES) for i in range(count)]
    return Counted(index, first, count, ignored) if used and used == expected else None


def _leaves(captured: Captured, target: fx.Node) -> tuple[fx.Node, int] | None:
    """The batch input that a tensor is made of, where it is made of that alone."""
    stack, seen, inputs = [target], set(), {}
    while stack:
        node = stack.pop()
        if node in seen or is_size(node):
            continue
        seen.add(node)
        source = captured.sources.get(node)
        if source is not None:
            inputs[node] = source
        elif node.op != "call_function":
            return None
        stack += node.all_input_nodes
    if len(inputs) != 1:
        return None
    (node, source), = inputs.items()
    return (node, source.index) if source.kind == "input" else None


def _evaluate(node: fx.Node, known: Mapping[fx.Node, Tensor]) -> Tensor | None:
    values: dict[fx.Node, Any] = dict(known)

    def value(of: fx.Node) -> Any:
        if is_size(of):
            return at(expression(of.meta["val"]), _SAMPLES)
        if of not in values:
            assert callable(of.target)
            values[of] = of.target(*fx.node.map_arg(of.args, value), **fx.node.map_arg(of.kwargs, value))
        return values[of]

    try:
        result = value(node)
    except (RuntimeError, TypeError, ValueError):
        return None
    return result if isinstance(result, Tensor) else None
