"""Gradients of a tensor that was read in parts, as that of each step of a recurrence, in one piece.

Autograd makes of the gradient of each part a tensor as large as the whole, zero elsewhere, and adds these up: for as many
parts as there are steps that takes the square of them. One tensor of all parts behind each other has the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from .patterns import Substitute
from .symbols import expression

aten = torch.ops.aten


@dataclass(frozen=True)
class _Part:
    """What a leaf of a sum holds besides zeros: `gradient`, at [begin, end) of a dimension."""

    gradient: fx.Node
    dimension: int
    begin: int
    end: int
    selected: bool  # the gradient lacks that dimension


def join_parts(graph: fx.Graph, substitute: Substitute) -> None:
    """Puts one tensor in the place of each sum of parts that make up the whole, and of slices that are all of a
    tensor."""
    for node in list(graph.nodes):
        if node.target is aten.slice_backward.default and _is_whole(node):
            gradient = node.args[0]
            assert isinstance(gradient, fx.Node)
            substitute(node, gradient)
    for node in list(graph.nodes):
        if is_sum(node) and not continues(node):
            _join(graph, node, substitute)
    graph.eliminate_dead_code()


def _join(graph: fx.Graph, root: fx.Node, substitute: Substitute) -> None:
    """Of consecutive summands those that are parts of a whole become one: between them nothing is added that they share
    an element with, so no other sum is formed."""
    found = summands(root)
    left: list[fx.Node] = []
    position, joined = 0, False
    while position < len(found):
        run = _run_of_parts(found[position:])
        if len(run) > 1 and _covers(run, root):
            with graph.inserting_before(root):
                left.append(_together(graph, run))
            joined = True
        else:
            left += found[position:position + max(len(run), 1)]
        position += max(len(run), 1)
    if not joined:
        return
    with graph.inserting_before(root):
        total = left[0]
        for summand in left[1:]:
            total = call(graph, aten.add.Tensor, total, summand)
    substitute(root, total)


def is_sum(node: fx.Node) -> bool:
    """Whether a node adds two tensors of its own shape."""
    if node.target is not aten.add.Tensor or len(node.args) != 2 or node.kwargs:
        return False
    shapes = [argument.meta["val"].shape for argument in node.args
              if isinstance(argument, fx.Node) and isinstance(argument.meta["val"], Tensor)]
    return len(shapes) == 2 and all(same(shape, node.meta["val"].shape) for shape in shapes)


def same(a: Any, b: Any) -> bool:
    """Whether two shapes are equal."""
    return len(a) == len(b) and all(expression(x) == expression(y) for x, y in zip(a, b))


def continues(node: fx.Node) -> bool:
    """Whether the sum is nothing but a summand of another one."""
    return len(node.users) == 1 and is_sum(next(iter(node.users)))


def summands(root: fx.Node) -> list[fx.Node]:
    """In the order in which they are added."""
    backwards: list[fx.Node] = []
    node = root
    while True:
        a, b = node.args
        assert isinstance(a, fx.Node) and isinstance(b, fx.Node)
        inner = [n for n in (a, b) if is_sum(n) and continues(n)]
        if not inner:
            return [a, b, *reversed(backwards)]
        node = inner[0]
        backwards.append(b if node is a else a)


def _run_of_parts(found: list[fx.Node]) -> list[_Part]:
    """The longest run from the first summand on of parts along one dimension, none of which overlap."""
    run: list[_Part] = []
    for summand in found:
        part = _part(summand)
        if part is None or len(summand.users) != 1:
            break
        if any(part.dimension != other.dimension or part.begin < other.end and other.begin < part.end for other in run):
            break
        run.append(part)
    return run


def _part(node: fx.Node) -> _Part | None:
    """Nothing where a node is something else, or numbers depend on the samples or the length."""
    if node.target not in (aten.select_backward.default, aten.slice_backward.default):
        return None
    arguments: Any = node.args
    gradient, _, dimension, *places = arguments
    if not all(isinstance(place, int) for place in places):
        return None
    shape = node.meta["val"].shape
    dimension %= len(shape)
    size = expression(shape[dimension])
    if not size.is_Integer:
        return None
    if node.target is aten.select_backward.default:
        begin = places[0] % int(size)
        return _Part(gradient, dimension, begin, begin + 1, selected=True)
    begin, end, step = slice(*places).indices(int(size))
    return _Part(gradient, dimension, begin, end, selected=False) if step == 1 and begin < end else None


def _is_whole(node: fx.Node) -> bool:
    """Whether a slice is all of what it was taken of, and lies in memory like it."""
    gradient: Any = node.args[0]
    own, whole = gradient.meta["val"], node.meta["val"]
    return bool(node.args[-1] == 1) and same(own.shape, whole.shape) and same(own.stride(), whole.stride())


def _covers(run: list[_Part], root: fx.Node) -> bool:
    """Whether parts that do not overlap are all of a tensor of the root's shape."""
    size = expression(root.meta["val"].shape[run[0].dimension])
    return sum(part.end - part.begin for part in run) == int(size)


def _together(graph: fx.Graph, run: list[_Part]) -> fx.Node:
    """The parts behind each other. A zero is added, for that has been added to each: -0 became 0."""
    dimension = run[0].dimension
    pieces = [call(graph, aten.unsqueeze.default, part.gradient, dimension) if part.selected else part.gradient
              for part in sorted(run, key=lambda part: part.begin)]
    return call(graph, aten.add.Scalar, call(graph, aten.cat.default, pieces, dimension), 0.0)


def call(graph: fx.Graph, target: Any, *arguments: Any) -> fx.Node:
    """A new operation, with its fake result."""
    node = graph.call_function(target, arguments)
    values = fx.node.map_arg(arguments, lambda n: n.meta["val"])
    tensor = next(value for value in torch.utils._pytree.tree_leaves(values) if isinstance(value, Tensor))
    with tensor.fake_mode:  # type: ignore[attr-defined]
        node.meta["val"] = target(*values)
    return node
