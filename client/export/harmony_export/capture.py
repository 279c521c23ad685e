"""A model and its loss, traced once by torch.export with the number of samples as a symbol, and the length of the
sequences as another one where it is free."""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
import logging
import operator
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode

from . import autocast, dropout, faithful, noise, places
from .errors import ExportError
from .explain import Assumptions, explained
from .polynomial import LENGTH, SAMPLES
from .state import Parameter, State
from .symbols import name_symbol

aten = torch.ops.aten

Call = Callable[[nn.Module, dict[str, Tensor]], Tensor]

# What torch.export adds to check its assumptions. It changes nothing.
ASSERTIONS = {
    aten._assert_tensor_metadata.default,
    aten._assert_scalar.default,
    aten._assert_async.msg,
    aten.sym_constrain_range.default,
    aten.sym_constrain_range_for_size.default,
}


# These give back their input where nothing is dropped.
DROPOUTS = {
    aten.dropout.default,
    aten.dropout_.default,
    aten.feature_dropout.default,
    aten.feature_dropout_.default,
    aten.alpha_dropout.default,
    aten.alpha_dropout_.default,
    aten.feature_alpha_dropout.default,
    aten.feature_alpha_dropout_.default,
}


class Program(nn.Module):
    """What is traced: batch inputs and the samples' keys in, loss out."""

    def __init__(self, model: nn.Module, call: Call, names: Sequence[str], tracing: dropout.Tracing,
                 dynamic: Mapping[str, Sequence[int]], assumptions: Assumptions) -> None:
        super().__init__()
        self.model = model
        self._call = call
        self._names = list(names)
        self._tracing = tracing
        self._dynamic = dynamic
        self._assumptions = assumptions

    def forward(self, *inputs: Tensor) -> Tensor:
        batch = dict(zip(self._names, inputs))
        for tensor in inputs:
            name_symbol(tensor.shape[0], SAMPLES)
        for length in _lengths(batch, self._dynamic):
            torch._check(length == _lengths(batch, self._dynamic)[0])  # type: ignore[no-untyped-call]
            name_symbol(length, LENGTH)
        self._tracing.keys = inputs[-1]
        self._assumptions.begin()
        return self._call(self.model, batch)


@dataclass(frozen=True)
class Source:
    """What a placeholder of the traced graph stands for; `index` counts parameters or batch inputs."""

    kind: Literal["parameter", "input"]
    index: int


@dataclass
class Captured:
    """The traced program."""

    module: fx.GraphModule
    sources: dict[fx.Node, Source]
    loss: fx.Node
    state: State
    input_names: list[str]
    dropouts: dropout.Tracing
    length: torch.SymInt | None = None  # of the sequences, where it is free
    under_autocast: bool = False  # somewhere in it
    casts: autocast.Casts = field(default_factory=dict)  # that it makes
    of_lengths: Mapping[Any, str] = field(default_factory=dict)  # by guard of the length, the place that made it

    @property
    def graph(self) -> fx.Graph:
        return self.module.graph

    @property
    def parameters(self) -> dict[fx.Node, Parameter]:
        """By placeholder, what it stands for."""
        return _parameters(self.sources, self.state)

    @functools.cached_property
    def samples(self) -> torch.SymInt:
        """The number of samples."""
        size = next(node.meta["val"].shape[0] for node, source in self.sources.items() if source.kind == "input")
        assert isinstance(size, torch.SymInt)
        return size

    @property
    def fake_mode(self) -> FakeTensorMode:
        """The mode of all fake tensors in the graph."""
        for node in self.sources:
            value = node.meta["val"]
            if hasattr(value, "fake_mode"):
                mode = value.fake_mode
                assert isinstance(mode, FakeTensorMode)
                return mode
        raise AssertionError("a traced program has inputs")


# ---- What tracing would lose ----


@contextlib.contextmanager
def _refusing_custom_functions(model: nn.Module) -> Iterator[None]:
    """torch.export drops the backward of a custom autograd.Function without a word, so none may run."""
    original = torch.autograd.Function.__dict__["apply"]

    def refuse(cls: type, *args: Any, **kwargs: Any) -> Any:
        if cls.__module__.startswith("torch._higher_order_ops"):
            raise ExportError(f"control flow depends on the values of tensors ({cls.__qualname__})",
                              places.of_running(model), "Use torch.where, masks, or loops of a fixed length")
        raise ExportError(f"{cls.__module__}.{cls.__qualname__} is a custom autograd.Function, whose backward an "
                          "exported program loses", places.of_running(model),
                          "Write it with differentiable tensor operations")

    setattr(torch.autograd.Function, "apply", classmethod(refuse))
    try:
        yield
    finally:
        setattr(torch.autograd.Function, "apply", original)


@contextlib.contextmanager
def _writing_buffers(model: nn.Module) -> Iterator[None]:
    """torch.export forgets what is assigned to a buffer (self.mean = ...), but sees what is written to it."""
    original = nn.Module.__setattr__

    def assign(module: nn.Module, name: str, value: Any) -> None:
        buffer = module.__dict__.get("_buffers", {}).get(name)
        if not isinstance(buffer, Tensor) or not isinstance(value, Tensor) or value is buffer:
            original(module, name, value)
        elif buffer.shape != value.shape or buffer.dtype != value.dtype:
            raise ExportError(f"the forward assigns {list(value.shape)}, {value.dtype} to the buffer '{name}' of "
                              f"{list(buffer.shape)}, {buffer.dtype}", places.of_running(model),
                              "Keep the buffer's shape and type")
        else:
            buffer.copy_(value.detach())

    setattr(nn.Module, "__setattr__", assign)
    try:
        yield
    finally:
        setattr(nn.Module, "__setattr__", original)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without what PyTorch logs and prints on its way to an exception, which says it all."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


# ---- Tracing ----


def capture(model: nn.Module, call: Call, batch: Mapping[str, Tensor],
            dynamic: Mapping[str, Sequence[int]] | None = None, given: Mapping[str, Tensor] | None = None) -> Captured:
    """Traces the loss of a batch. The number of samples in it must be at least two and should be a number
    that no other size has; so should the size of the dimensions in `dynamic`, which are the sequence's. `given` is the
    batch that the user gave, to see after a failure whether eager PyTorch takes it."""
    dynamic = dynamic or {}
    names = [*batch, dropout.KEYS]
    dropouts = dropout.Tracing()
    assumptions = Assumptions(model)
    program = Program(model, call, list(batch), dropouts, dynamic, assumptions)
    samples = len(next(iter(batch.values())))
    inputs = (*batch.values(), torch.zeros(samples, dtype=torch.int64))
    state = State(model)
    dimension = torch.export.Dim("n")
    shapes = tuple({0: dimension, **{place: torch.export.Dim.DYNAMIC for place in dynamic.get(name, ())}}
                   for name in names)
    with (_refusing_custom_functions(model), _writing_buffers(model), faithful.tracing(), dropout.applied(dropouts),
          autocast.recorded(lambda: places.of_running(model)), assumptions.recorded(), noise.refused(), quiet()):
        try:
            exported = torch.export.export(program, inputs, dynamic_shapes=(shapes,), strict=False)
        except Exception as error:
            said = explained(error, model, assumptions, call, given or batch)
            raise said from (None if said is error else error)
    module = exported.graph_module
    assert isinstance(module, fx.GraphModule)
    inline_regions(module)
    for node in list(module.graph.nodes):
        if node.target in DROPOUTS and (node.args[1] == 0 or not node.args[2]):
            node.replace_all_uses_with(node.args[0])
        if node.target in ASSERTIONS or (node.target in DROPOUTS and not node.users):
            module.graph.erase_node(node)
    sources = _sources(exported, module.graph, state)
    weights = _parameters(sources, state)
    with faithful.tracing(), quiet():
        under_autocast, casts = autocast.write(module, weights)
    keys = next(node for node, source in sources.items() if source == Source("input", len(batch)))
    unread = [names[source.index] for node, source in sources.items()
              if source.kind == "input" and node is not keys and not node.users]
    if unread:
        raise ExportError(f"neither the model nor the loss reads {', '.join(unread)} of the sample batch", fix="The model "
                          f"is given what parameters of its forward are named after ({_parameters_of_forward(model)}): "
                          "name one so, or leave it out of the batch")
    if not keys.users:
        del sources[keys]
        names.pop()
    result = module.graph.output_node().args[0]
    assert isinstance(result, (tuple, list))
    loss = _checked_loss(result[0])
    captured = Captured(module, sources, loss, state, names, dropouts, under_autocast=under_autocast, casts=casts,
                        of_lengths=assumptions.of_lengths)
    name_symbol(captured.samples, SAMPLES)
    if dynamic:
        given = {names[source.index]: node.meta["val"] for node, source in sources.items() if source.kind == "input"}
        captured.length = _lengths(given, dynamic)[0]
        name_symbol(captured.length, LENGTH)
    return captured


def _parameters(sources: Mapping[fx.Node, Source], state: State) -> dict[fx.Node, Parameter]:
    return {node: state.entries[source.index] for node, source in sources.items() if source.kind == "parameter"}


def _parameters_of_forward(model: nn.Module) -> str:
    return ", ".join(str(parameter).partition(":")[0].partition("=")[0]
                     for parameter in inspect.signature(model.forward).parameters.values())


def _lengths(inputs: Mapping[str, Tensor], dynamic: Mapping[str, Sequence[int]]) -> list[Any]:
    """The sizes of the dimensions that are the sequence's."""
    return [inputs[name].shape[place] for name, places in dynamic.items() for place in places]


def _sources(exported: torch.export.ExportedProgram, graph: fx.Graph, state: State) -> dict[fx.Node, Source]:
    """What every placeholder stands for. Placeholders of one tensor become one."""
    # Each of these is computed anew when it is asked for.
    signature = exported.graph_signature
    owners = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    lifted, objects = signature.inputs_to_lifted_tensor_constants, signature.inputs_to_lifted_custom_objs
    constants = exported.constants
    sources: dict[fx.Node, Source] = {}
    first: dict[Source, fx.Node] = {}
    inputs = 0
    for node in [n for n in graph.nodes if n.op == "placeholder"]:
        owner = owners.get(node.name)
        if owner is not None:
            source = Source("parameter", state.index_of(owner.removeprefix("model.")))
        elif node.name in lifted:
            source = Source("parameter", state.add_constant(constants[lifted[node.name]]))
        elif node.name in objects:
            raise ExportError(f"the model uses an object of its own, {node.name}", fix="Only tensors can be exported")
        else:
            source = Source("input", inputs)
            inputs += 1
        if source in first:
            node.replace_all_uses_with(first[source])
            continue
        first[source] = node
        sources[node] = source
    return sources


def _checked_loss(loss: Any) -> fx.Node:
    assert isinstance(loss, fx.Node)
    value = loss.meta["val"]
    if loss.op == "placeholder":
        raise ExportError("the loss is an input of the model", fix="Return a loss that the model computes")
    if value.dtype != torch.float32:
        fix = "Return it as float32: loss.float()"
        if value.dtype == torch.bfloat16:
            fix = "Compute it in float32: take logits.float(), or result.float(), before the loss"
        raise ExportError(f"the loss has the type {value.dtype}", fix=fix)
    return loss


# ---- Regions ----


def inline_regions(module: fx.GraphModule) -> None:
    """Puts the sub-graphs that run without gradients where they are called."""
    graph = module.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or getattr(node.target, "__name__", "") != "wrap_with_set_grad_enabled":
            continue
        enabled, inner, arguments = bool(node.args[0]), node.args[1], node.args[2:]
        region = getattr(module, str(inner.target))
        inline_regions(region)
        if not enabled:
            # Without their gradients, what is written inside the region has none either.
            arguments = tuple(_detached(graph, argument, node) for argument in arguments)
        results = _copy_region(graph, region, node, arguments)
        for user in list(node.users):
            assert user.target is operator.getitem
            user.replace_all_uses_with(results[user.args[1]])
            graph.erase_node(user)
        graph.erase_node(node)
        if not inner.users:
            graph.erase_node(inner)
    module.recompile()


def _copy_region(graph: fx.Graph, region: fx.GraphModule, call: fx.Node, arguments: Sequence[Any]) -> list[Any]:
    copies: dict[fx.Node, Any] = {}
    inputs = iter(arguments)
    with graph.inserting_before(call):
        for node in region.graph.nodes:
            if node.op == "placeholder":
                copies[node] = next(inputs)
            elif node.op == "call_function":
                copies[node] = graph.node_copy(node, lambda n: copies[n])
                if not copies[node].meta.get("nn_module_stack"):
                    copies[node].meta["nn_module_stack"] = call.meta.get("nn_module_stack")
            elif node.op != "output":
                raise ExportError(f"'{node.target}' inside a region without gradients cannot be exported",
                                  places.of_node(call))
    return list(fx.node.map_arg(region.graph.output_node().args[0], lambda n: copies[n]))  # type: ignore[arg-type]


def _detached(graph: fx.Graph, argument: Any, call: fx.Node) -> Any:
    if not isinstance(argument, fx.Node) or not isinstance(argument.meta.get("val"), Tensor):
        return argument
    with graph.inserting_before(call):
        node = graph.call_function(aten.detach.default, (argument,))
    node.meta = {"val": argument.meta["val"], "nn_module_stack": call.meta.get("nn_module_stack")}
    return node


# ---- Properties of nodes ----


def arguments_of(node: fx.Node) -> dict[str, Any]:
    """The arguments of an operator in the order of its schema, defaults filled in."""
    assert isinstance(node.target, OpOverload)
    return {argument.name: node.args[position] if position < len(node.args) else node.kwargs.get(
        argument.name, argument.default_value) for position, argument in enumerate(node.target._schema.arguments)}


def draws_random_numbers(node: fx.Node) -> bool:
    """Whether an operation's result is another one each time. Those that drop values do not where they drop none."""
    if not isinstance(node.target, OpOverload) or torch.Tag.nondeterministic_seeded not in node.target.tags:
        return False
    for name, given in arguments_of(node).items():
        if name in ("dropout_p", "dropout"):
            return not isinstance(given, (int, float)) or given != 0
    return True


def mutated_arguments(node: fx.Node) -> list[fx.Node]:
    """The arguments that an operation writes to, those included that its schema does not mark."""
    if not isinstance(node.target, OpOverload):
        return []
    written = []
    for position, argument in enumerate(node.target._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = node.args[position] if position < len(node.args) else node.kwargs.get(argument.name)
            written += [v for v in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(v, fx.Node)]
    flag = {aten.batch_norm.default: 5, aten.instance_norm.default: 5}.get(node.target)
    if flag is not None and node.args[flag]:
        written += [v for v in node.args[3:5] if isinstance(v, fx.Node)]
    return written


def is_view(node: fx.Node) -> bool:
    """Whether a node's result lies in the memory of its first argument."""
    if node.target is aten._unsafe_view.default:
        return True
    if not isinstance(node.target, OpOverload) or not node.target._schema.returns:
        return False
    info = node.target._schema.returns[0].alias_info
    return info is not None and not info.is_write


def base_of(node: fx.Node) -> fx.Node:
    """The node whose memory a view lies in."""
    while True:
        if node.target is operator.getitem and isinstance(node.args[0], fx.Node) and is_view(node.args[0]):
            node = node.args[0]
        elif node.op == "call_function" and (is_view(node) or _returns_its_argument(node)):
            argument = node.args[0]
            assert isinstance(argument, fx.Node)
            node = argument
        else:
            return node


def _returns_its_argument(node: fx.Node) -> bool:
    if not isinstance(node.target, OpOverload) or not node.target._schema.returns:
        return False
    info = node.target._schema.returns[0].alias_info
    return info is not None and bool(info.is_write)
