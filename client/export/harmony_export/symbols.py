"""Sizes as functions of n, the number of samples: the only symbol of an exported model."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.utils._sympy.functions import FloorDiv, Max, Min, Mod, PythonMod

from .errors import ExportError

Extent = int | str
Shape = list[Extent]


def expression(size: int | torch.SymInt) -> sympy.Expr:
    """The size as an expression of sympy, a number where it does not depend on n."""
    if isinstance(size, torch.SymInt):
        return size.node.expr
    return sympy.Integer(int(size))


def linear(expr: sympy.Expr) -> tuple[int, int] | None:
    """The pair (a, b) where the expression is a*n + b with whole numbers, else nothing."""
    expr = sympy.expand(expr)
    if not expr.free_symbols:
        return (0, int(expr)) if expr.is_Integer else None
    (symbol,) = expr.free_symbols
    if not expr.is_polynomial(symbol) or sympy.degree(expr, symbol) != 1:
        return None
    slope, offset = expr.coeff(symbol, 1), expr.coeff(symbol, 0)
    if not (slope.is_Integer and offset.is_Integer):
        return None
    return int(slope), int(offset)


def at(expr: sympy.Expr, samples: int) -> int:
    """The value of the expression for a number of samples."""
    return int(expr.subs({symbol: samples for symbol in expr.free_symbols}))


def extent(size: int | torch.SymInt, where: str) -> Extent:
    """A size as model.json writes it: a number, "n" or "K*n"."""
    pair = linear(expression(size))
    if pair is not None and pair[0] == 0:
        return pair[1]
    if pair is None or pair[1] != 0 or pair[0] < 0:
        raise ExportError(f"a tensor has the size {size}, where the number of samples must be a factor of it",
                          where, "Only the sample dimension may vary; fix all other sizes")
    return "n" if pair[0] == 1 else f"{pair[0]}*n"


def shape_json(sizes: Sequence[int | torch.SymInt], where: str) -> Shape:
    """A shape as model.json writes it; at most one extent may grow with the samples."""
    shape = [extent(size, where) for size in sizes]
    if sum(isinstance(size, str) for size in shape) > 1:
        raise ExportError(f"a tensor of shape {shape} grows with the square of the number of samples", where,
                          "Cut so that it stays within one layer")
    return shape


def dimensions_in_memory(tensor: Tensor) -> list[int] | None:
    """The order of dimensions in which the tensor is contiguous, or nothing where there is none."""
    sizes = [expression(size) for size in tensor.shape]
    strides = [expression(stride) for stride in tensor.stride()]
    real = [i for i, size in enumerate(sizes) if size != 1]
    # Two samples order symbolic strides as any number of them does.
    by_stride = sorted(real, key=lambda i: -at(strides[i], 2))
    expected = sympy.Integer(1)
    for i in reversed(by_stride):
        if sympy.expand(strides[i] - expected) != 0:
            return None
        expected = sympy.expand(expected * sizes[i])
    places = iter(by_stride)
    return [i if sizes[i] == 1 else next(places) for i in range(tensor.dim())]


_OPERATORS: dict[Any, Callable[..., Any]] = {
    FloorDiv: operator.floordiv,
    Mod: operator.mod,
    PythonMod: operator.mod,
    Max: torch.sym_max,
    Min: torch.sym_min,
}


class SizeBuilder:
    """Puts the operations into a graph that compute expressions of n from the node that holds n."""

    def __init__(self, graph: Graph, samples: Callable[[], Node]) -> None:
        self._graph = graph
        self._samples = samples
        self._made: dict[sympy.Expr, Node] = {}

    def build(self, expr: sympy.Expr) -> Node | int:
        """The node of an expression, each made once, where the graph stands; numbers need none."""
        if expr.is_Integer:
            return int(expr)
        if expr not in self._made:
            self._made[expr] = self._make(expr)
        return self._made[expr]

    def _make(self, expr: sympy.Expr) -> Node:
        if isinstance(expr, sympy.Symbol):
            return self._samples()
        if isinstance(expr, sympy.Pow) and expr.exp.is_Integer and expr.exp > 0:
            return self._fold(operator.mul, [expr.base] * int(expr.exp))
        if isinstance(expr, sympy.Add):
            return self._fold(operator.add, list(expr.args))
        if isinstance(expr, sympy.Mul):
            return self._fold(operator.mul, list(expr.args))
        function = _OPERATORS.get(expr.func)
        if function is None:
            raise ExportError(f"a size is computed as {expr}, which graphs cannot express",
                              fix="Compute sizes from the number of samples by + - * // % max and min")
        return self._fold(function, list(expr.args))

    def _fold(self, function: Callable[..., Any], parts: Sequence[sympy.Expr]) -> Node:
        result: Node | int = self.build(parts[0])
        for part in parts[1:]:
            result = self._graph.call_function(function, (result, self.build(part)))
        assert isinstance(result, Node)
        return result
