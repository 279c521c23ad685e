"""Finding operations that belong together in a graph, and putting one in their place."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from torch import Tensor, fx

from .symbols import dimensions_in_memory, expression

aten = torch.ops.aten

# Puts the second node in the place of the first, and erases that.
Substitute = Callable[[fx.Node, fx.Node], None]


class NotFound(Exception):
    """It is something else."""


def results_of(graph: fx.Graph, target: Any, arguments: tuple[Any, ...], values: Sequence[Tensor]) -> list[fx.Node]:
    """The results of a new operation, with a fake tensor for each. To be inserted before a node: after one, their order would
    be turned."""
    made = graph.call_function(target, arguments)
    made.meta["val"] = tuple(values)
    parts = []
    for index, value in enumerate(values):
        parts.append(graph.call_function(operator.getitem, (made, index)))
        parts[-1].meta["val"] = value
    return parts


def require(condition: object) -> None:
    if not condition:
        raise NotFound


def is_call(node: Any, target: Any) -> fx.Node:
    require(isinstance(node, fx.Node) and node.target is target and not node.kwargs)
    assert isinstance(node, fx.Node)
    return node


def argument_at(node: fx.Node, index: int) -> fx.Node:
    argument = node.args[index]
    require(isinstance(argument, fx.Node))
    assert isinstance(argument, fx.Node)
    return argument


def only(nodes: Sequence[fx.Node]) -> fx.Node:
    require(len(nodes) == 1)
    return nodes[0]


def is_product(node: fx.Node, a: fx.Node, b: fx.Node) -> bool:
    return node.target is aten.mul.Tensor and node.args in ((a, b), (b, a))


def other_operand(node: fx.Node, one: fx.Node) -> fx.Node:
    """The other operand of a product or sum of two tensors."""
    require(node.target in (aten.mul.Tensor, aten.add.Tensor) and len(node.args) == 2 and one in node.args)
    other = node.args[1] if node.args[0] is one else node.args[0]
    require(isinstance(other, fx.Node))
    assert isinstance(other, fx.Node)
    return other


def is_copy(node: fx.Node, kind: torch.dtype) -> bool:
    return node.target is aten._to_copy.default and node.kwargs.get("dtype") == kind and node.meta["val"].dtype == kind


def is_copy_in_order(node: fx.Node) -> bool:
    """Whether a copy brings a tensor's dimensions into their order in memory."""
    return node.target is aten.clone.default and node.kwargs.get("memory_format") == torch.contiguous_format


def exchanged(transpose: fx.Node) -> list[int]:
    """The dimensions of a tensor in the order that exchanging two of them brings them into."""
    order = list(range(transpose.meta["val"].dim()))
    one, other = (int(dimension) % len(order) for dimension in transpose.args[1:])  # type: ignore[arg-type]
    order[one], order[other] = other, one
    return order


def in_order(node: fx.Node) -> bool:
    """Whether a tensor's dimensions lie in memory in their order, without gaps."""
    value = node.meta["val"]
    return dimensions_in_memory(value) == list(range(value.dim()))


def has_rows(node: fx.Node) -> bool:
    """Whether a tensor's last dimension, of several numbers, is contiguous, and all its rows lie at one distance from each
    other."""
    value = node.meta["val"]
    sizes, strides = list(map(expression, value.shape)), list(map(expression, value.stride()))
    if not sizes or sizes[-1] == 1 or strides[-1] != 1:
        return False
    return all(sympy.expand(strides[i] - strides[i + 1] * sizes[i + 1]) == 0 for i in range(len(sizes) - 2))
