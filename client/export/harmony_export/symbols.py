"""Sizes as functions of n, the number of samples, and of s, the length of the sequences where it is free: the symbols
of an exported model."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import sympy
import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy.functions import FloorDiv, Max, Min, Mod, PythonMod

from .errors import ExportError
from .polynomial import LENGTH, SAMPLES, Amount, Polynomial, number

Shape = list[Amount]

# The names that a program's symbols have in PyTorch, and those that they have here.
_names: WeakKeyDictionary[ShapeEnv, dict[sympy.Symbol, sympy.Symbol]] = WeakKeyDictionary()
# Orders strides and answers questions about kernels as any other length does, but for the smallest.
_SOME_LENGTH = 61


def name_symbol(size: int | torch.SymInt | None, name: sympy.Symbol) -> None:
    """Says that a size of a program that is traced is n or s. What is no symbol any more has been fixed."""
    if isinstance(size, torch.SymInt) and isinstance(size.node.expr, sympy.Symbol):
        _names.setdefault(size.node.shape_env, {})[size.node.expr] = name


def named(env: ShapeEnv, expr: sympy.Expr) -> sympy.Expr:
    """An expression of PyTorch's symbols in n and s."""
    return env.replace(expr).xreplace(_names.get(env, {}))


def expression(size: int | torch.SymInt) -> sympy.Expr:
    """The size as an expression of n and s, a number where it depends on neither."""
    if isinstance(size, torch.SymInt):
        return size.node.expr.xreplace(_names.get(size.node.shape_env, {}))
    return sympy.Integer(int(size))


def grows(size: Any) -> bool:
    """Whether a size depends on the number of samples."""
    return isinstance(size, torch.SymInt) and SAMPLES in expression(size).free_symbols


def by_samples(expr: sympy.Expr) -> tuple[Polynomial, Polynomial] | None:
    """The pair (a, b) where the expression is a*n + b with polynomials of s, else nothing."""
    expr = sympy.expand(expr)
    if expr.is_Integer:
        return number(0), number(int(expr))
    if not expr.is_polynomial(SAMPLES) or sympy.degree(expr, SAMPLES) > 1:
        return None
    slope, offset = Polynomial.of(expr.coeff(SAMPLES, 1)), Polynomial.of(expr.coeff(SAMPLES, 0))
    return None if slope is None or offset is None else (slope, offset)


def at(expr: sympy.Expr, samples: int, length: int = _SOME_LENGTH) -> int:
    """The value of the expression for a number of samples and a length."""
    return int(expr.subs({symbol: length if symbol == LENGTH else samples for symbol in expr.free_symbols}))


def extent(size: int | torch.SymInt, where: str) -> Amount:
    """A size as model.json writes it: a polynomial of s, or n times one."""
    expr = expression(size)
    pair = by_samples(expr)
    if pair is not None and number(0) in pair:
        slope, offset = pair
        polynomial = offset if slope == number(0) else slope
        if polynomial.never_falls(least=2):
            return polynomial.text(times_n=slope != number(0))
    if LENGTH in expr.free_symbols:
        raise not_exact(f"a tensor has the size {expr}", where)
    raise ExportError(f"a tensor has the size {expr}, where the number of samples must be a factor of it",
                      where, "Only the sample dimension may vary; fix all other sizes")


def not_exact(what: str, where: str) -> ExportError:
    """What is said where something cannot be written for every length."""
    return ExportError(f"{what}, which is not n, the number of samples, times a polynomial of s, the length of the "
                       "sequences, with whole coefficients that grows with s", where,
                       "Export with a fixed length: without dynamic=... (--any-sequence-length)")


def shape_json(sizes: Sequence[int | torch.SymInt], where: str) -> Shape:
    """A shape as model.json writes it; at most one extent may grow with the samples."""
    shape = [extent(size, where) for size in sizes]
    if sum(grows(size) for size in sizes) > 1:
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
    """Puts the operations into a graph that compute expressions of n and s from the nodes that hold these."""

    def __init__(self, graph: Graph, symbols: Mapping[sympy.Symbol, Callable[[], Node]]) -> None:
        self._graph = graph
        self._symbols = symbols
        self._made: dict[sympy.Expr, Node] = {}

    def build(self, expr: sympy.Expr) -> Node | int:
        """The node of an expression, each made once, where the graph stands; numbers need none."""
        if expr.is_Integer:
            return int(expr)
        if expr not in self._made:
            self._made[expr] = self._make(expr)
        return self._made[expr]

    def _make(self, expr: sympy.Expr) -> Node:
        if expr in self._symbols:
            return self._symbols[expr]()
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
