"""What each operation of a traced program depends on, and where it may be computed."""

from __future__ import annotations

import operator
from collections import defaultdict

import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from . import places
from .capture import Captured, base_of, draws_random_numbers, mutated_arguments
from .dropout import MASK
from .errors import ExportError
from .symbols import grows


def is_size(node: fx.Node) -> bool:
    """Whether a node computes a size. Sizes are computed from n and s wherever they are needed."""
    return isinstance(node.meta.get("val"), (torch.SymInt, int))


def inputs_of(node: fx.Node) -> list[fx.Node]:
    """The tensors that a node reads."""
    return [argument for argument in node.all_input_nodes if not is_size(argument)]


class Analysis:
    """Facts about the nodes of a captured program.

    live        leads to the loss or writes to a buffer
    gradient    a gradient flows back through it
    repeatable  may be computed again in each layer that needs it: it depends on batch inputs and fixed tensors
                alone (and no gradient passes it), or on parameters alone (and does not grow with the samples)
    before      by node, the writes that must happen before it; reads that must happen before a write
    frozen      names of parameters that would be trained, but get no gradient: the program reads them under
                torch.no_grad() or detaches what it makes of them. They are fixed, for no optimizer changes them
    """

    def __init__(self, captured: Captured) -> None:
        self.captured = captured
        self.order = {node: number for number, node in enumerate(captured.graph.nodes)}
        self.writes: dict[fx.Node, list[fx.Node]] = {}  # by writing node, the memory written to
        self.statistics: set[fx.Node] = set()
        self._find_writes()
        self.before: dict[fx.Node, list[fx.Node]] = defaultdict(list)
        self.before_if_needed: dict[fx.Node, list[fx.Node]] = defaultdict(list)
        self._order_writes()
        self.live = self._find_live()
        self.gradient: dict[fx.Node, bool] = {}
        self.repeatable: dict[fx.Node, bool] = {}
        self._find_dependencies()
        self.frozen = self._freeze()

    def dependencies(self, node: fx.Node) -> list[fx.Node]:
        """What must be computed before a node, in any layer that computes it."""
        return inputs_of(node) + self.before[node]

    def refuse_operators(self) -> None:
        """Only operators of ATen that draw no random numbers can be exported: a worker has no others, and one that
        computes a layer again would draw other numbers."""
        for node in sorted(self.live, key=self.order.__getitem__):
            for read in [n for n in (node, *node.all_input_nodes) if _is_number_of_values(n)]:
                raise ExportError(f"a number is read out of a tensor ({_name(read)})", places.of_node(read), "Leave it a "
                                  "tensor: without .item(), .tolist(), float(), int() and bool()")
            if node.op == "get_attr":
                raise ExportError(f"the program refers to the object '{node.target}'", places.of_node(node),
                                  "Only tensors and functions of tensors can be exported")
            if node.op != "call_function" or node.target in (operator.getitem, MASK):
                continue
            if not isinstance(node.target, OpOverload) or node.target.namespace != "aten":
                raise ExportError(f"{node.target} is no operator of ATen", places.of_node(node),
                                  "Write it with PyTorch's own tensor operations, and loops and conditions in Python")
            if _has_size_of_values(node):
                raise ExportError(f"the size of {node.target}'s result depends on the values of tensors",
                                  places.of_node(node), "Use masks and weights in tensors of fixed sizes")
            if draws_random_numbers(node):
                raise ExportError(f"{node.target} draws random numbers", places.of_node(node),
                                  "Switch the noise off, or give random numbers as a batch input")

    def _find_writes(self) -> None:
        for node in self.captured.graph.nodes:
            bases = [base_of(argument) for argument in mutated_arguments(node)]
            if not bases:
                continue
            self.writes[node] = bases
            for base in bases:
                source = self.captured.sources.get(base)
                if source is None:
                    continue
                if source.kind == "input":
                    raise ExportError(f"{node.target} writes to a batch input", places.of_node(node),
                                      "Write to a copy: x = x.clone()")
                entry = self.captured.state.entries[source.index]
                if not self.captured.state.has(entry):
                    raise ExportError(f"{node.target} writes to a tensor that is neither a parameter nor a buffer",
                                      places.of_node(node), "Make it a buffer (self.register_buffer(name, tensor)), or "
                                      "write to a copy")
                if isinstance(entry.tensor, torch.nn.Parameter):
                    raise ExportError(f"the forward writes to the parameter {entry.name}", places.of_node(node),
                                      "Parameters change by the optimizer only")
                self.statistics.add(base)
                entry.role = "statistic"

    def _order_writes(self) -> None:
        users: dict[fx.Node, list[fx.Node]] = defaultdict(list)  # by memory, all nodes that touch it
        written = {base for bases in self.writes.values() for base in bases}
        for node in self.captured.graph.nodes:
            for base in {base_of(argument) for argument in inputs_of(node)}:
                if base in written:
                    users[base].append(node)
        for base, nodes in users.items():
            for position, node in enumerate(nodes):
                writes = [n for n in nodes[:position] if base in self.writes.get(n, ())]
                self.before[node] += writes
                if base in self.writes.get(node, ()):
                    self.before_if_needed[node] += [n for n in nodes[:position] if n not in writes]

    def _find_live(self) -> set[fx.Node]:
        live: set[fx.Node] = set()
        stack = [self.captured.loss]
        stack += [node for node, bases in self.writes.items() if any(b in self.statistics for b in bases)]
        while stack:
            node = stack.pop()
            if node not in live:
                live.add(node)
                stack += self.dependencies(node)
        return live

    def _find_dependencies(self) -> None:
        # What is written into memory says as much about it as what made it, so it takes rounds.
        gradient: set[fx.Node] = set()
        fixed_in_place: set[fx.Node] = set(self.statistics)
        while True:
            self._walk(gradient, fixed_in_place)
            more_gradient = {b for w, bases in self.writes.items() if self.gradient[w] for b in bases} - gradient
            more_fixed = {b for w, bases in self.writes.items() if not self.repeatable[w]
                          for b in bases} - fixed_in_place
            if not more_gradient and not more_fixed:
                return
            gradient |= more_gradient
            fixed_in_place |= more_fixed

    def _freeze(self) -> list[str]:
        """Walks back from the loss as gradients flow; parameters that it meets are trained, others become fixed."""
        reached: set[fx.Node] = set()
        stack = [self.captured.loss]
        while stack:
            node = stack.pop()
            if node not in reached and self.gradient.get(node):
                reached.add(node)
                stack += self.dependencies(node)
        frozen = [entry for node, entry in self.captured.parameters.items()
                  if entry.role == "trained" and node in self.live and node not in reached]
        for entry in frozen:
            entry.role = "fixed"
        if frozen:
            self._find_dependencies()
        return [entry.name for entry in frozen]

    def _walk(self, with_gradient: set[fx.Node], in_place: set[fx.Node]) -> None:
        of_samples: dict[fx.Node, bool] = {}
        of_parameters: dict[fx.Node, bool] = {}
        free: dict[fx.Node, bool] = {}  # nothing is in the way of computing it again
        for node in self.captured.graph.nodes:
            source = self.captured.sources.get(node)
            if source is not None:
                entry = self.captured.state.entries[source.index] if source.kind == "parameter" else None
                of_samples[node] = entry is None
                of_parameters[node] = entry is not None and isinstance(entry.tensor, torch.nn.Parameter)
                self.gradient[node] = entry is not None and entry.role == "trained"
                free[node] = node not in in_place
            elif node.op == "call_function" and not is_size(node):
                inputs = self.dependencies(node)
                of_samples[node] = any(of_samples[i] for i in inputs) or self._grows(node)
                of_parameters[node] = any(of_parameters[i] for i in inputs)
                self.gradient[node] = self._differentiable(node) and (
                    any(self.gradient[i] for i in inputs_of(node)) or base_of(node) in with_gradient)
                # A mask depends on the layer that draws it.
                free[node] = (not draws_random_numbers(node) and node.target is not MASK and base_of(node) not in in_place
                              and all(free[i] for i in inputs))
            else:
                continue
            self.repeatable[node] = free[node] and not (of_samples[node] and of_parameters[node])

    @staticmethod
    def _grows(node: fx.Node) -> bool:
        value = node.meta.get("val")
        return isinstance(value, Tensor) and any(grows(size) for size in value.shape)

    @staticmethod
    def _differentiable(node: fx.Node) -> bool:
        if node.target is torch.ops.aten.detach.default:
            return False
        value = node.meta.get("val")
        if isinstance(value, Tensor):
            return value.is_floating_point() or value.is_complex()
        return isinstance(value, (tuple, list))


def _is_number_of_values(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)) and bool(free_unbacked_symbols(value))


def _name(node: fx.Node) -> str:
    return str(node.target) if isinstance(node.target, OpOverload) else getattr(node.target, "__name__", node.name)


def _has_size_of_values(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return any(bool(free_unbacked_symbols(v)) for v in (value if isinstance(value, (tuple, list)) else [value])
               if isinstance(v, (Tensor, torch.SymInt)))
