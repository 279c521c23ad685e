"""Rotary embedding by tables, in Hugging Face's half-rotation layout, and its gradient, as one operation each, where eager PyTorch
takes five and seven that read and write all numbers. On a CPU the bits are those of the operations that they take the place of.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from .operators import define
from .parts import same
from .patterns import NotFound, Substitute, argument_at, exchanged, is_call, is_copy_in_order, only, other_operand, require
from .symbols import dimensions_in_memory, expression

aten = torch.ops.aten

ROTARY = define("rotary(Tensor x, Tensor cos, Tensor sin, int[] order) -> Tensor")
ROTARY_BACKWARD = define("rotary_backward(Tensor gradient, Tensor cos, Tensor sin, int[] order) -> Tensor")

_MOST_DIMENSIONS = 4


def rotary(x: Tensor, cos: Tensor, sin: Tensor, order: Sequence[int]) -> Tensor:
    """The turned rows, as eager PyTorch computes them, the dimensions in memory in an order."""
    first, second = x.chunk(2, -1)
    return _laid_out(x * cos + torch.cat((-second, first), -1) * sin, order)


def rotary_backward(gradient: Tensor, cos: Tensor, sin: Tensor, order: Sequence[int]) -> Tensor:
    """The gradient by the rows that were turned, as autograd computes it: zeros of the other half are added to each, too."""
    first, second = (gradient * sin).chunk(2, -1)
    return _laid_out((torch.cat((second, -first), -1) + 0.0) + gradient * cos, order)


def _laid_out(tensor: Tensor, order: Sequence[int]) -> Tensor:
    return torch.empty_permuted(tensor.shape, list(order), dtype=tensor.dtype).copy_(tensor)


def join(graph: fx.Graph, substitute: Substitute) -> None:
    """Puts them into a graph of forward and backward."""
    for node in list(graph.nodes):
        if node.target is not aten.cat.default:
            continue
        try:
            target, found, arguments = _find(node)
        except NotFound:
            continue
        value = found.meta["val"]
        with graph.inserting_before(found):
            result = graph.call_function(target, arguments)
        result.meta["val"] = value
        substitute(found, result)
        _lay_out_for_readers(result, substitute)
    graph.eliminate_dead_code()


# ---- Finding them ----


def _find(halves: fx.Node) -> tuple[Any, fx.Node, tuple[Any, ...]]:
    """The operation that takes the place of what two halves, of which one is negated, belong to; its result's node; and its
    arguments."""
    arguments: Any = halves.args
    last = halves.meta["val"].dim() - 1
    require(len(arguments) == 2 and len(arguments[0]) == 2 and arguments[1] in (-1, last) and not halves.kwargs)
    one, other = arguments[0]
    is_backward = one.target is not aten.neg.default
    source = _halves_of(*((other, one) if is_backward else (one, other)), last, is_backward)
    if is_backward:
        require(source.target is aten.mul.Tensor and len(source.users) == 2)
        turned = is_call(only(list(halves.users)), aten.add.Scalar)  # as join_parts has it
        require(turned.args == (halves, 0.0))
    else:
        turned = only(list(halves.users))
        require(turned.target is aten.mul.Tensor)
    total = is_call(only(list(turned.users)), aten.add.Tensor)
    direct = other_operand(total, turned)
    require(direct.target is aten.mul.Tensor and len(direct.users) == 1)
    if is_backward:  # both products have the gradient
        x = only([node for node in source.all_input_nodes if node in direct.args])
        sin = other_operand(source, x)
    else:
        x, sin = source, other_operand(turned, halves)
    cos = other_operand(direct, x)
    return (ROTARY_BACKWARD if is_backward else ROTARY), total, (x, cos, sin, _order_of(x, cos, sin, total))


def _halves_of(negated: Any, other: Any, last: int, is_backward: bool) -> fx.Node:
    """The tensor of which one half is negated and goes to the place of the other: the second half, and backward the first."""
    negated = is_call(negated, aten.neg.default)
    require(len(negated.users) == 1 and isinstance(other, fx.Node) and len(other.users) == 1)
    inner = argument_at(negated, 0)
    require(len(inner.users) == 1)
    first, second = (inner, other) if is_backward else (other, inner)
    source = argument_at(is_call(first, aten.slice.Tensor), 0)
    width = source.meta["val"].shape[-1]
    require(isinstance(width, int) and width % 2 == 0)
    require(first.args == (source, last, 0, width // 2) and is_call(second, aten.slice.Tensor).args[:3] == (source, last, width // 2))
    require(len(second.args) == 4 and isinstance(second.args[3], int) and second.args[3] >= width)
    return source


def _order_of(x: fx.Node, cos: fx.Node, sin: fx.Node, total: fx.Node) -> list[int]:
    """The order in which the result's dimensions lie in memory, where all have values that the operation takes."""
    values: list[Any] = [node.meta.get("val") for node in (x, cos, sin, total)]
    require(all(isinstance(value, Tensor) for value in values))
    kind = x.meta["val"].dtype
    require(kind in (torch.float32, torch.bfloat16))
    shape = [expression(size) for size in x.meta["val"].shape]
    require(len(shape) <= _MOST_DIMENSIONS)
    for value in values:
        require(value.dtype == kind and value.dim() > 0 and expression(value.stride(-1)) == 1)
        # A table has one number for all of a dimension, or lacks that.
        own = [expression(size) for size in value.shape]
        require(own[-1] == shape[-1])
        require(all(size in (1, of_x) for size, of_x in zip(reversed(own), reversed(shape))))
    require(same(total.meta["val"].shape, x.meta["val"].shape))
    order = dimensions_in_memory(total.meta["val"])
    if order is None or order[-1] != len(shape) - 1:
        raise NotFound
    return order


# ---- How the result lies in memory ----


def _lay_out_for_readers(result: fx.Node, substitute: Substitute) -> None:
    """Where all readers exchange two dimensions and copy what that gives into the order of its dimensions, the result lies like
    that, and there is no copy."""
    readers = list(result.users)
    copies = [user for reader in readers for user in reader.users]
    if not all(reader.target is aten.transpose.int for reader in readers) or not all(map(_is_copy_to_be_viewed, copies)):
        return
    orders = [exchanged(reader) for reader in readers]
    if not orders or any(order != orders[0] for order in orders):
        return
    order = orders[0]
    if order[-1] != len(order) - 1:
        return
    result.args = (*result.args[:3], order)
    value = result.meta["val"]
    with value.fake_mode:
        result.meta["val"] = value.permute(order).contiguous().permute(order)
        for reader in readers:
            reader.meta["val"] = result.meta["val"].permute(order)
    for copy in copies:
        substitute(copy, argument_at(copy, 0))


def _is_copy_to_be_viewed(copy: fx.Node) -> bool:
    """Whether a copy brings dimensions into their order for views alone."""
    return is_copy_in_order(copy) and all(user.target in (aten.view.default, aten._unsafe_view.default) for user in copy.users)
