"""Circumstances under which tracing gives the operations that eager PyTorch runs.

Each of them is a place where tracing would choose other operations, or fix the number of samples, or refuse what the
kernels can do.
"""

from __future__ import annotations

import builtins
import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch._meta_registrations as meta_registrations
import torch.nn.functional as functional
import torch.utils.checkpoint as checkpoint
from torch import Tensor
from torch._C import DispatchKey
from torch._decomp import decomposition_table
from torch._ops import OpOverload, OpOverloadPacket
from torch._subclasses import fake_impls
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_map

from . import recurrent
from .symbols import at, dimensions_in_memory, expression


@contextlib.contextmanager
def tracing() -> Iterator[None]:
    """All circumstances together."""
    with (_convolutions_independent_of_samples(), _composites_of_eager(), _grouped_products_in_float32(),
          _upsampling_backwards_of_any_size(), _transformers_as_in_eager(), without_checkpoints(),
          _lengths_of_tensors(), _cross_entropies_of_probabilities(), _orders_in_memory_of_kernels()):
        yield


# ---- Lengths of tensors ----


@contextlib.contextmanager
def _lengths_of_tensors() -> Iterator[None]:
    """Python makes a plain number of what len(x) finds, which would fix the number of samples; x.shape[0] is the same,
    and stays a symbol."""
    original = builtins.len

    def length(value: Any, /) -> Any:
        if isinstance(value, Tensor) and value.dim() and type(value).__len__ is Tensor.__len__:
            return value.shape[0]
        return original(value)

    with _replaced(builtins, "len", length):
        yield


# ---- Cross entropies ----


@contextlib.contextmanager
def _cross_entropies_of_probabilities() -> Iterator[None]:
    """Where labels are probabilities, the operator divides by a plain number of samples, which would fix it: the
    operations that it consists of do not."""
    original = functional.cross_entropy

    def run(input: Tensor, target: Tensor, weight: Tensor | None = None, size_average: bool | None = None,
            ignore_index: int = -100, reduce: bool | None = None, reduction: str = "mean",
            label_smoothing: float = 0.0) -> Tensor:
        if not target.is_floating_point() or size_average is not None or reduce is not None:
            return original(input, target, weight, size_average, ignore_index, reduce, reduction, label_smoothing)
        dimension = min(1, input.dim() - 1)
        classes = input.shape[dimension]
        if label_smoothing > 0:
            target = target * (1 - label_smoothing) + label_smoothing / classes
        terms = functional.log_softmax(input, dimension, dtype=input.dtype) * target
        if weight is not None:
            terms = terms * weight.view([classes if i == dimension else 1 for i in range(input.dim())])
        if reduction == "none":
            return -terms.sum(dimension)
        return -terms.sum() if reduction == "sum" else -terms.sum() / (input.numel() // classes)

    with _replaced(functional, "cross_entropy", run):
        yield


# ---- Checkpoints ----


@contextlib.contextmanager
def without_checkpoints() -> Iterator[None]:
    """What a model would compute again in its backward, it keeps: Harmony decides itself what is computed again, and
    in eager PyTorch a dropout there would be another one."""

    def run(cls: type, function: Callable[..., Any], preserve: bool, *arguments: Any) -> Any:
        return function(*arguments)

    def nothing_around(*_: Any, **__: Any) -> Iterator[None]:
        yield

    with (_replaced(checkpoint.CheckpointFunction, "apply", classmethod(run)),
          _replaced(checkpoint, "_checkpoint_without_reentrant_generator", nothing_around)):
        yield


# ---- Convolutions ----

# Fake tensors ask for the backend of a convolution to know in which order of dimensions its result lies. That choice
# looks at the number of samples ("fewer than 16"), and would fix it; the order of dimensions does not depend on it.
_QUESTIONS = ("_select_conv_backend", "_conv_determine_backend_memory_format")


@contextlib.contextmanager
def _convolutions_independent_of_samples() -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for name in _QUESTIONS:
            stack.enter_context(_replaced(torch._C, name, _asked_for_two_samples(getattr(torch._C, name))))
        yield


def _asked_for_two_samples(question: Callable[..., Any]) -> Callable[..., Any]:
    def ask(*args: Any, **kwargs: Any) -> Any:
        arguments, keywords = tree_map(_of_two_samples, (args, kwargs))
        return question(*arguments, **keywords)

    return ask


def _of_two_samples(value: Any) -> Any:
    if isinstance(value, FakeTensor):
        sizes = [at(expression(size), 2) for size in value.shape]
        strides = [at(expression(stride), 2) for stride in value.stride()]
        with value.fake_mode:
            return torch.empty_strided(sizes, strides, dtype=value.dtype, device=value.device)
    return at(expression(value), 2) if isinstance(value, torch.SymInt) else value


# ---- Composite operators ----

# Tracing has Python versions of these, made of other operations than those that eager PyTorch runs.
_COMPOSITES = ("hardshrink", "softshrink", "multi_margin_loss", "multilabel_margin_loss_forward")
_UPSAMPLING = (*(f"{name}{dimensions}d" for name in ("upsample_nearest", "_upsample_nearest_exact")
                 for dimensions in (1, 2, 3)),
               "upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d",
               "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa")
_KEYS = (DispatchKey.CompositeImplicitAutograd, DispatchKey.Autograd)


@contextlib.contextmanager
def _composites_of_eager() -> Iterator[None]:
    ours: dict[OpOverload[Any, Any], Any] = {getattr(torch.ops.aten, name).default: None for name in _COMPOSITES}
    ours.update({getattr(torch.ops.aten, name).input: function for name, function in recurrent.OPERATORS.items()})
    for packet in (getattr(torch.ops.aten, name) for name in _UPSAMPLING):
        ours.update({packet.default: None, packet.vec: _upsampling(packet)})
    before = {operator: dict(operator.py_kernels) for operator in ours}
    for operator, function in ours.items():
        for key in [key for key in _KEYS if key in operator.py_kernels]:
            del operator.py_kernels[key]
            if function is not None:
                operator.py_kernels[key] = function
        operator._dispatch_cache.clear()
    try:
        yield
    finally:
        for operator, kernels in before.items():
            operator.py_kernels.clear()
            operator.py_kernels.update(kernels)
            operator._dispatch_cache.clear()


@contextlib.contextmanager
def _upsampling_backwards_of_any_size() -> Iterator[None]:
    """Their shape functions take numbers only."""
    ours = {getattr(torch.ops.aten, f"{name}_backward").default: _upsampling_backward for name in _UPSAMPLING}
    with _with_entries(fake_impls.op_implementations_dict, ours):
        yield


def _upsampling_backward(mode: FakeTensorMode, operator: OpOverload[Any, Any], gradient: Tensor,
                         new_size: Sequence[int], size: Sequence[int], *rest: Any) -> Tensor:
    with mode:
        result = torch.empty(tuple(size), dtype=gradient.dtype, device=gradient.device)
        channels_last = dimensions_in_memory(gradient) == [0, 2, 3, 1]
        return result.to(memory_format=torch.channels_last) if channels_last else result


def _upsampling(packet: OpOverloadPacket[Any, Any]) -> Callable[..., Tensor]:
    """What F.interpolate calls: computes the new size, and leaves the rest to the operator that has kernels."""

    def run(x: Tensor, size: Sequence[int] | None, *rest: Any) -> Tensor:
        *flags, factors = rest
        if size is None:
            size = [int(old * factor) for old, factor in zip(x.shape[2:], factors)]
        result = packet.default(x, size, *flags, *(factors or [None] * len(size)))
        assert isinstance(result, Tensor)
        return result

    return run


# ---- Orders in memory ----

# Where the tensors that they read lie in memory in different orders, their kernels go by the first one, or by none; tracing
# has Python versions of these that go by the second. A view of the result that tracing finds possible fails when it runs.
_LIKE_THE_FIRST = ("softplus_backward", "elu_backward", "hardtanh_backward", "hardswish_backward", "hardsigmoid_backward",
                   "logit_backward")
_IN_ORDER = ("mse_loss_backward", "smooth_l1_loss_backward", "huber_loss_backward", "_log_softmax_backward_data")


@contextlib.contextmanager
def _orders_in_memory_of_kernels() -> Iterator[None]:
    changes = dict.fromkeys(_LIKE_THE_FIRST, _like_the_first) | dict.fromkeys(_IN_ORDER, _in_order)
    changed = {getattr(torch.ops.aten, name).default: change for name, change in changes.items()}
    ours = {operator: change(decomposition_table[operator]) for operator, change in changed.items()}
    with contextlib.ExitStack() as stack:
        stack.callback(FakeTensorMode.cache_clear)  # what was found with these, at the end
        stack.enter_context(_with_entries(decomposition_table, ours))
        FakeTensorMode.cache_clear()
        yield


def _like_the_first(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def shape(*arguments: Any, **keywords: Any) -> Tensor:
        first, second = [value for value in arguments if isinstance(value, Tensor)]
        return torch.empty_like(first + second, dtype=original(*arguments, **keywords).dtype)

    return shape


def _in_order(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def shape(*arguments: Any, **keywords: Any) -> Tensor:
        return original(*arguments, **keywords).contiguous()

    return shape


# ---- Grouped products, of mixtures of experts ----


@contextlib.contextmanager
def _grouped_products_in_float32() -> Iterator[None]:
    """The kernels of grouped products take float32, their shape function refuses it."""
    original = meta_registrations._meta_grouped_mm_common
    with _replaced(meta_registrations, "_meta_grouped_mm_common", _grouped_product(original)):
        yield


def _grouped_product(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def shape(a: Tensor, b: Tensor, **keys: Any) -> Tensor:
        offsets = keys.get("offs")
        if a.dtype == torch.bfloat16 or offsets is None:
            return original(a, b, **keys)
        if a.dim() == 2 and b.dim() == 2:
            return a.new_empty((offsets.shape[0], a.shape[0], b.shape[1]))
        return a.new_empty((a.shape[-2], b.shape[-1]))

    return shape


# ---- transformers ----


@contextlib.contextmanager
def _transformers_as_in_eager() -> Iterator[None]:
    """Its models make a mask, also where attention is causal and nothing else, and take other operations where they think that
    they are compiled or exported."""
    with contextlib.ExitStack() as stack:
        for name, module in list(sys.modules.items()):
            if not name.startswith("transformers."):
                continue
            for question in ("is_torchdynamo_compiling", "is_torchdynamo_exporting"):
                if question in vars(module):
                    stack.enter_context(_replaced(module, question, lambda: False))
            if _PACKED in vars(module):
                stack.enter_context(_replaced(module, _PACKED, _packed_as_in_eager(vars(module)[_PACKED])))
            for question in _UNMASKED:
                if question in vars(module):
                    stack.enter_context(_replaced(module, question, _at_any_length(vars(module)[question])))
        yield


_PACKED = "find_packed_sequence_indices"
_UNMASKED = ("_ignore_causal_mask_sdpa", "_ignore_bidirectional_mask_sdpa")


def _at_any_length(original: Callable[..., bool]) -> Callable[..., bool]:
    """Whether no mask is needed. With a window that depends on whether sequences are shorter, which a length that a job chooses
    leaves open."""
    def ask(*args: Any, **keywords: Any) -> bool:
        given = inspect.signature(original).bind(*args, **keywords).arguments
        is_open = any(isinstance(value, torch.SymInt) for value in given.values())
        return False if is_open and given.get("local_attention_size") is not None else original(*args, **keywords)

    return ask


def _packed_as_in_eager(original: Callable[[Tensor], Tensor | None]) -> Callable[[Tensor], Tensor | None]:
    """Which sequence each token belongs to is read off their positions. Eager models look whether these count without a gap,
    and make no mask then. They always do where a model numbers tokens by itself: such positions are one row, which stands for
    all samples."""
    def find(position_ids: Tensor) -> Tensor | None:
        one_row = position_ids.dim() == 2 and 0 in (position_ids.stride(0), position_ids.shape[0] - 1)
        return None if one_row else original(position_ids)

    return find


@contextlib.contextmanager
def _with_entries(table: dict[Any, Any], ours: dict[Any, Any]) -> Iterator[None]:
    before = {key: table[key] for key in ours if key in table}
    table.update(ours)
    try:
        yield
    finally:
        for key in ours:
            del table[key]
        table.update(before)


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    inherited = name not in vars(owner)
    original = None if inherited else vars(owner)[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        if inherited:
            delattr(owner, name)
        else:
            setattr(owner, name, original)
