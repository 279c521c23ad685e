"""Labels of which not all count, such as -100 of a cross entropy: the loss becomes a sum, which the labels of the
whole batch divide, in whichever microbatches they are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch import Tensor, fx

from .analysis import is_size
from .capture import Captured, arguments_of, base_of, mutated_arguments
from .lengths import Lengths
from .polynomial import LENGTH, Polynomial
from .symbols import at, expression

aten = torch.ops.aten

COUNTS = "label_counts"  # the batch input that brings their numbers

_MEAN, _SUM = 1, 2
_LOSSES = (aten.cross_entropy_loss.default, aten.nll_loss_nd.default, aten.nll_loss.default)
_SAMPLES = 3  # to see which labels the loss looks at
_LONG = 1000  # a length that many more than the least, to see it there as well


@dataclass(frozen=True)
class Counted:
    """The labels that the loss looks at: of each sample of a batch input so many, from the first on, but for those
    that are `ignored`."""

    input: int
    first: Polynomial
    per_sample: Polynomial
    ignored: int


def label_counts(document: Any, batch: Mapping[str, Tensor]) -> Tensor | None:
    """The batch input that model.json derives, where it says that labels are counted: of each sample how many count,
    and of all together."""
    loss = document["loss"]
    if "counted" not in loss:
        return None
    entry = loss["counted"]
    length = length_of(document, batch)
    first, count = (Polynomial.parse(amount).at(length) for amount in (entry["first"], loss["labels_per_sample"]))
    labels = batch[document["inputs"][entry["input"]]["name"]]
    own = (labels.reshape(len(labels), -1)[:, first:first + count] != entry["ignored"]).sum(1)
    return torch.stack((own, own.sum().expand(len(own))), dim=1)


def length_of(document: Any, batch: Mapping[str, Tensor]) -> int:
    """The length of a batch's sequences; 0 where model.json does not leave it free."""
    return next((batch[entry["name"]].shape[entry["shape"].index("s")] for entry in document["inputs"]
                 if "s" in entry["shape"]), 0)


def make_sum(captured: Captured, lengths: Lengths | None) -> tuple[Counted | None, str]:
    """Where the loss is the mean of a cross entropy over labels that a batch input brings: makes it their sum. Where it
    is another mean of a cross entropy: why its labels are not counted. `lengths`: of the sequences, where they are
    free."""
    loss = captured.loss
    if loss.target not in _LOSSES:
        more = any(node.target in _LOSSES for node in captured.graph.nodes)
        return None, "the loss is more than a cross entropy" if more else ""
    given = arguments_of(loss)
    if given["reduction"] != _MEAN:
        return None, ""
    if given["weight"] is not None:
        return None, "the cross entropy weighs classes"
    counted = _find(captured, given["target"], int(given["ignore_index"]), lengths)
    if counted is None:
        return None, "they are not simply what a batch input brings"
    given["reduction"] = _SUM
    loss.args, loss.kwargs = tuple(given.values()), {}
    captured.module.recompile()
    return counted, ""


# What moves labels and keeps their values.
_MOVES = {getattr(packet, name) for packet, names in (
    (aten.view, ["default"]), (aten.reshape, ["default"]), (aten.flatten, ["using_ints"]), (aten.slice, ["Tensor"]),
    (aten.select, ["int"]), (aten.narrow, ["default"]), (aten.permute, ["default"]), (aten.transpose, ["int"]),
    (aten.t, ["default"]), (aten.squeeze, ["default", "dim", "dims"]), (aten.unsqueeze, ["default"]),
    (aten.clone, ["default"]), (aten.contiguous, ["default"]), (aten.alias, ["default"]), (aten.detach, ["default"]),
    (aten.pad, ["default"]), (aten.constant_pad_nd, ["default"])) for name in names}
# What makes them another type of integers.
_CASTS = {aten._to_copy.default, aten.to.dtype, aten.to.dtype_layout, aten.to.device}


def _find(captured: Captured, target: fx.Node, ignored: int, lengths: Lengths | None) -> Counted | None:
    path = _path(captured, target)
    if path is None:
        return None
    found = [(length, _looked_at(path, ignored, length)) for length in _lengths_to_look_at(lengths)]
    places = [place for _, place in found if place is not None]
    if len(places) < len(found):
        return None
    least = lengths.least if lengths is not None else 0
    first, count = (_through([(length, place[i]) for (length, _), place in zip(found, places)], least) for i in (0, 1))
    index = captured.sources[path[-1]].index
    return None if first is None or count is None else Counted(index, first, count, ignored)


def _lengths_to_look_at(lengths: Lengths | None) -> list[int]:
    """Short ones and a long one that the model takes, more than a polynomial needs, to see that it is one."""
    if lengths is None:
        return [0]
    long = min(lengths.most, lengths.least + _LONG)
    return sorted({*range(lengths.least, min(lengths.least + 4, long)), (lengths.least + long) // 2, long})


def _through(points: list[tuple[int, int]], least: int) -> Polynomial | None:
    """The polynomial through all of the points, where there is one of a lower degree than any numbers have."""
    polynomial = Polynomial.of(sympy.expand(sympy.interpolate(points, LENGTH)))
    is_one = polynomial is not None and (len(points) == 1 or len(polynomial.coefficients) < len(points) - 1)
    return polynomial if is_one and polynomial is not None and polynomial.never_falls(least) else None


def _looked_at(path: list[fx.Node], ignored: int, length: int) -> tuple[int, int] | None:
    """The number of the first label of a sample that the loss looks at, and how many follow it without a gap."""
    node = path[-1]
    # Each label's number in its place shows where it goes; no number is the ignored one.
    shape = [at(expression(size), _SAMPLES, length) for size in node.meta["val"].shape]
    per_sample = math.prod(shape[1:])
    zero = max(ignored + 1, 0)
    moved = torch.arange(zero, zero + _SAMPLES * per_sample).reshape(shape)
    for step in reversed(path[:-1]):
        if step.target not in _CASTS:
            arguments = fx.node.map_arg(
                step.args, lambda n: moved if n in path else at(expression(n.meta["val"]), _SAMPLES, length))
            assert callable(step.target)
            moved = step.target(*arguments, **step.kwargs)
    used = sorted(int(number) - zero for number in moved.flatten() if int(number) != ignored)
    count = len(used) // _SAMPLES
    first = used[0] if used else 0
    expected = [sample * per_sample + first + i for sample in range(_SAMPLES) for i in range(count)]
    return (first, count) if used and used == expected else None


def _path(captured: Captured, target: fx.Node) -> list[fx.Node] | None:
    """From the labels of the loss back to the batch input whose values they are, where nothing writes to any."""
    path = [target]
    while path[-1].op == "call_function":
        node = path[-1]
        tensors = [argument for argument in node.all_input_nodes if not is_size(argument)]
        if node.target not in _MOVES | _CASTS or len(tensors) != 1:
            return None
        path.append(tensors[0])
    source = captured.sources.get(path[-1])
    if source is None or source.kind != "input":
        return None
    if any(node.meta["val"].dtype not in (torch.int64, torch.int32) for node in path[:-1]):
        return None
    memory = {base_of(node) for node in path}
    written = {base_of(argument) for node in captured.graph.nodes for argument in mutated_arguments(node)}
    return path if memory.isdisjoint(written) else None
