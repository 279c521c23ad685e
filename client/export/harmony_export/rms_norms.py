"""The operations of an RMS norm and of its gradients as one operation each: what lies between is written to memory by none of
them, and the forward leaves its result and a number for each row to the backward, in place of the input in float32 and the
normed rows.

Found are those that models of the llama family have: rows times the root of the mean of their squares, in float32, rounded
to the input's type and then multiplied by a weight. On a CPU the bits are those of the operations that they take the place of.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, library

aten = torch.ops.aten

_operators: Any = library.Library("harmony", "FRAGMENT")  # type: ignore[no-untyped-call]
_operators.define("rms_norm(Tensor input, Tensor weight, float eps) -> (Tensor, Tensor)")
_operators.define("rms_norm_backward(Tensor gradient, Tensor input, Tensor weight, Tensor rstd, Tensor? other) -> "
                  "(Tensor, Tensor)")
RMS_NORM = torch.ops.harmony.rms_norm.default
RMS_NORM_BACKWARD = torch.ops.harmony.rms_norm_backward.default

_WIDE = 4  # bytes of a float32


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """The normed rows, and the number that each was multiplied by, as eager PyTorch computes them."""
    wide = x.float()
    rstd = wide.pow(2).mean(-1, keepdim=True).add(epsilon).rsqrt()
    return weight * (wide * rstd).to(x.dtype), rstd


def rms_norm_backward(gradient: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, other: Tensor | None) -> tuple[Tensor, Tensor]:
    """The gradients by input and weight, as eager PyTorch computes them. `other`: what the input has of gradient beside, from
    around the norm, which autograd adds to before it is done with the norm."""
    wide = x.float()
    of_weight = (gradient * (wide * rstd).to(x.dtype)).sum(list(range(x.dim() - 1)))
    along = (gradient * weight).float()
    of_squares = (along * wide).sum(-1, keepdim=True) * -0.5 * rstd.pow(3) / x.shape[-1]
    direct = along * rstd if other is None else other + along * rstd
    return (direct + of_squares * (wide * 2.0)).to(x.dtype), of_weight


def temporaries(operation: fx.Node) -> int:
    """Bytes for each element of the input that the operation takes for itself, on a CPU."""
    forward = operation.target is RMS_NORM
    x: Any = operation.args[0 if forward else 1]
    copies = 0 if x.meta["val"].dtype == torch.float32 else 1  # of the input in float32
    return _WIDE * (copies + (1 if forward else 2))


# ---- Finding them ----


class _NotFound(Exception):
    """It is something else."""


@dataclass
class _Found:
    x: fx.Node
    weight: fx.Node
    epsilon: float
    rstd: fx.Node
    y: fx.Node
    gradient: fx.Node
    other: fx.Node | None
    of_x: fx.Node
    of_weight: fx.Node


# Puts the second node in the place of the first, and erases that.
Substitute = Callable[[fx.Node, fx.Node], None]


def join(graph: fx.Graph, substitute: Substitute) -> None:
    """Puts them into a graph of forward and backward."""
    for node in list(graph.nodes):
        if node.target is not aten.rsqrt.default:
            continue
        try:
            found = _find(node)
            # The result comes where the gradient by the input does.
            order = {node: number for number, node in enumerate(graph.nodes)}
            _require(all(order[user] > order[found.of_x] for user in found.of_weight.users))
        except _NotFound:
            continue
        _put(graph, found, substitute)
    graph.eliminate_dead_code()


def _put(graph: fx.Graph, found: _Found, substitute: Substitute) -> None:
    with graph.inserting_before(found.y):
        y, rstd = _call(graph, RMS_NORM, (found.x, found.weight, found.epsilon), (found.y, found.rstd))
    with graph.inserting_before(found.of_x):
        of_x, of_weight = _call(graph, RMS_NORM_BACKWARD, (found.gradient, found.x, found.weight, rstd, found.other),
                                (found.of_x, found.of_weight))
    for node, result in ((found.y, y), (found.of_x, of_x), (found.of_weight, of_weight)):
        substitute(node, result)


def _call(graph: fx.Graph, target: Any, arguments: tuple[Any, ...], like: Sequence[fx.Node]) -> list[fx.Node]:
    """The results, of which each is like a node that there is."""
    fused = graph.call_function(target, arguments)
    fused.meta["val"] = tuple(node.meta["val"] for node in like)
    parts = []
    for index, value in enumerate(fused.meta["val"]):
        parts.append(graph.call_function(operator.getitem, (fused, index)))
        parts[-1].meta["val"] = value
    return parts


def _find(rstd: fx.Node) -> _Found:
    variance = _argument(_is(rstd.args[0], aten.add.Tensor), 0)
    epsilon: Any = rstd.args[0].args[1]  # type: ignore[union-attr]
    squares = _argument(_is(variance, aten.mean.dim), 0)
    wide = _argument(_is(squares, aten.pow.Tensor_Scalar), 0)
    shape = wide.meta["val"].shape
    width, last = shape[-1], len(shape) - 1
    _require(isinstance(epsilon, float) and isinstance(width, int) and squares.args[1] == 2 and last > 0)
    _require(variance.args[1:] in (([-1], True), ([last], True)) and len(variance.args) == 3)
    narrow = wide.target is aten._to_copy.default and wide.meta["val"].dtype == torch.float32
    x: Any = wide.args[0] if narrow else wide
    kind = x.meta["val"].dtype
    _require(kind == (torch.bfloat16 if narrow else torch.float32))

    # The forward: each row times its number, rounded, times the weight.
    scaled = _only([user for user in rstd.users if _is_product(user, wide, rstd)])
    normed = _only(list(scaled.users)) if narrow else scaled
    _require(not narrow or _is_copy(normed, kind))
    y = _only([user for user in normed.users if user.meta["val"].dtype == kind and _is_weight(_other(user, normed), width, kind)])
    weight = _other(y, normed)

    # The gradient by the weight: summed over all rows.
    of_normed = _only([user for user in normed.users if user is not y])
    gradient = _other(of_normed, normed)
    summed = _only(list(of_normed.users))
    _is(summed, aten.sum.dim_IntList)
    _require(sorted(summed.args[1]) == list(range(last)))  # type: ignore[arg-type]
    of_weight = _only(list(summed.users)) if summed.args[2:] == (True,) else summed
    _require(of_weight is summed or of_weight.target is aten.view.default)
    _require(of_weight.meta["val"].dim() == 1 and of_weight.meta["val"].shape[0] == width)

    # The gradient by the input, as autograd has it.
    weighed = _only([user for user in gradient.users if _is_product(user, gradient, weight)])
    along = _only(list(weighed.users)) if narrow else weighed
    _require(not narrow or _is_copy(along, torch.float32))
    direct = _only([user for user in along.users if _is_product(user, along, rstd)])
    with_input = _only([user for user in along.users if _is_product(user, along, wide)])
    total = _is(_only(list(direct.users)), aten.add.Tensor)
    through, other = _other(total, direct), None
    if not narrow and not any(argument.target is aten.mul.Scalar for argument in through.all_input_nodes):
        other, direct = through, total
        total = _is(_only(list(direct.users)), aten.add.Tensor)
        through = _other(total, direct)
    _check_through_squares(through, with_input, wide, rstd, last)
    of_x = _only(list(total.users)) if narrow else total
    _require(not narrow or _is_copy(of_x, kind))
    return _Found(x, weight, epsilon, rstd, y, gradient, other, of_x, of_weight)


def _check_through_squares(node: fx.Node, with_input: fx.Node, wide: fx.Node, rstd: fx.Node, last: int) -> None:
    """Twice the input times what flows into each row's mean of squares."""
    twice = _only([argument for argument in node.all_input_nodes if argument.target is aten.mul.Scalar])
    power = _argument(twice, 0)
    _require(twice.args[1] == 2.0 and power.target is aten.pow.Tensor_Scalar and power.args == (wide, 1.0))
    _require(_is_product(node, twice, _other(node, twice)))
    mean = _is(_other(node, twice), aten.div.Scalar)
    _require(mean.args[1] == wide.meta["val"].shape[-1])
    of_mean = _argument(_is(mean.args[0], aten.expand.default), 0)
    half = _only([argument for argument in of_mean.all_input_nodes if argument.target is aten.mul.Scalar])
    cube = _other(of_mean, half)
    _require(_is_product(of_mean, half, cube) and half.args[1] == -0.5)
    _require(cube.target is aten.pow.Tensor_Scalar and cube.args == (rstd, 3))
    summed = _is(half.args[0], aten.sum.dim_IntList)
    _require(summed.args[:3] == (with_input, [last], True) and len(summed.args) == 3)


def _require(condition: object) -> None:
    if not condition:
        raise _NotFound


def _is(node: Any, target: Any) -> fx.Node:
    _require(isinstance(node, fx.Node) and node.target is target and not node.kwargs)
    assert isinstance(node, fx.Node)
    return node


def _argument(node: fx.Node, index: int) -> fx.Node:
    argument = node.args[index]
    _require(isinstance(argument, fx.Node))
    assert isinstance(argument, fx.Node)
    return argument


def _only(nodes: Sequence[fx.Node]) -> fx.Node:
    _require(len(nodes) == 1)
    return nodes[0]


def _is_product(node: fx.Node, a: fx.Node, b: fx.Node) -> bool:
    return node.target is aten.mul.Tensor and node.args in ((a, b), (b, a))


def _other(node: fx.Node, one: fx.Node) -> fx.Node:
    """The other operand of a product or sum of two tensors."""
    _require(node.target in (aten.mul.Tensor, aten.add.Tensor) and len(node.args) == 2 and one in node.args)
    other = node.args[1] if node.args[0] is one else node.args[0]
    _require(isinstance(other, fx.Node))
    assert isinstance(other, fx.Node)
    return other


def _is_copy(node: fx.Node, kind: torch.dtype) -> bool:
    return node.target is aten._to_copy.default and node.kwargs.get("dtype") == kind and node.meta["val"].dtype == kind


def _is_weight(node: fx.Node, width: int, kind: torch.dtype) -> bool:
    value = node.meta["val"]
    return bool(value.dim() == 1 and value.shape[0] == width and value.dtype == kind)
