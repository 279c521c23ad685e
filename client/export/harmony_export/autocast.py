"""What torch.autocast does to a model: the casts that it makes, as operations of the traced program.

torch.export records operations as the model calls them; autocast casts their arguments below that. So each operation
remembers the block that it was called in, and autocast itself is asked afterwards, for each of them, what it casts.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.amp.autocast_mode import autocast
from torch.fx.experimental.proxy_tensor import PreDispatchTorchFunctionMode, make_fx
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import TorchDispatchMode

from .errors import ExportError
from .state import Parameter

aten = torch.ops.aten

_VIEWS = (aten.t.default, aten.numpy_T.default, aten.transpose.int, aten.permute.default, aten.view.default,
          aten.reshape.default, aten.unsqueeze.default, aten.squeeze.dim)
DEVICE = "cpu"  # where models are exported, and compared with eager PyTorch
_KEY = "autocast"


@dataclass(frozen=True)
class Block:
    """Autocast to bfloat16, as an operation is called in it. The casts of a weight are one in all of an outermost block
    that has a `cache`, by which it is known."""

    cache: int | None


def of_training(call: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Model and loss in the block that a training loop would put around them."""

    def run(*arguments: Any) -> Tensor:
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            return call(*arguments)

    return run


def refuse_around() -> None:
    """Refuses a block around the export, which some of its steps would see, and others not."""
    if torch.is_autocast_enabled(DEVICE) or torch.is_autocast_enabled("cuda"):
        raise ExportError("the export runs inside of torch.autocast",
                          fix="Call it outside, with dtype='autocast' for a model that is trained under autocast")


# ---- While the model is traced ----


@contextlib.contextmanager
def recorded(where: Callable[[], str]) -> Iterator[None]:
    """Inside the block, operations that are traced remember the autocast that they are called in. `where` names the
    module that is running. torch.export does not get to know of autocast: its own way of recording it loses what is in
    torch.no_grad within, and the cache."""
    names = ("__init__", "__enter__", "__exit__")
    initialize, enter, leave = (getattr(autocast, name) for name in names)
    recorder = _Recorder()

    def initialized(self: Any, device_type: str, dtype: torch.dtype | None = None, enabled: bool = True,
                    cache_enabled: bool | None = None) -> None:
        initialize(self, device_type, dtype, enabled, cache_enabled)
        # PyTorch switches off what there is no device for, and tracing the cache.
        self.is_asked_for, self.has_cache = enabled, cache_enabled is not False

    def entered(self: Any) -> Any:
        of_device = self.device == DEVICE
        enabled = self._enabled if of_device else getattr(self, "is_asked_for", self._enabled)
        if enabled:
            _check(self, where())
        recorder.enter(of_device, enabled, getattr(self, "has_cache", self._cache_enabled))
        with torch._C.DisableTorchFunction():
            return enter(self)

    def left(self: Any, *exception: Any) -> Any:
        recorder.leave()
        with torch._C.DisableTorchFunction():
            return leave(self, *exception)

    ours: list[Any] = [initialized, entered, left]
    for name, function in zip(names, ours):
        setattr(autocast, name, function)
    try:
        yield
    finally:
        for name, function in zip(names, (initialize, enter, leave)):
            setattr(autocast, name, function)


class _Recorder:
    """Marks the operations that are traced with the blocks of autocast that are open."""

    def __init__(self) -> None:
        self._open: list[Block | None] = []
        self._outermost = 0
        self._last: fx.Node | None = None

    def enter(self, of_device: bool, enabled: bool, cache: bool) -> None:
        """A block is entered."""
        self._mark()
        if not self._open:
            self._outermost += 1
        block = Block(self._outermost if cache else None) if enabled else None
        around = self._open[-1] if self._open else None
        self._open.append(block if of_device else around)

    def leave(self) -> None:
        """The innermost block is left."""
        self._mark()
        self._open.pop()

    def _mark(self) -> None:
        """What was traced since the last call was traced in the innermost block."""
        block = self._open[-1] if self._open else None
        for mode in _get_current_function_mode_stack():  # type: ignore[no-untyped-call]
            if isinstance(mode, PreDispatchTorchFunctionMode):
                before, self._last = self._last, next(iter(reversed(mode.tracer.graph.nodes)), None)
                for node in itertools.takewhile(lambda node: node is not before, reversed(mode.tracer.graph.nodes)):
                    if block is not None:
                        node.meta[_KEY] = block


def _check(block: Any, where: str) -> None:
    if block.device != DEVICE:
        raise ExportError(f"the model computes under autocast of the device '{block.device}'; it is exported on a CPU, "
                          "where that does nothing", where, "Write torch.autocast(x.device.type, dtype=torch.bfloat16)")
    if block.fast_dtype != torch.bfloat16:
        raise ExportError(f"the model computes under autocast to {block.fast_dtype}", where,
                          "Give dtype=torch.bfloat16, which needs no scaling of the loss")


# ---- Afterwards ----


Casts = dict[fx.Node, torch.dtype]  # the operations that are casts, and to what


def write(module: fx.GraphModule, parameters: Mapping[fx.Node, Parameter]) -> tuple[bool, Casts]:
    """Writes the casts into a traced program; returns whether there is autocast in it, and the casts."""
    writer = _Writer(module.graph, [node for node, entry in parameters.items() if entry.role == "trained"])
    for node in list(module.graph.nodes):
        writer.write(node)
    module.recompile()
    return writer.found, writer.casts


def narrow(module: fx.GraphModule, parameters: Mapping[fx.Node, Parameter], casts: Casts) -> None:
    """A trained parameter that is read through one cast to bfloat16 alone becomes a copy in bfloat16 of a master, which
    saves the cast and half its bytes; of several casts the gradients are added up in float32. One that is fixed keeps its
    digits."""
    for node, entry in parameters.items():
        readers = _readers(node, casts)
        if entry.role == "trained" and readers and casts[readers[-1]] == torch.bfloat16:
            entry.tensor, entry.master = nn.Parameter(entry.tensor.detach().to(torch.bfloat16)), entry.tensor
            for narrowed in (node, *readers[:-1]):
                narrowed.meta["val"] = narrowed.meta["val"].to(torch.bfloat16)
            readers[-1].replace_all_uses_with(readers[-2] if len(readers) > 1 else node)
            module.graph.erase_node(readers[-1])
    module.recompile()


def _readers(node: fx.Node, casts: Collection[fx.Node]) -> list[fx.Node]:
    """What alone reads a node, up to a cast, where nothing but views that have each number once come before one."""
    readers: list[fx.Node] = []
    while len(node.users) == 1 and (not readers or node.target in _VIEWS):
        node, = node.users
        readers.append(node)
        if node in casts:
            return readers
    return []


class _Writer:
    """Writes casts. `weights` are what autocast caches its casts of."""

    def __init__(self, graph: fx.Graph, weights: Collection[fx.Node]) -> None:
        self._graph = graph
        self._weights = weights
        self._caches: dict[int | None, dict[fx.Node, fx.Node]] = {}
        self.casts: Casts = {}
        self.found = False

    def write(self, node: fx.Node) -> None:
        """The casts of a node's arguments."""
        block = node.meta.get(_KEY)
        if block is None or not isinstance(node.target, OpOverload):
            return
        self.found = True
        if _has_kernel(node.target, "AutocastCPU"):
            types = _casts(node)
            node.args, node.kwargs = fx.node.map_arg(
                (node.args, node.kwargs), lambda n: self._cast(n, types.get(n), node, block))
        elif _has_kernel(node.target, "CompositeImplicitAutograd") and _casts_inside(node):
            for part in _expand(self._graph, node):
                self.write(part)

    def _cast(self, node: fx.Node, dtype: torch.dtype | None, user: fx.Node, block: Block) -> fx.Node:
        if dtype is None:
            return node
        cache = self._caches.setdefault(block.cache, {})
        if node in cache:
            return cache[node]
        with self._graph.inserting_before(user):
            cast = self._graph.call_function(aten._to_copy.default, (node,), {"dtype": dtype})
        cast.meta = {key: user.meta[key] for key in ("nn_module_stack", "stack_trace") if key in user.meta}
        cast.meta["val"] = node.meta["val"].to(dtype)
        self.casts[cast] = dtype
        if block.cache is not None and node in self._weights and dtype == torch.bfloat16:
            cache[node] = cast
        return cast


def _has_kernel(operator: OpOverload[Any, Any], key: str) -> bool:
    name = operator.name()  # type: ignore[no-untyped-call]
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, key)


class _Copies(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The tensors that are copied to other types inside the block."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.made: list[tuple[Tensor, torch.dtype]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is aten._to_copy.default and "dtype" in kwargs:
            self.made.append((args[0], kwargs["dtype"]))
        return function(*args, **(kwargs or {}))


@dataclass
class _Run:
    """A node computed by itself, of tensors of the sizes that it was traced with."""

    given: dict[fx.Node, Any]
    copied: list[tuple[Tensor, torch.dtype]]  # to other types, on the way


def _run(node: fx.Node, enabled: bool = True) -> _Run:
    """Computes a node under autocast, or without."""
    given = {argument: _of_traced_size(argument.meta.get("val")) for argument in node.all_input_nodes}
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), given.__getitem__)
    assert isinstance(node.target, OpOverload)
    with torch.no_grad(), _block(enabled), _Copies() as copies:
        node.target(*args, **kwargs)
    return _Run(given, copies.made)


def _block(enabled: bool = True) -> Any:
    return torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=enabled, cache_enabled=False)


def _of_traced_size(value: Any) -> Any:
    """A value without symbols, so that what is asked of it says nothing about them."""
    if isinstance(value, FakeTensor):
        sizes, strides = ([_of_traced_size(size) for size in given] for given in (value.shape, value.stride()))
        with value.fake_mode:
            return torch.empty_strided(sizes, strides, dtype=value.dtype, device=value.device)
    if isinstance(value, (tuple, list)):
        return type(value)(map(_of_traced_size, value))
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return value.node.hint if value.node.has_hint() else 1
    return value


def _casts(node: fx.Node) -> dict[fx.Node, torch.dtype]:
    """What autocast casts the arguments of a node to. It does so before it calls the operator, and casts all of them
    that it casts at all; the operator sees no others of those."""
    run = _run(node)
    return {argument: dtype for argument, value in run.given.items() for tensor, dtype in run.copied if tensor is value}


def _casts_inside(node: fx.Node) -> bool:
    """Whether autocast casts something within an operation that consists of others."""
    copied = len(_run(node).copied)
    try:
        return copied != len(_run(node, enabled=False).copied)
    except RuntimeError:  # of types that do not fit
        return True


def _expand(graph: fx.Graph, node: fx.Node) -> list[fx.Node]:
    """Puts what a node consists of in its place."""
    inputs = node.all_input_nodes

    def run(*values: Any) -> Any:
        given = dict(zip(inputs, values))
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), given.__getitem__)
        assert isinstance(node.target, OpOverload)
        with torch._C.DisableTorchFunction():  # which would call the whole operator
            return node.target.decompose(*args, **kwargs)

    with _block():
        parts = make_fx(run, pre_dispatch=True)(*(argument.meta["val"] for argument in inputs)).graph
    copies = dict(zip([part for part in parts.nodes if part.op == "placeholder"], inputs))
    made = []
    with graph.inserting_before(node):
        for part in parts.nodes:
            if part.op == "call_function":
                copies[part] = graph.node_copy(part, copies.__getitem__)
                copies[part].meta = {**node.meta, "val": part.meta["val"]}
                made.append(copies[part])
    result: Any = fx.node.map_arg(parts.output_node().args[0], copies.__getitem__)
    if isinstance(result, fx.Node):
        node.replace_all_uses_with(result)
    else:
        for user in list(node.users):
            assert isinstance(user.args[1], int)
            user.replace_all_uses_with(result[user.args[1]])
            graph.erase_node(user)
    graph.erase_node(node)
    return made
