"""The operations of an RMS norm and of its gradients as one operation each: what lies between is written to memory by none of
them, and the forward leaves its result and a number for each row to the backward, in place of the input in float32 and the
normed rows.

Found are rows times the root of the mean of their squares, in float32, which are rounded to the input's type and then
multiplied by a weight (models of the llama family), or multiplied by a weight in float32 and then rounded (Gemma, OLMo). The
rows may lie in memory in any order, as those of heads do. On a CPU the bits are those of the operations that they take the
place of.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from .operators import define
from .patterns import (NotFound, Substitute, argument_at, exchanged, in_order, is_call, is_copy, is_copy_in_order, is_product, only,
                       other_operand, require, results_of)
from .symbols import dimensions_in_memory

aten = torch.ops.aten

RMS_NORM = define("rms_norm(Tensor input, Tensor weight, float eps) -> (Tensor, Tensor)")
RMS_NORM_BACKWARD = define("rms_norm_backward(Tensor gradient, Tensor input, Tensor weight, Tensor rstd, Tensor? other) -> "
                           "(Tensor, Tensor)")


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """The normed rows, and the number that each was multiplied by, as eager PyTorch computes them."""
    wide = x.float()
    rstd = wide.pow(2).mean(-1, keepdim=True).add(epsilon).rsqrt()
    return (weight * (wide * rstd).to(weight.dtype)).to(x.dtype), rstd


def rms_norm_backward(gradient: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, other: Tensor | None) -> tuple[Tensor, Tensor]:
    """The gradients by input and weight, as eager PyTorch computes them. `other`: what the input has of gradient beside, from
    around the norm, which autograd adds to before it is done with the norm."""
    wide, gradient = x.float(), gradient.to(weight.dtype)
    of_weight = (gradient * (wide * rstd).to(weight.dtype)).sum(list(range(x.dim() - 1)))
    along = (gradient * weight).float()
    of_squares = (along * wide).sum(-1, keepdim=True) * -0.5 * rstd.pow(3) / x.shape[-1]
    direct = along * rstd if other is None else other + along * rstd
    return (direct + of_squares * (wide * 2.0)).to(x.dtype).contiguous(), of_weight


def temporaries(operation: fx.Node) -> tuple[int, int]:
    """Bytes for each element of the input, and for each row, that the operation takes for itself on a CPU."""
    arguments: Any = operation.args
    is_forward = operation.target is RMS_NORM
    x, weight = arguments[:2] if is_forward else arguments[1:3]
    if x.meta["val"].dtype == torch.float32:
        return 4 if is_forward or in_order(arguments[0]) else 8, 12
    if weight.meta["val"].dtype == torch.float32:
        return 8 if is_forward else 14, 12
    return 6 if is_forward else 10, 12


# ---- Finding them ----


@dataclass
class _Found:
    x: fx.Node
    weight: fx.Node
    epsilon: float
    y: fx.Node
    gradient: fx.Node
    other: fx.Node | None
    of_x: fx.Node  # or a copy of it in the order of the dimensions of x in memory
    of_weight: fx.Node
    order: list[int]  # of the dimensions of x in memory
    is_wide: bool  # the weight is multiplied by in float32
    is_turned: bool  # of_x is such a copy


def join(graph: fx.Graph, substitute: Substitute) -> None:
    """Puts them into a graph of forward and backward."""
    for node in list(graph.nodes):
        if node.target is not aten.rsqrt.default:
            continue
        try:
            found = _find(node)
            # The results come before all that reads them.
            order = {node: number for number, node in enumerate(graph.nodes)}
            place = min([found.of_x, *found.of_weight.users], key=lambda user: order[user])
            require(found.other is None or order[found.other] < order[place])
        except NotFound:
            continue
        _put(graph, found, place, substitute)
    graph.eliminate_dead_code()


def _put(graph: fx.Graph, found: _Found, place: fx.Node, substitute: Substitute) -> None:
    back = sorted(range(len(found.order)), key=lambda dimension: found.order[dimension])
    with graph.inserting_before(found.y):
        weight = found.weight
        if found.is_wide and weight.meta["val"].dtype != torch.float32:
            weight = _new(graph, aten._to_copy.default, weight, dtype=torch.float32)
        x = _permuted(graph, found.x, found.order)
        value: Any = x.meta["val"]
        with value.fake_mode:
            rstd_value = value.new_empty((*value.shape[:-1], 1), dtype=torch.float32)
        y, rstd = results_of(graph, RMS_NORM, (x, weight, found.epsilon), [value, rstd_value])
        y = _permuted(graph, y, back)
    with graph.inserting_before(place):
        gradient = _permuted(graph, found.gradient, found.order)
        other = None if found.other is None else _permuted(graph, found.other, found.order)
        of_x, of_weight = results_of(graph, RMS_NORM_BACKWARD, (gradient, x, weight, rstd, other),
                                     [value, found.of_weight.meta["val"]])
        if not found.is_turned:
            of_x = _permuted(graph, of_x, back)
    for node, result in ((found.y, y), (found.of_x, of_x), (found.of_weight, of_weight)):
        substitute(node, result)


def _new(graph: fx.Graph, target: Any, *arguments: Any, **options: Any) -> fx.Node:
    node = graph.call_function(target, arguments, options)
    value = arguments[0].meta["val"]
    with value.fake_mode:
        node.meta["val"] = target(value, *arguments[1:], **options)
    return node


def _permuted(graph: fx.Graph, node: fx.Node, order: list[int]) -> fx.Node:
    return node if order == list(range(len(order))) else _new(graph, aten.permute.default, node, order)


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

    # The forward: each row times its number, times the weight, rounded before that or behind it.
    scaled = only([user for user in rstd.users if is_product(user, wide, rstd)])
    is_wide = not (len(scaled.users) == 1 and is_copy(next(iter(scaled.users)), kind))
    normed = scaled if is_wide else only(list(scaled.users))
    weighed_rows = only([user for user in normed.users if _has_weight(user, normed, width)])
    weight = other_operand(weighed_rows, normed)
    y = only(list(weighed_rows.users)) if narrow and is_wide else weighed_rows
    require(y is weighed_rows or is_copy(y, kind))

    # The gradient by the weight: summed over all rows.
    of_normed = only([user for user in normed.users if user is not weighed_rows])
    of_rows = other_operand(of_normed, normed)
    gradient = argument_at(of_rows, 0) if narrow and is_wide else of_rows
    require(gradient is of_rows or (is_copy(of_rows, torch.float32) and gradient.meta["val"].dtype == kind))
    summed = only(list(of_normed.users))
    is_call(summed, aten.sum.dim_IntList)
    require(isinstance(summed.args[1], (list, tuple)) and list(summed.args[1]) == list(range(last)))
    of_weight = only(list(summed.users)) if summed.args[2:] == (True,) else summed
    require(of_weight is summed or of_weight.target is aten.view.default)
    require(of_weight.meta["val"].dim() == 1 and of_weight.meta["val"].shape[0] == width)

    # The gradient by the input, as autograd has it.
    weighed = only([user for user in of_rows.users if is_product(user, of_rows, weight)])
    along = weighed if is_wide or not narrow else only(list(weighed.users))
    require(along is weighed or is_copy(along, torch.float32))
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
    order = dimensions_in_memory(x.meta["val"])
    if order is None or order[-1] != last:
        raise NotFound
    require(all(dimensions_in_memory(node.meta["val"]) == order for node in (y, other or y)))
    is_turned = dimensions_in_memory(of_x.meta["val"]) != order
    if is_turned:
        of_x = _copy_in_order(of_x, order)
    return _Found(x, weight, epsilon, y, gradient, other, of_x, of_weight, order, is_wide, is_turned)


def _copy_in_order(node: fx.Node, order: list[int]) -> fx.Node:
    """The copy of a tensor, its only reader, that brings its dimensions into an order."""
    reader = only(list(node.users))
    dimensions = list(range(node.meta["val"].dim()))
    if reader.target is aten.transpose.int:
        dimensions = exchanged(reader)
        reader = only(list(reader.users))
    require(dimensions == order and is_copy_in_order(reader))
    return reader


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


def _has_weight(node: fx.Node, normed: fx.Node, width: int) -> bool:
    """Whether it is the product of normed rows and a weight."""
    kind = normed.meta["val"].dtype
    if node.target is not aten.mul.Tensor or node.meta["val"].dtype != kind:
        return False
    weight = other_operand(node, normed).meta.get("val")  # none of a size
    if not isinstance(weight, Tensor) or weight.dim() != 1 or weight.shape[0] != width:
        return False
    return weight.dtype == kind or (weight.dtype == torch.bfloat16 and kind == torch.float32)
