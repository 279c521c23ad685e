"""What keeps graphs free of the device that they were traced on, a CPU, for they run on any."""

from __future__ import annotations

import contextlib
import json
import logging
import operator
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map

from .capture import arguments_of

aten = torch.ops.aten

# PyTorch has a kernel of attention for each kind of device under a name of its own, and traces that of the CPU. A graph
# has it under these names, with the same arguments but for the dropout, which is never there.
NEUTRAL: dict[Any, str] = {
    aten._scaled_dot_product_flash_attention_for_cpu.default: "harmony::attention",
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: "harmony::attention_backward",
}
LEFT_OUT = "dropout_p"

# Of an input narrower than float32, a layer norm leaves means and deviations in the type of its parameters on a CPU, and in
# float32 on a GPU. Under these names it leaves float32 everywhere.
_LAYER_NORMS: dict[Any, str] = {
    aten.native_layer_norm.default: "harmony::layer_norm",
    aten.native_layer_norm_backward.default: "harmony::layer_norm_backward",
}
# Of an input narrower than its parameters, which no kernel takes on a GPU.
_GROUP_NORMS: dict[Any, str] = {
    aten.native_group_norm.default: "harmony::group_norm",
    aten.native_group_norm_backward.default: "harmony::group_norm_backward",
}
# Without running statistics, of an input narrower than float32: those of the batch are in float32 on a GPU, and on a CPU in the
# type of the parameters, or of the input. With parameters in float32 they are so everywhere.
_BATCH_NORMS: dict[Any, str] = {
    aten._native_batch_norm_legit.no_stats: "harmony::batch_norm",
    aten.native_batch_norm_backward.default: "harmony::batch_norm_backward",
}


def name_of(operation: fx.Node) -> str:
    """The name that a graph has for an operation of ATen."""
    target: Any = operation.target
    values = [argument.meta.get("val") for argument in operation.args if isinstance(argument, fx.Node)]
    types = [value.dtype for value in values if isinstance(value, Tensor)]
    narrow = any(kind in (torch.bfloat16, torch.float16) for kind in types)
    if narrow and target in _LAYER_NORMS:
        return _LAYER_NORMS[target]
    if narrow and target in _GROUP_NORMS and torch.float32 in types:
        return _GROUP_NORMS[target]
    if narrow and target in _BATCH_NORMS and _parameter_type(operation) != torch.float32:
        return _BATCH_NORMS[target]
    name: str = target._schema.name
    return NEUTRAL.get(target, name)


def _parameter_type(norm: fx.Node) -> torch.dtype | None:
    weight = arguments_of(norm)["weight"]
    return weight.meta["val"].dtype if weight is not None else None


def has_own_norm(operation: fx.Node) -> bool:
    """Whether it is a norm, or the backward of one, that graphs have under a name of their own: its statistics are in float32
    though its input is not."""
    return operation.target in (*_LAYER_NORMS, *_GROUP_NORMS, *_BATCH_NORMS) and name_of(operation).startswith("harmony::")


def copies_in_float32(operation: fx.Node) -> int:
    """How many tensors of its input's size a GPU has in float32 beside: of a norm whose parameters are wider than its input,
    the input and the result, and in its backward the gradient, the input and its gradient."""
    if not has_own_norm(operation) or _parameter_type(operation) != torch.float32:
        return 0
    return 3 if name_of(operation).endswith("_backward") else 2


def attention(query: Tensor, key: Tensor, value: Tensor, causal: bool, mask: Tensor | None, scale: float | None) -> Any:
    """harmony::attention as eager PyTorch computes it on a CPU."""
    return aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, causal, attn_mask=mask, scale=scale)


def attention_backward(gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, output: Tensor, logarithms: Tensor,
                       causal: bool, mask: Tensor | None, scale: float | None) -> Any:
    """harmony::attention_backward as eager PyTorch computes it on a CPU."""
    return aten._scaled_dot_product_flash_attention_for_cpu_backward(
        gradient, query, key, value, output, logarithms, 0.0, causal, attn_mask=mask, scale=scale)


def layer_norm(x: Tensor, shape: list[int], weight: Tensor | None, bias: Tensor | None, epsilon: float) -> Any:
    """harmony::layer_norm as eager PyTorch computes it on a CPU."""
    y, mean, deviation = aten.native_layer_norm(x, shape, weight, bias, epsilon)
    return y, mean.float(), deviation.float()


def layer_norm_backward(gradient: Tensor, x: Tensor, shape: list[int], mean: Tensor, deviation: Tensor,
                        weight: Tensor | None, bias: Tensor | None, wanted: list[bool]) -> Any:
    """harmony::layer_norm_backward as eager PyTorch computes it on a CPU, where the statistics have the parameters' type."""
    given = [parameter for parameter in (weight, bias) if parameter is not None]
    kind = given[0].dtype if given else x.dtype
    return aten.native_layer_norm_backward(gradient, x, shape, mean.to(kind), deviation.to(kind), weight, bias, wanted)


def batch_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, training: bool, momentum: float, epsilon: float) -> Any:
    """harmony::batch_norm as eager PyTorch computes it on a CPU."""
    y, mean, deviation = aten._native_batch_norm_legit.no_stats(x, weight, bias, training, momentum, epsilon)
    return y, mean.float(), deviation.float()


def batch_norm_backward(gradient: Tensor, x: Tensor, weight: Tensor | None, running_mean: Tensor | None,
                        running_variance: Tensor | None, mean: Tensor | None, deviation: Tensor | None, training: bool,
                        epsilon: float, wanted: list[bool]) -> Any:
    """harmony::batch_norm_backward as eager PyTorch computes it on a CPU, where the statistics have the parameters' type."""
    if weight is not None and mean is not None and deviation is not None:
        mean, deviation = mean.to(weight.dtype), deviation.to(weight.dtype)
    return aten.native_batch_norm_backward(gradient, x, weight, running_mean, running_variance, mean, deviation, training,
                                           epsilon, wanted)


def maker_of(result: fx.Node) -> fx.Node:
    """The operation that a node is the result of, or one of the results."""
    operation = result.args[0] if result.target is operator.getitem else result
    assert isinstance(operation, fx.Node)
    return operation


def is_other_on_gpus(result: fx.Node) -> bool:
    """Whether an operation's result, which a forward saves for its backward, has another shape or type on a GPU, by what
    PyTorch's shape functions say: memory is laid out by the CPU's. False also where they cannot say."""
    operation = maker_of(result)
    if not isinstance(operation.target, OpOverload) or name_of(operation).startswith("harmony::"):
        return False
    if any(node.meta.get("val") is None for node in operation.all_input_nodes):
        return False
    known = fx.node.map_arg((operation.args, operation.kwargs), lambda node: node.meta["val"])
    try:
        with _without_a_log(), FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
            args, kwargs = tree_map(_on_a_gpu, known)
            made = operation.target(*args, **kwargs)
            made = made if operation is result else made[result.args[1]]
            here = _on_a_gpu(result.meta["val"])
    except Exception:  # of any type that a shape function, or a kernel that only CPUs have, may raise
        return False
    return bool(made.shape != here.shape or made.dtype != here.dtype)


@contextlib.contextmanager
def _without_a_log() -> Iterator[None]:
    """PyTorch logs what its shape functions raise, too."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before = log.disabled
    log.disabled = True
    try:
        yield
    finally:
        log.disabled = before


def _on_a_gpu(value: Any) -> Any:
    """A tensor's like on a GPU, with the sizes that it was traced with; a size as a number."""
    if isinstance(value, (torch.SymInt, torch.SymFloat)):
        return value.node.hint
    if not isinstance(value, Tensor):
        return value
    shape, strides = tree_map(_on_a_gpu, (tuple(value.shape), value.stride()))
    return torch.empty_strided(shape, strides, dtype=value.dtype, device="cuda")


def only_on_cpu(graphs: Iterable[bytes]) -> list[str]:
    """The operators in graph files that a GPU has no kernel of."""
    has_kernel = torch._C._dispatch_has_computed_kernel_for_dispatch_key
    if not has_kernel("aten::mm", "CUDA"):
        return []  # this PyTorch was built without, and cannot tell
    phases = [phase for data in graphs for phase in json.loads(data)["phases"].values()]
    names = {".".join(filter(None, (op["op"], op["overload"]))) for phase in phases for op in phase["ops"]}
    return sorted(name for name in names if name.startswith("aten::") and not has_kernel(name, "CUDA"))
