"""The operations of an RMS norm and of its gradients as one operation each: what lies between is written to memory by none of
them, and the forward leaves its result and a number for each row to the backward, in place of the input in float32 and the
normed rows.

Found are those that models of the llama family have: rows times the root of the mean of their squares, in float32, rounded
to the input's type and then multiplied by a weight. On a CPU the bits are those of the operations that they take the place of.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from .operators import define
from .patterns import NotFound, Substitute, argument_at, in_order, is_call, is_copy, is_product, only, other_operand, require, results_of

aten = torch.ops.aten

RMS_NORM = define("rms_norm(Tensor input, Tensor weight, float eps) -> (Tensor, Tensor)")
RMS_NORM_BACKWARD = define("rms_norm_backward(Tensor gradient, Tensor input, Tensor weight, Tensor rstd, Tensor? other) -> "
                           "(Tensor, Tensor)")


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


def temporaries(operation: fx.Node) -> tuple[int, int]:
    """Bytes for each element of the input, and for each row, that the operation takes for itself on a CPU."""
    x: Any = operation.args[0 if operation.target is RMS_NORM else 1]
    if x.meta["val"].dtype == torch.float32:
        return 4, 12
    return (6, 12) if operation.target is RMS_NORM else (10, 12)


# ---- Finding them ----


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


def join(graph: fx.Graph, substitute: Substitute) -> None:
    """Puts them into a graph of forward and backward."""
    for node in list(graph.nodes):
        if node.target is not aten.rsqrt.default:
            continue
        try:
            found = _find(node)
            # The result comes where the gradient by the input does.
            order = {node: number for number, node in enumerate(graph.nodes)}
            require(all(order[user] > order[found.of_x] for user in found.of_weight.users))
        except NotFound:
            continue
        _put(graph, found, substitute)
    graph.eliminate_dead_code()


def _put(graph: fx.Graph, found: _Found, substitute: Substitute) -> None:
    with graph.inserting_before(found.y):
        y, rstd = results_of(graph, RMS_NORM, (found.x, found.weight, found.epsilon),
                             [found.y.meta["val"], found.rstd.meta["val"]])
    with graph.inserting_before(found.of_x):
        of_x, of_weight = results_of(graph, RMS_NORM_BACKWARD, (found.gradient, found.x, found.weight, rstd, found.other),
                                     [found.of_x.meta["val"], found.of_weight.meta["val"]])
    for node, result in ((found.y, y), (found.of_x, of_x), (found.of_weight, of_weight)):
        substitute(node, result)


def _find(rstd: fx.Node) -> _Found:
    variance = argument_at(is_call(rstd.args[0], aten.add.Tensor), 0)
    epsilon: Any = rstd.args[0].args[1]  # type: ignore[union-attr]
    squares = argument_at(is_call(variance, aten.mean.dim), 0)
    wide = argument_at(is_call(squares, aten.pow.Tensor_Scalar), 0)
    shape = wide.meta["val"].shape
    require(len(shape) > 1)
    width, last = shape[-1], len(shape) - 1
    require(isinstance(epsilon, float) and isinstance(width, int) and squares.args[1] == 2)
    require(variance.args[1:] in (([-1], True), ([last], True)) and len(variance.args) == 3)
    narrow = wide.target is aten._to_copy.default and wide.meta["val"].dtype == torch.float32
    x: Any = wide.args[0] if narrow else wide
    kind = x.meta["val"].dtype
    require(kind == (torch.bfloat16 if narrow else torch.float32))

    # The forward: each row times its number, rounded, times the weight.
    scaled = only([user for user in rstd.users if is_product(user, wide, rstd)])
    normed = only(list(scaled.users)) if narrow else scaled
    require(not narrow or is_copy(normed, kind))
    y = only([user for user in normed.users if _has_weight(user, normed, width, kind)])
    weight = other_operand(y, normed)

    # The gradient by the weight: summed over all rows.
    of_normed = only([user for user in normed.users if user is not y])
    gradient = other_operand(of_normed, normed)
    summed = only(list(of_normed.users))
    is_call(summed, aten.sum.dim_IntList)
    require(isinstance(summed.args[1], (list, tuple)) and list(summed.args[1]) == list(range(last)))
    of_weight = only(list(summed.users)) if summed.args[2:] == (True,) else summed
    require(of_weight is summed or of_weight.target is aten.view.default)
    require(of_weight.meta["val"].dim() == 1 and of_weight.meta["val"].shape[0] == width)

    # The gradient by the input, as autograd has it.
    weighed = only([user for user in gradient.users if is_product(user, gradient, weight)])
    along = only(list(weighed.users)) if narrow else weighed
    require(not narrow or is_copy(along, torch.float32))
    direct = only([user for user in along.users if is_product(user, along, rstd)])
    with_input = only([user for user in along.users if is_product(user, along, wide)])
    total = is_call(only(list(direct.users)), aten.add.Tensor)
    through, other = other_operand(total, direct), None
    if not narrow and not any(argument.target is aten.mul.Scalar for argument in through.all_input_nodes):
        other, direct = through, total
        total = is_call(only(list(direct.users)), aten.add.Tensor)
        through = other_operand(total, direct)
    _check_through_squares(through, with_input, wide, rstd, last)
    of_x = only(list(total.users)) if narrow else total
    require(not narrow or is_copy(of_x, kind))
    # What is made lies in memory as the operation's results do.
    require(all(in_order(node) for node in (x, y, rstd, of_x)) and (other is None or in_order(other)))
    return _Found(x, weight, epsilon, rstd, y, gradient, other, of_x, of_weight)


def _check_through_squares(node: fx.Node, with_input: fx.Node, wide: fx.Node, rstd: fx.Node, last: int) -> None:
    """Twice the input times what flows into each row's mean of squares."""
    twice = only([argument for argument in node.all_input_nodes if argument.target is aten.mul.Scalar])
    power = argument_at(twice, 0)
    require(twice.args[1] == 2.0 and power.target is aten.pow.Tensor_Scalar and power.args == (wide, 1.0))
    require(is_product(node, twice, other_operand(node, twice)))
    mean = is_call(other_operand(node, twice), aten.div.Scalar)
    require(mean.args[1] == wide.meta["val"].shape[-1])
    of_mean = argument_at(is_call(mean.args[0], aten.expand.default), 0)
    half = only([argument for argument in of_mean.all_input_nodes if argument.target is aten.mul.Scalar])
    cube = other_operand(of_mean, half)
    require(is_product(of_mean, half, cube) and half.args[1] == -0.5)
    require(cube.target is aten.pow.Tensor_Scalar and cube.args == (rstd, 3))
    summed = is_call(half.args[0], aten.sum.dim_IntList)
    require(summed.args[:3] == (with_input, [last], True) and len(summed.args) == 3)


def _has_weight(node: fx.Node, normed: fx.Node, width: int, kind: torch.dtype) -> bool:
    """Whether it is the product of the normed rows and a weight."""
    if node.target is not aten.mul.Tensor or node.meta["val"].dtype != kind:
        return False
    weight = other_operand(node, normed).meta.get("val")  # none of a size
    return isinstance(weight, Tensor) and bool(weight.dim() == 1 and weight.shape[0] == width and weight.dtype == kind)
