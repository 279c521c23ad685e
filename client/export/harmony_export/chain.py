"""A traced program cut into a chain of pieces, each a graph of its own."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn
from torch._ops import OpOverload

from . import autocast, places
from .analysis import Analysis, inputs_of, is_size
from .capture import Captured, base_of, mutated_arguments
from .cuts import too_few_layers
from .dropout import MASK, Place
from .errors import ExportError
from .polynomial import LENGTH, SAMPLES
from .symbols import SizeBuilder, dimensions_in_memory, expression, grows

aten = torch.ops.aten

SizeKind = Literal["samples", "length"]


@dataclass
class Piece:
    """A layer before it is differentiated. `slots` and `outputs` are nodes of the whole program; the placeholders
    of `module` are the slots, in order, and behind them the `sizes` that are needed, of samples and of sequences."""

    name: str
    module: fx.GraphModule
    slots: list[fx.Node]
    outputs: list[fx.Node]
    arguments: tuple[Tensor | torch.SymInt, ...]
    sizes: list[SizeKind]
    slot_names: list[str]
    is_parameter: list[bool]
    dropouts: dict[int, int]  # by number in the program, that in the layer


@dataclass
class Chain:
    """All pieces, with the facts about the program's nodes."""

    pieces: list[Piece]
    analysis: Analysis


@dataclass(frozen=True)
class BoundaryForm:
    """How a value crosses boundaries, where tensors are contiguous and grow with the samples: a tensor that does not
    grow as n equal rows, and one with other strides with its dimensions in the order that they have in memory."""

    lacks_samples: bool
    order: list[int] | None


def boundary_form(node: fx.Node) -> BoundaryForm:
    """The form of a value of the whole program."""
    value = node.meta["val"]
    if not any(grows(size) for size in value.shape):
        return BoundaryForm(True, None)
    order = dimensions_in_memory(value)
    return BoundaryForm(False, None if order == list(range(value.dim())) else order)


def boundary_shape(node: fx.Node, samples: torch.SymInt) -> list[int | torch.SymInt]:
    """The shape of a value where it crosses a boundary."""
    form, shape = boundary_form(node), list(node.meta["val"].shape)
    if form.lacks_samples:
        return [samples, *shape]
    return shape if form.order is None else [shape[i] for i in form.order]


def cut(captured: Captured, model: nn.Module, cuts: dict[str, str]) -> Chain:
    """Cuts a program where the modules in `cuts` begin (`find_cuts`)."""
    autocast.narrow(captured.module, captured.parameters, captured.casts)
    part, names = _assign_parts(captured, cuts)
    _write_out_of_place(captured, part)
    analysis = Analysis(captured)
    analysis.refuse_operators()
    parts = _merge_parts(analysis, part, len(names))
    if len(parts) < 2:
        raise too_few_layers([(places.module_stack(node) or [("", "")])[-1][1] for node in parts[0]
                              if any(_is_trained(analysis, argument) for argument in inputs_of(node))])
    taken: dict[str, int] = {}
    pieces = []
    for number, nodes in enumerate(parts):
        name = names[part[nodes[0]]] or _name_by_parameters(analysis, nodes)
        taken[name] = taken.get(name, 0) + 1
        label = name if taken[name] == 1 else f"{name}#{taken[name]}"
        pieces.append(_PieceBuilder(analysis, parts, number, label).build())
    return Chain(pieces, analysis)


def dropouts_of(chain: Chain) -> list[Place]:
    """Where each dropout of the program stands, in the order of their calls."""
    places: dict[int, Place] = {}
    dimensions = chain.analysis.captured.dropouts.dimensions
    for layer, piece in enumerate(chain.pieces):
        for call, number in piece.dropouts.items():
            places[call] = Place(layer, number, dimensions[call])
    # What leads nowhere is drawn in eager PyTorch all the same.
    return [places.get(call, Place(0, 0, dimension)) for call, dimension in enumerate(dimensions)]


# ---- Which part a node belongs to ----


def _assign_parts(captured: Captured, cuts: dict[str, str]) -> tuple[dict[fx.Node, int], list[str]]:
    """Numbers the runs of operations that stand in the same cut module, or between such modules. The
    name of a run between modules is empty."""
    part: dict[fx.Node, int] = {}
    names: list[str] = []
    current: tuple[str, str] | None = ("", "none yet")
    for node in captured.graph.nodes:
        if node.op != "call_function":
            continue
        if node.target is operator.getitem:
            part[node] = part[node.args[0]]
            continue
        stack = places.module_stack(node)
        # What has no module was put in by the export: it stays where the operation before it is.
        region = _region(stack, cuts) if stack or not names else current
        if region != current:
            names.append(region[0] if region else "")
            current = region
        part[node] = len(names) - 1
    return part, names


def _region(stack: list[tuple[str, str]], cuts: dict[str, str]) -> tuple[str, str] | None:
    """The layer's first module, and which call of it."""
    for key, path in reversed(stack):
        if path in cuts:
            return cuts[path], key.partition("@")[2]
    # A module whose forward was called by name stands in the paths of those inside only.
    path = stack[-1][1] if stack else ""
    while path and path not in cuts:
        path = path.rpartition(".")[0]
    return (cuts[path], "") if path else None


def _write_out_of_place(captured: Captured, part: dict[fx.Node, int]) -> None:
    """Makes a write to what an earlier part made, such as relu_ as a module of its own, a functional operation.
    All other writes stay within a part."""
    graph = captured.graph
    order = {node: number for number, node in enumerate(graph.nodes)}
    for node in list(graph.nodes):
        for argument in mutated_arguments(node):
            base = base_of(argument)
            if base.op == "placeholder" or part[base] == part[node]:
                continue
            later = {n for n in graph.nodes if order[n] > order[node]}
            functional = _functional_form(node)
            aliases = [n for n in graph.nodes if n not in (argument, node) and base_of(n) is base
                       and not later.isdisjoint(n.users)]
            if base is not argument or functional is None or aliases:
                raise ExportError(f"{node.target} writes to a tensor that an earlier layer made", places.of_node(node),
                                  "Write to a copy, or cut so that both stand in one layer")
            with graph.inserting_before(node):
                copy = graph.call_function(functional, node.args, node.kwargs)
            copy.meta = dict(node.meta)
            part[copy], order[copy] = part.pop(node), order[node]
            node.replace_all_uses_with(copy)
            argument.replace_all_uses_with(copy, delete_user_cb=later.__contains__)
            graph.erase_node(node)
    captured.module.recompile()
    result = graph.output_node().args[0]
    assert isinstance(result, (tuple, list)) and isinstance(result[0], fx.Node)
    captured.loss = result[0]


def _functional_form(node: fx.Node) -> OpOverload[Any, Any] | None:
    """The operator that makes what an operator such as aten::relu_ writes."""
    assert isinstance(node.target, OpOverload)
    name = node.target._schema.name.removeprefix("aten::")
    packet = getattr(aten, name.removesuffix("_"), None)
    form = getattr(packet, node.target._overloadname, None) if name.endswith("_") else None
    return form if isinstance(form, OpOverload) else None


def _merge_parts(analysis: Analysis, part: dict[fx.Node, int], count: int) -> list[list[fx.Node]]:
    """The live operations of each part. A part that reads no trained parameter joins its neighbour."""
    parts: list[list[fx.Node]] = [[] for _ in range(count)]
    for node in analysis.captured.graph.nodes:
        if node in part and node in analysis.live:
            parts[part[node]].append(node)
    parts = [nodes for nodes in parts if nodes]
    # What comes after the loss, such as counters, belongs to the layer of the loss.
    last = next(i for i, nodes in enumerate(parts) if analysis.captured.loss in nodes)
    parts[last:] = [[node for nodes in parts[last:] for node in nodes]]
    position = 0
    while len(parts) > 1 and position < len(parts):
        if any(_is_trained(analysis, node) for node in _needed(analysis, parts, position)):
            position += 1
            continue
        before = max(position - 1, 0)
        parts[before:before + 2] = [parts[before] + parts[before + 1]]
        position = before
    return parts


def _is_trained(analysis: Analysis, node: fx.Node) -> bool:
    source = analysis.captured.sources.get(node)
    return (source is not None and source.kind == "parameter"
            and analysis.captured.state.entries[source.index].role == "trained")


def _name_by_parameters(analysis: Analysis, nodes: list[fx.Node]) -> str:
    """The module of the first trained parameter that a run of operations reads."""
    for node in nodes:
        for argument in inputs_of(node):
            if _is_trained(analysis, argument):
                name = analysis.captured.state.entries[analysis.captured.sources[argument].index].name
                return name.rpartition(".")[0] or name
    return "layer"


# ---- What a part reads and makes ----


def _outputs(analysis: Analysis, parts: list[list[fx.Node]], number: int) -> list[fx.Node]:
    """What later parts read of a part, or the loss."""
    later = {node for nodes in parts[number + 1:] for node in nodes}
    if not later:
        return [analysis.captured.loss]
    return [node for node in parts[number] if not analysis.repeatable[node] and any(u in later for u in node.users)]


def _roots(analysis: Analysis, parts: list[list[fx.Node]], number: int) -> list[fx.Node]:
    updates = [node for node in parts[number]
               if any(base in analysis.statistics for base in analysis.writes.get(node, ()))]
    return _outputs(analysis, parts, number) + updates


def _needed(analysis: Analysis, parts: list[list[fx.Node]], number: int) -> set[fx.Node]:
    """What a part reads and computes, with what it computes again of earlier parts."""
    own = set(parts[number])
    needed: set[fx.Node] = set()
    stack = _roots(analysis, parts, number)
    while stack:
        node = stack.pop()
        if node in needed:
            continue
        needed.add(node)
        if _computed(analysis, own, node):
            stack += inputs_of(node) + _writes_before(analysis, own, node)
    return needed


def _computed(analysis: Analysis, own: set[fx.Node], node: fx.Node) -> bool:
    """Whether a part computes a node that it needs, rather than reads it."""
    return node in own or (node.op == "call_function" and analysis.repeatable[node])


def _writes_before(analysis: Analysis, own: set[fx.Node], node: fx.Node) -> list[fx.Node]:
    """The writes that a part must do before it reads: what earlier parts wrote is in the values that they hand on."""
    return [write for write in analysis.before[node] if _computed(analysis, own, write)]


class _PieceBuilder:
    """Copies what a part needs into a graph of its own."""

    def __init__(self, analysis: Analysis, parts: list[list[fx.Node]], number: int, name: str) -> None:
        self._analysis = analysis
        self._own = set(parts[number])
        self._name = name
        self._needed = _needed(analysis, parts, number)
        self._outputs = _outputs(analysis, parts, number)
        self._is_last = number + 1 == len(parts)
        self._graph = fx.Graph()
        self._copies: dict[fx.Node, fx.Node] = {}
        self._dropouts: dict[int, int] = {}

    def build(self) -> Piece:
        """The piece."""
        order = self._analysis.order
        nodes = list(self._in_order(sorted(self._needed & self._own, key=lambda n: order[n])))
        slots = [node for node in nodes if not self._computed_here(node)]
        placeholders = [self._graph.placeholder(f"slot{i}") for i in range(len(slots))]
        kinds: list[SizeKind] = ["samples", "length"] if self._analysis.captured.length is not None else ["samples"]
        given = {kind: self._graph.placeholder(kind) for kind in kinds}
        self._sizes = SizeBuilder(self._graph, {SAMPLES: lambda: given["samples"], LENGTH: lambda: given["length"]})
        for node, placeholder in zip(slots, placeholders):
            self._copies[node] = self._from_boundary(node, placeholder)
        for node in nodes:
            if self._computed_here(node):
                self._copy(node)
        results = [self._result(node) for node in self._outputs]
        self._graph.output(tuple(results))
        sizes: list[SizeKind] = [kind for kind in kinds if given[kind].users]
        for kind in set(kinds).difference(sizes):
            self._graph.erase_node(given[kind])
        self._graph.lint()  # type: ignore[no-untyped-call]
        module = fx.GraphModule(self._analysis.captured.module, self._graph)
        sources = self._analysis.captured.sources
        return Piece(self._name, module, slots, self._outputs, (*self._arguments(slots), *map(self._size, sizes)), sizes,
                     [self._slot_name(n) for n in slots],
                     [n in sources and sources[n].kind == "parameter" for n in slots], self._dropouts)

    def _slot_name(self, node: fx.Node) -> str:
        captured = self._analysis.captured
        source = captured.sources.get(node)
        if source is None:
            return node.name
        if source.kind == "parameter":
            return captured.state.entries[source.index].name
        return captured.input_names[source.index]

    def _in_order(self, roots: list[fx.Node]) -> Iterator[fx.Node]:
        """All needed nodes. What is computed again comes right before its first use, so that equal layers have equal
        graphs wherever in the program it was first computed."""
        done: set[fx.Node] = set()
        waiting = [(node, False) for node in reversed(roots)]
        while waiting:
            node, ready = waiting.pop()
            if node in done or node not in self._needed:
                continue
            if ready or not self._computed_here(node):
                done.add(node)
                yield node
                continue
            waiting.append((node, True))
            before = [*self._analysis.before_if_needed[node], *_writes_before(self._analysis, self._own, node),
                      *inputs_of(node)]
            waiting += [(n, False) for n in reversed(before)]

    def _computed_here(self, node: fx.Node) -> bool:
        return _computed(self._analysis, self._own, node)

    def _copy(self, node: fx.Node) -> None:
        copy = self._graph.node_copy(node, self._argument)
        if copy.target is aten.view.default and not self._analysis.before[node]:
            # Boundaries are contiguous, what they were made from need not have been.
            copy.target = aten.reshape.default
        if copy.target is MASK:
            # By its place in the layer, so that equal layers have equal graphs.
            number = copy.args[1]
            assert isinstance(number, int)
            self._dropouts[number] = len(self._dropouts)
            copy.args = (copy.args[0], self._dropouts[number], *copy.args[2:])
        self._copies[node] = copy

    def _from_boundary(self, node: fx.Node, placeholder: fx.Node) -> fx.Node:
        """A slot as the program knows it."""
        if node in self._analysis.captured.sources:
            return placeholder
        form = boundary_form(node)
        if form.lacks_samples:
            return self._graph.call_function(aten.select.int, (placeholder, 0, 0))
        if form.order is not None:
            back = [form.order.index(i) for i in range(len(form.order))]
            return self._graph.call_function(aten.permute.default, (placeholder, back))
        return placeholder

    def _argument(self, node: fx.Node) -> Any:
        if not is_size(node):
            return self._copies[node]
        value = node.meta["val"]
        if isinstance(value, torch.SymInt) and any(str(s).startswith("u") for s in value.node.expr.free_symbols):
            raise ExportError(f"a size depends on the values of tensors ({node.target})", places.of_node(node),
                              "Use masks and tensors of fixed sizes")
        return self._sizes.build(expression(value))

    def _result(self, node: fx.Node) -> fx.Node:
        value = node.meta.get("val")
        copy = self._copies[node]
        if not isinstance(value, Tensor):
            raise ExportError("a list of tensors crosses a cut", places.of_node(node), "Move the cut, or unpack it before")
        if self._is_last:
            return copy
        form = boundary_form(node)
        if form.lacks_samples:
            row = self._graph.call_function(aten.unsqueeze.default, (copy, 0))
            shape = [self._sizes.build(expression(size)) for size in (self._analysis.captured.samples, *value.shape)]
            copy = self._graph.call_function(aten.expand.default, (row, shape))
        elif form.order is not None:
            copy = self._graph.call_function(aten.permute.default, (copy, form.order))
        # A copy of what may be a view of something else; it is dropped where it turns out to be none.
        return self._graph.call_function(aten.clone.default, (copy,), {"memory_format": torch.contiguous_format})

    def _size(self, kind: SizeKind) -> torch.SymInt:
        captured = self._analysis.captured
        size = captured.samples if kind == "samples" else captured.length
        assert size is not None
        return size

    def _arguments(self, slots: list[fx.Node]) -> list[Tensor]:
        """Fake tensors for the slots."""
        captured = self._analysis.captured
        samples = captured.samples
        arguments: list[Tensor] = []
        with captured.fake_mode:
            for node in slots:
                value = node.meta["val"]
                shape = value.shape if node in captured.sources else boundary_shape(node, samples)
                tensor = torch.empty(shape, dtype=value.dtype, device=value.device)
                arguments.append(tensor.requires_grad_(self._analysis.gradient[node]))
        return arguments
