"""A piece differentiated by AOTAutograd, and its joint graph taken apart into the phases of a layer."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, fx
from torch._functorch._aot_autograd import descriptors
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from . import faithful, fast_products, gated, recurrent, rms_norms, rotary
from .capture import base_of, quiet
from .chain import Piece, SizeKind
from .devices import has_own_norm, is_other_on_gpus, maker_of, name_of
from .errors import ExportError
from .fused_loss import fuse
from .lengths import Lengths, check_guards
from .parts import join_parts
from .polynomial import LENGTH, SAMPLES
from .symbols import SizeBuilder, dimensions_in_memory, expression, named

aten = torch.ops.aten

Kind = Literal["slot", "saved", "tangent", "samples", "length", "output", "gradient", "update", "loss"]


def _closure(roots: Iterable[fx.Node], edges: Callable[[fx.Node], Iterable[fx.Node]]) -> set[fx.Node]:
    """The nodes that edges lead to from the roots, those included."""
    found: set[fx.Node] = set()
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack += edges(node)
    return found


def _bytes_of(node: fx.Node) -> int:
    """Of a tensor, for some samples of some length."""
    tensor = node.meta["val"]
    elements = int(expression(tensor.numel()).subs({SAMPLES: 64, LENGTH: 64}))
    return elements * int(tensor.element_size())


@dataclass(frozen=True)
class Port:
    """An input or an output of a phase."""

    kind: Kind
    index: int


@dataclass
class Phase:
    """One phase's graph. The placeholders are its inputs, in order; `results` are its outputs."""

    graph: fx.Graph
    inputs: list[tuple[fx.Node, Port]]
    results: list[tuple[fx.Node, Port]]


@dataclass
class LayerGraphs:
    """What a layer runs: `fused` for the last layer, else `forward`, `saving` and `backward`. `forward` is there
    for the last layer as well, to count its operations. `saved` are fake tensors."""

    phases: dict[str, Phase]
    forward: Phase
    saved: list[Tensor]
    updates: list[int]
    gradients: list[int]
    other_on_gpus: list[str]  # what makes saved results that GPUs make in another shape or type


@dataclass(frozen=True)
class Saved:
    """A node of the joint graph that the backward is given: in which form it is stored, and the order of dimensions
    that restores it where it is stored in another one."""

    node: fx.Node
    stored: fx.Node
    restore: list[int] | None


def differentiate(piece: Piece, is_last: bool, lengths: Lengths | None, fused_loss: bool = False,
                  own_products: bool = False) -> LayerGraphs:
    """The phases of a layer, for sequences of any of the lengths, where there are some."""
    joint = _Joint(piece, is_last, lengths)
    outputs: set[Kind] = {"output", "loss"}
    forward = joint.phase(outputs)
    if is_last:
        phases = {"fused": joint.phase({"loss", "gradient", "update"})}
        if fused_loss:
            phases["fused"] = _with_fused_loss(phases["fused"], piece.name)
        saved: list[Saved] = []
    else:
        saved = joint.choose_saved()
        phases = {
            "forward": forward,
            "saving": joint.phase({"output", "update"}, keep=saved),
            "backward": joint.phase({"gradient"}, restore=saved),
        }
    if own_products or recurrent.has_lstm(piece.module):  # whose bits differ from eager PyTorch's in any case
        phases = {name: _with_joined_sums(phase) for name, phase in phases.items()}
    if own_products:
        for phase in phases.values():
            fast_products.use(phase.graph)
    return LayerGraphs(phases, forward, [s.stored.meta["val"] for s in saved],
                       joint.indices("update"), joint.indices("gradient"),
                       [name_of(maker_of(s.node)) for s in saved if is_other_on_gpus(s.node)])


def _with_fused_loss(phase: Phase, where: str) -> Phase:
    fuse(phase.graph, where)
    return _rewritten(phase)


def _with_joined_sums(phase: Phase) -> Phase:
    fast_products.join_sums(phase.graph)
    return _rewritten(phase)


def _rewritten(phase: Phase) -> Phase:
    """With the results that its graph has now."""
    made: Any = phase.graph.output_node().args[0]
    return Phase(phase.graph, phase.inputs, [(node, port) for node, (_, port) in zip(made, phase.results)])


class _Joint:
    """The joint graph: slots and tangents in; outputs, updates and gradients out."""

    def __init__(self, piece: Piece, is_last: bool, lengths: Lengths | None) -> None:
        self._piece = piece
        self._guards_before = len(_shape_env(piece).guards)
        with contextlib.ExitStack() as stack:
            stack.enter_context(faithful.tracing())
            stack.enter_context(quiet())
            try:
                traced = aot_export_joint_with_descriptors(stack, piece.module, piece.arguments)
            except ExportError:
                raise
            except Exception as error:
                raise ExportError(f"the layer cannot be differentiated: {type(error).__name__}: {error}",
                                  piece.name) from error
        self._graph = traced.graph_module.graph
        self._module = traced.graph_module
        self._inputs: dict[fx.Node, Port] = {}
        self._results: list[tuple[fx.Node, Port]] = []
        self._read_ports(is_last)
        self._clean()
        self._check_guards(lengths)
        self._after_tangents = self._reachable(n for n, port in self._inputs.items() if port.kind == "tangent")
        self._refuse_statistics()

    def indices(self, kind: Kind) -> list[int]:
        """The indices of the results of a kind."""
        return [port.index for _, port in self._results if port.kind == kind]

    # ---- Reading what AOTAutograd made ----

    def _read_ports(self, is_last: bool) -> None:
        slots = len(self._piece.slots)
        output: Kind = "loss" if is_last else "output"
        for node in self._graph.nodes:
            if node.op == "placeholder":
                described = node.meta["desc"]
                if isinstance(described, descriptors.TangentAOTInput):
                    assert isinstance(described.output, descriptors.PlainAOTOutput)
                    self._inputs[node] = Port("tangent", described.output.idx)
                else:
                    assert isinstance(described, descriptors.PlainAOTInput), described
                    is_slot = described.idx < slots
                    self._inputs[node] = Port("slot", described.idx) if is_slot else (
                        Port(self._piece.sizes[described.idx - slots], 0))
        end = self._graph.output_node()
        assert isinstance(end.args[0], (tuple, list))
        for node, described in zip(end.args[0], end.meta["desc"]):
            if node is None:
                continue
            assert isinstance(node, fx.Node)
            if isinstance(described, descriptors.InputMutationAOTOutput):
                mutated = described.mutated_input
                assert isinstance(mutated, descriptors.PlainAOTInput)
                self._results.append((node, Port("update", mutated.idx)))
            elif isinstance(described, descriptors.GradAOTOutput):
                assert isinstance(described.grad_of, descriptors.PlainAOTInput)
                self._results.append((node, Port("gradient", described.grad_of.idx)))
            else:
                assert isinstance(described, descriptors.PlainAOTOutput), described
                self._results.append((node, Port(output, described.idx)))

    def _size_node(self, kind: SizeKind) -> fx.Node:
        for node, port in self._inputs.items():
            if port.kind == kind:
                return node
        last = [node for node in self._graph.nodes if node.op == "placeholder"][-1]
        with self._graph.inserting_after(last):
            node = self._graph.placeholder(kind)
        self._inputs[node] = Port(kind, 0)
        return node

    def _clean(self) -> None:
        """Takes out what does nothing for us, and computes all sizes from n and s."""
        for node in list(self._graph.nodes):
            if node.op == "get_attr":
                self._replace_constant(node)
            elif node.target in (aten.detach.default, aten.alias.default):
                self._substitute(node, node.args[0])
        for node, port in self._results:
            if port.kind == "output" and self._is_idle_copy(node):
                self._substitute(node, node.args[0], results_only=True)
        self._rewrite_sizes()
        for node in self._graph.nodes:
            if node.target in _NORMS:
                _correct_statistics(node)
            if node.target is aten.native_batch_norm_backward.default:
                # In training it uses the statistics of the microbatch, and not the running ones. Otherwise these, and
                # those that the forward leaves are of other shapes on GPUs.
                first = 3 if node.args[7] else 5
                node.args = (*node.args[:first], None, None, *node.args[first + 2:])
        join_parts(self._graph, self._substitute)
        rms_norms.join(self._graph, self._substitute)
        gated.join(self._graph, self._substitute)
        rotary.join(self._graph, self._substitute)

    def _substitute(self, node: fx.Node, other: Any, results_only: bool = False) -> None:
        assert isinstance(other, fx.Node)
        if not results_only:
            node.replace_all_uses_with(other)
        self._results = [(other if result is node else result, port) for result, port in self._results]
        if not results_only:
            self._graph.erase_node(node)

    def _is_idle_copy(self, node: fx.Node) -> bool:
        """Whether an output is a copy of a contiguous tensor that is the layer's own."""
        if node.target is not aten.clone.default:
            return False
        source = node.args[0]
        assert isinstance(source, fx.Node)
        own = self._inputs.get(base_of(source)) is None
        return own and dimensions_in_memory(source.meta["val"]) == list(range(source.meta["val"].dim()))

    def _replace_constant(self, node: fx.Node) -> None:
        tensor = getattr(self._module, str(node.target))
        if not isinstance(tensor, Tensor) or tensor.dim() != 0 or not node.users:
            if not node.users:
                return
            raise ExportError("the layer holds a constant tensor", self._piece.name, "Register it as a buffer")
        with self._graph.inserting_before(node):
            full = self._graph.call_function(aten.full.default, ([], tensor.item()),
                                             {"dtype": tensor.dtype, "device": tensor.device})
        full.meta = dict(node.meta)
        self._substitute(node, full)

    def _rewrite_sizes(self) -> None:
        first = next(node for node in self._graph.nodes if node.op != "placeholder")
        with self._graph.inserting_before(first):
            sizes = SizeBuilder(self._graph, {SAMPLES: lambda: self._size_node("samples"),
                                              LENGTH: lambda: self._size_node("length")})
            for node in [n for n in self._graph.nodes if n.op == "call_function"]:
                value = node.meta.get("val")
                if isinstance(value, torch.SymInt):
                    _replace(node, sizes.build(expression(value)))
                elif isinstance(value, (torch.SymFloat, torch.SymBool)) and node.users:
                    raise ExportError(f"{node.target} computes something else than a size from the number of samples",
                                      self._piece.name, "Compute it with tensors, or take a mean")

    def _check_guards(self, lengths: Lengths | None) -> None:
        """The layer must be the same for every number of samples and every length."""
        env = _shape_env(self._piece)
        for symbol, size in env.replacements.items():
            if not size.free_symbols:
                fixed = "length of the sequences" if named(env, symbol) == LENGTH else "number of samples"
                raise ExportError(f"the layer's operations fix the {fixed}", self._piece.name,
                                  "Use operations that do not")
        check_guards(env, env.guards[self._guards_before:], lengths, self._piece.name)

    # ---- Taking it apart ----

    def _reachable(self, nodes: Iterable[fx.Node]) -> set[fx.Node]:
        return _closure(nodes, lambda node: node.users)

    def _refuse_statistics(self) -> None:
        """Nothing but updates may depend on a statistic: tasks that compute a forward again would see another."""
        statistics = set(self.indices("update"))
        tainted: set[fx.Node] = set()
        for node in self._graph.nodes:
            port = self._inputs.get(node)
            if port is not None:
                if port.kind == "slot" and port.index in statistics:
                    tainted.add(node)
            elif any(argument in tainted for argument in self._inputs_that_count(node)):
                tainted.add(node)
        for node, port in self._results:
            if node in tainted and port.kind != "update":
                names = [self._piece.slot_names[i] for i in sorted(statistics)]
                raise ExportError(f"the buffer {', '.join(names)} is written by the forward, and the layer's "
                                  f"{port.kind} depends on it", self._piece.name,
                                  "Only statistics that training does not read, such as BatchNorm's, can be kept")

    @staticmethod
    def _inputs_that_count(node: fx.Node) -> list[fx.Node]:
        """What a node's value depends on. A batch norm that trains reads its statistics for their update only."""
        if node.target is operator.getitem and isinstance(node.args[0], fx.Node) and _is_batch_norm(node.args[0]):
            norm = node.args[0]
            assert isinstance(node.args[1], int)
            return norm.all_input_nodes if node.args[1] >= 3 else [
                n for n in norm.all_input_nodes if n not in norm.args[3:5]]
        return [] if _is_batch_norm(node) else node.all_input_nodes

    def choose_saved(self) -> list[Saved]:
        """What the backward needs of the forward.

        The backward computes again what costs nothing or does not depend on the samples' values: views, sizes, what
        follows from parameters alone; and what has another shape on another kind of device. What the forward makes for the
        backward only is left to that one, where this saves memory. All else is saved, as eager PyTorch does: views by the tensor they lie in, and every tensor in a
        contiguous form."""
        own = self._values_of_samples()
        saved: set[fx.Node] = set()
        seen: set[fx.Node] = set()
        stack = [node for node, port in self._results if port.kind == "gradient"]
        while stack:
            node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            if node in self._inputs or isinstance(node.meta.get("val"), torch.SymInt):
                continue
            if _is_of_the_device(node):
                stack += maker_of(node).all_input_nodes
            elif node in self._after_tangents or node not in own or base_of(node) is not node:
                stack += node.all_input_nodes
            else:
                saved.add(node)
        order = {node: number for number, node in enumerate(self._graph.nodes)}
        forward = _closure((node for node, port in self._results if port.kind not in ("gradient", "loss")),
                           lambda node: node.all_input_nodes)
        for node in sorted(saved, key=lambda n: order[n]):
            if node not in forward and self._left_to_backward(node, saved - {node}, forward, own, _bytes_of(node)):
                saved.remove(node)
        return [self._saved(node) for node in sorted(saved, key=lambda n: order[n])]

    def _left_to_backward(self, node: fx.Node, saved: set[fx.Node], forward: set[fx.Node], own: set[fx.Node],
                          most: int) -> bool:
        """Whether the backward can make it, element by element, of what it has anyway: of the layer's inputs and of what
        is saved and takes no more than it would itself, for that may have to live longer then. Twice the input of a square,
        for one, which the rule for powers computes with the forward, and eager PyTorch with the backward."""
        if node in self._inputs or node not in own or isinstance(node.meta.get("val"), torch.SymInt):
            return True
        if node in saved:
            return _bytes_of(node) <= most and dimensions_in_memory(node.meta["val"]) is not None
        view = base_of(node) is not node
        if not view and (node in forward or not isinstance(node.target, torch._ops.OpOverload)
                         or torch.Tag.pointwise not in node.target.tags):
            return False
        return all(self._left_to_backward(argument, saved, forward, own, most) for argument in node.all_input_nodes)

    def _values_of_samples(self) -> set[fx.Node]:
        """What depends on values or batch inputs."""
        return self._reachable(node for node, port in self._inputs.items()
                               if port.kind == "slot" and not self._piece.is_parameter[port.index])

    def _saved(self, node: fx.Node) -> Saved:
        value = node.meta["val"]
        order = dimensions_in_memory(value)
        if order == list(range(value.dim())):
            return Saved(node, node, None)
        with self._graph.inserting_after(node):
            if order is None:
                stored = self._graph.call_function(aten.clone.default, (node,),
                                                   {"memory_format": torch.contiguous_format})
            else:
                stored = self._graph.call_function(aten.permute.default, (node, order))
        with value.fake_mode:
            stored.meta["val"] = value.clone(memory_format=torch.contiguous_format) if order is None else (
                value.permute(order))
        return Saved(node, stored, None if order is None else [order.index(i) for i in range(len(order))])

    def phase(self, kinds: set[Kind], keep: list[Saved] | None = None, restore: list[Saved] | None = None) -> Phase:
        """What computes the results of some kinds: and `keep`, which it leaves; from `restore`, which it is given."""
        results = [(node, port) for node, port in self._results if port.kind in kinds]
        results += [(saved.stored, Port("saved", index)) for index, saved in enumerate(keep or [])]
        given = {saved.node: index for index, saved in enumerate(restore or [])}
        extract = _Extract(self._inputs, given, restore or [], [node for node, _ in results])
        lazy = self._after_tangents if restore is not None else None
        copies, graph, inputs = extract.run(self._graph, lazy)
        graph.output(tuple(copies[node] for node, _ in results))
        return Phase(graph, inputs, [(copies[node], port) for node, port in results])


class _Extract:
    """Copies what some nodes need into a new graph."""

    def __init__(self, inputs: dict[fx.Node, Port], given: dict[fx.Node, int], saved: list[Saved],
                 roots: list[fx.Node]) -> None:
        self._inputs = inputs
        self._given = given
        self._saved = saved
        self._without_statistics: set[fx.Node] = set()
        needed = self._find_needed(roots)
        self._without_statistics = {
            node for node in needed if _is_batch_norm(node) and not any(
                user in needed and user.args[1] in (3, 4) for user in node.users)}
        self._needed = self._find_needed(roots)
        self._graph = fx.Graph()
        self._copies: dict[fx.Node, fx.Node] = {}

    def run(self, joint: fx.Graph, lazy: set[fx.Node] | None
            ) -> tuple[dict[fx.Node, fx.Node], fx.Graph, list[tuple[fx.Node, Port]]]:
        """Copies by node of the joint graph, the new graph and its inputs. With `lazy`, what is not in it is computed
        right before its first use."""
        inputs = self._make_inputs()
        for node in joint.nodes:
            if node in self._needed and (lazy is None or node in lazy):
                self._copy_with_inputs(node)
        for node in self._roots:
            self._copy_with_inputs(node)
        return self._copies, self._graph, inputs

    def _reads(self, node: fx.Node) -> list[fx.Node]:
        if node in self._inputs or node in self._given:
            return []
        if node in self._without_statistics:
            return [argument for argument in node.all_input_nodes if argument not in node.args[3:5]]
        return node.all_input_nodes

    def _find_needed(self, roots: list[fx.Node]) -> set[fx.Node]:
        self._roots = roots
        return _closure(roots, self._reads)

    def _make_inputs(self) -> list[tuple[fx.Node, Port]]:
        ports = [(node, port) for node, port in self._inputs.items() if node in self._needed]
        ports += [(node, Port("saved", index)) for node, index in self._given.items() if node in self._needed]
        rank = ["slot", "saved", "tangent", "samples", "length"]
        inputs = []
        for node, port in sorted(ports, key=lambda entry: (rank.index(entry[1].kind), entry[1].index)):
            placeholder = self._graph.placeholder(f"{port.kind}{port.index}")
            source = self._saved[port.index].stored if port.kind == "saved" else node
            placeholder.meta["val"] = source.meta.get("val")
            self._copies[node] = placeholder
            inputs.append((placeholder, port))
        for node, index in self._given.items():
            back = self._saved[index].restore
            if node in self._needed and back is not None:
                placeholder = self._copies[node]
                self._copies[node] = self._graph.call_function(aten.permute.default, (placeholder, back))
                self._copies[node].meta["val"] = node.meta["val"]
        return inputs

    def _copy_with_inputs(self, root: fx.Node) -> None:
        waiting = [root]
        while waiting:
            node = waiting[-1]
            missing = [] if node in self._copies else [n for n in self._reads(node) if n not in self._copies]
            if missing:
                waiting += reversed(missing)
                continue
            waiting.pop()
            if node not in self._copies:
                self._copies[node] = self._copy(node)

    def _copy(self, node: fx.Node) -> fx.Node:
        if node in self._without_statistics:
            x, weight, bias, _, _, training, momentum, epsilon = node.args
            arguments = fx.node.map_arg((x, weight, bias, training, momentum, epsilon), lambda n: self._copies[n])
            norm = aten._native_batch_norm_legit.no_stats
            copy = self._graph.call_function(norm, arguments)
            copy.meta["val"] = node.meta["val"][:3]
            return copy
        copy = self._graph.node_copy(node, lambda n: self._copies[n])
        copy.meta = {"val": node.meta.get("val")}
        return copy


def _replace(node: fx.Node, other: fx.Node | int) -> None:
    """In all users; unlike fx's own way it takes a number, too."""
    for user in list(node.users):
        user.args = fx.node.map_arg(user.args, lambda n: other if n is node else n)
        user.kwargs = fx.node.map_arg(user.kwargs, lambda n: other if n is node else n)


# Norms that take parameters in float32 with an input in bfloat16.
_NORMS = (aten._native_batch_norm_legit_functional.default, aten._native_batch_norm_legit.no_stats,
          aten.native_layer_norm.default, aten.native_group_norm.default)


def _correct_statistics(norm: fx.Node) -> None:
    """What a norm leaves for its backward has the type of its parameters and running statistics, where its input is
    narrower, and of a layer norm float32. The shape function says that of the input."""
    values = [argument.meta.get("val") for argument in norm.args[:5] if isinstance(argument, fx.Node)]
    given = [value.dtype for value in values if isinstance(value, Tensor)]
    if not has_own_norm(norm) and (torch.float32 not in given[1:] or given[0] == torch.float32):
        return
    norm.meta["val"] = tuple(value.float() if i in (1, 2) else value for i, value in enumerate(norm.meta["val"]))
    for part in norm.users:
        part.meta["val"] = norm.meta["val"][part.args[1]]


# Results, by number, of which a GPU's kernel makes no use and leaves them empty.
_OF_THE_DEVICE: dict[Any, tuple[int, ...]] = {aten.log_sigmoid_forward.default: (1,), aten._embedding_bag.default: (1, 2, 3)}


def _is_of_the_device(node: fx.Node) -> bool:
    """Whether it is a result whose shape differs between kinds of devices."""
    maker = maker_of(node)
    return maker is not node and node.args[1] in _OF_THE_DEVICE.get(maker.target, ())


def _is_batch_norm(node: fx.Node) -> bool:
    """Whether it is a batch norm that takes the microbatch's statistics."""
    return node.target is aten._native_batch_norm_legit_functional.default and bool(node.args[5])


def _shape_env(piece: Piece) -> ShapeEnv:
    for argument in piece.arguments:
        if isinstance(argument, FakeTensor) and argument.fake_mode.shape_env is not None:
            return argument.fake_mode.shape_env
    raise AssertionError("a layer has slots")
