"""The length of sequences where it is left free: which dimensions have it, and for which lengths the program holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch import Tensor, fx
from torch._guards import ShapeGuard
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from .capture import Captured
from .errors import ExportError
from .polynomial import LENGTH, SAMPLES
from .symbols import at, expression, named

Dynamic = Mapping[str, int | Sequence[int]]  # by input, the dimensions that are the sequence

# The longest where neither the model nor the caller has a bound.
UNBOUNDED = 2**17
# At which lengths assumptions are tried: the first and the last ones, and powers of two.
_TRIED = 64


@dataclass(frozen=True)
class Lengths:
    """The least and the greatest length that a model takes."""

    least: int
    most: int

    def some(self) -> list[int]:
        """Lengths to try assumptions at, which hold for all if they hold for these."""
        ends = {*range(self.least, self.least + _TRIED), *range(self.most - _TRIED, self.most + 1)}
        powers = {2**k + d for k in range(UNBOUNDED.bit_length() + 1) for d in (-1, 0, 1)}
        return sorted(length for length in ends | powers if self.least <= length <= self.most)


def dimensions(dynamic: Dynamic, batch: Mapping[str, Tensor]) -> dict[str, list[int]]:
    """The dimensions by input, as lists. All of them must have one length."""
    found: dict[str, list[int]] = {}
    lengths = set()
    for name, given in dynamic.items():
        if name not in batch:
            raise ExportError(f"dynamic names '{name}', which the sample batch does not have",
                              fix=f"Name some of {', '.join(batch)}")
        found[name] = [given] if isinstance(given, int) else list(given)
        for dimension in found[name]:
            if not 1 <= dimension < batch[name].dim():
                raise ExportError(f"dynamic says {dimension} for '{name}', a tensor of shape "
                                  f"{list(batch[name].shape)}", fix="Give dimensions from 1 on; 0 is the sample")
            lengths.add(batch[name].shape[dimension])
    if len(lengths) > 1:
        raise ExportError(f"the sequences of the sample batch have different lengths: {sorted(lengths)}",
                          fix="Give one length to all dimensions that dynamic names")
    return found


def length_in(batch: Mapping[str, Tensor], where: Mapping[str, Sequence[int]]) -> int:
    """The length of a batch's sequences."""
    return next(batch[name].shape[dimension] for name, places in where.items() for dimension in places)


def of_length(batch: Mapping[str, Tensor], where: Mapping[str, Sequence[int]], length: int) -> dict[str, Tensor]:
    """A batch of sequences of another length: their first elements, in turns where there are too few."""
    changed = dict(batch)
    for name, places in where.items():
        for dimension in places:
            index = torch.arange(length) % batch[name].shape[dimension]
            changed[name] = changed[name].index_select(dimension, index)
    return changed


# ---- For which lengths a program holds ----


def find_lengths(captured: Captured, longest: int | None) -> Lengths:
    """The bounds that the traced program has, and those of tables in which it looks up positions."""
    assert captured.length is not None
    bounds = captured.length.node.shape_env.bound_sympy(captured.length.node.expr)
    least = max(2, int(bounds.lower))
    most = longest or UNBOUNDED
    if bounds.upper.is_Integer:
        most = min(most, int(bounds.upper))
    most = min([most, *(rows for rows in _rows_for_positions(captured, least))])
    if most < least:
        raise ExportError(f"the model takes sequences of {least} to {most}, so none",
                          fix="Export with a fixed length: without dynamic=...")
    lengths = Lengths(least, most)
    env = captured.length.node.shape_env
    check_guards(env, env.guards, lengths, "the model", captured.of_lengths)
    return lengths


def check_guards(env: ShapeEnv, guards: Iterable[ShapeGuard], lengths: Lengths | None, where: str,
                 of_lengths: Mapping[Any, str] | None = None) -> None:
    """A program must be the same for every number of samples and every length. `of_lengths` has the places of guards,
    where they are known.

    Sizes that PyTorch assumes to be unequal it would lay out in another way where they are equal, as a mask of which all
    rows are taken: the operations stay the same. The check has such lengths as well. What is not a size, as whether 8
    divides one, decides about operations."""
    for guard in guards:
        expr = named(env, guard.expr)
        others = expr.free_symbols - {LENGTH}
        if LENGTH not in expr.free_symbols:
            if not all(bool(expr.subs({symbol: n for symbol in others})) for n in range(2, 65)):
                raise ExportError(f"the operations depend on the number of samples ({expr})", where,
                                  "Use operations that do not")
            continue
        assert lengths is not None
        if isinstance(expr, sympy.Ne) and (expr.lhs - expr.rhs).is_polynomial(*expr.free_symbols):
            continue
        place = (of_lengths or {}).get(guard.expr, f"{where} {guard.sloc}")
        for length in lengths.some():
            if not all(bool(expr.subs({LENGTH: length, **{symbol: n for symbol in others}})) for n in (2, 3, 64)):
                raise ExportError(f"the operations depend on the length of the sequences: {expr} does not hold for "
                                  f"{length}", place, "Use operations that do not, or export with a fixed length: without "
                                  "dynamic=... (--any-sequence-length)")


def special_lengths(captured: Captured, lengths: Lengths) -> list[int]:
    """Lengths that the program assumes not to have."""
    assert captured.length is not None
    env = captured.length.node.shape_env
    found: set[int] = set()
    for guard in env.guards:
        expr = named(env, guard.expr)
        if isinstance(expr, sympy.Ne) and expr.free_symbols == {LENGTH} and (expr.lhs - expr.rhs).is_polynomial(LENGTH):
            roots = sympy.roots(sympy.Poly(expr.lhs - expr.rhs, LENGTH))
            found |= {int(root) for root in roots if root.is_Integer}
    return sorted(length for length in found if lengths.least <= length <= lengths.most)


def _rows_for_positions(captured: Captured, least: int) -> list[int]:
    """The greatest length for each table in which the program looks up what follows from the length alone. No shape
    says that a position has no row."""
    bounds = []
    for node in captured.graph.nodes:
        if node.target is not torch.ops.aten.embedding.default:
            continue
        rows = int(node.args[0].meta["val"].shape[0])
        if _greatest(captured, node.args[1], rows + 1) < rows:
            continue
        low, high = least - 1, rows + 1  # the greatest that fits is from low on, below high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if _greatest(captured, node.args[1], middle) < rows else (low, middle)
        bounds.append(low)
    return bounds


def _greatest(captured: Captured, node: fx.Node, length: int) -> int:
    """The greatest number in a tensor that depends on the length and constants alone; -1 where it depends on more, or
    cannot be computed for that length."""
    try:
        value = _value(captured, node, length, {})
    except (_Unknown, RuntimeError):
        return -1
    return int(value.max())


class _Unknown(Exception):
    """A value that depends on the batch or on parameters."""


def _value(captured: Captured, node: fx.Node, length: int, known: dict[fx.Node, Any]) -> Any:
    """What a node of the program makes for one length and two samples."""
    if node in known:
        return known[node]
    if isinstance(node.meta.get("val"), torch.SymInt):
        known[node] = at(expression(node.meta["val"]), 2, length)
        return known[node]
    source = captured.sources.get(node)
    if source is not None:
        entry = captured.state.entries[source.index] if source.kind == "parameter" else None
        if entry is None or entry.role != "fixed" or type(entry.tensor) is not Tensor:
            raise _Unknown
        known[node] = entry.tensor
        return entry.tensor
    if node.op != "call_function" or not callable(node.target):
        raise _Unknown
    for argument in node.all_input_nodes:
        _value(captured, argument, length, known)
    arguments, keywords = fx.node.map_arg((node.args, node.kwargs), lambda n: known[n])
    known[node] = node.target(*arguments, **keywords)
    return known[node]
