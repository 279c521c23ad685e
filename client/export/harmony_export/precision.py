"""Models whose layers compute in bfloat16, while their parameters are trained in float32: whole ones, and those that a
training loop would run under autocast."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from . import places
from .capture import Call
from .errors import ExportError
from .explain import run_eagerly

# By name, the types that a trained parameter may have before.
_TRAINED = {"fp32": (torch.float32,), "bf16": (torch.float32, torch.bfloat16, torch.float16),
            "autocast": (torch.float32,)}
DTYPES = tuple(_TRAINED)


def check_types(model: nn.Module, dtype: str, keep_fp32: Sequence[str], fused_loss: bool,
                fast_products: bool) -> None:
    """Refuses what does not fit a type that is asked for."""
    if dtype not in DTYPES:
        raise ExportError(f"dtype is '{dtype}'", fix=f"Give one of {', '.join(DTYPES)}")
    if dtype != "bf16" and keep_fp32:
        raise ExportError(f"keep_fp32 is given, and dtype is '{dtype}'", fix="It names what stays in fp32 where the rest "
                          "does not: leave it out, or give dtype='bf16'")
    if dtype != "fp32" and fused_loss:
        raise ExportError(f"the fused loss computes in fp32, and with dtype {dtype} the last layer's weight is bf16",
                          fix="Leave out fused_loss (--fused-loss), or export in fp32")
    if dtype == "bf16" and fast_products:
        raise ExportError("the fast products are of fp32, and with dtype bf16 there are none",
                          fix="Leave out fast_products (--fast-products), or export in fp32")
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.is_floating_point() and parameter.dtype not in _TRAINED[dtype]:
            other = ", or export with dtype='bf16'" if parameter.dtype in _TRAINED["bf16"] else ""
            raise ExportError(f"the parameter is trained and has the type {parameter.dtype}", name,
                              f"Parameters are trained in float32: call model.float() before the export{other}")


class Masters:
    """The values from which a model in bfloat16 was made."""

    def __init__(self) -> None:
        self._values: dict[int, Tensor] = {}

    def add(self, tensor: Tensor, value: Tensor) -> None:
        """Of a parameter or buffer."""
        self._values[id(tensor)] = value

    def of(self, tensor: Tensor) -> Tensor:
        """Of a tensor that was not changed, itself."""
        return self._values.get(id(tensor), tensor)


@contextlib.contextmanager
def in_bfloat16(model: nn.Module, keep_fp32: Sequence[str]) -> Iterator[Masters]:
    """As model.to(torch.bfloat16) leaves it, inside the block, but for norms that have running statistics, and for
    names that fit `keep_fp32`."""
    kept = _kept(model, keep_fp32)
    masters = Masters()
    changed: list[tuple[Tensor, Tensor, Tensor | None]] = []
    try:
        for tensor in [*model.parameters(), *model.buffers()]:
            if id(tensor) in kept or not tensor.is_floating_point() or tensor.dtype == torch.bfloat16:
                continue
            # A gradient that is there has the type of its parameter.
            gradient = tensor.grad if tensor.is_leaf else None
            changed.append((tensor, tensor.data, gradient))
            masters.add(tensor, tensor.data)
            tensor.grad = None
            tensor.data = tensor.data.to(torch.bfloat16)
        yield masters
    finally:
        for tensor, data, gradient in changed:
            tensor.grad = None
            tensor.data = data
            tensor.grad = gradient


def _kept(model: nn.Module, patterns: Sequence[str]) -> set[int]:
    """The tensors that keep their types. Running means move by small steps, which bfloat16 rounds away; and the kernels
    of a norm that has some take its parameters in the same type."""
    kept = {id(tensor) for module in model.modules() if isinstance(module, _NormBase) and module.running_mean is not None
            for tensor in [*module.parameters(recurse=False), *module.buffers(recurse=False)]}
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    if isinstance(patterns, str):
        raise ExportError("keep_fp32 is a string", fix=f"Give a list: keep_fp32=['{patterns}']")
    for pattern in patterns:
        fitting = {id(tensor) for name, tensor in named if fnmatchcase(name, pattern)}
        if not fitting:
            raise ExportError(f"keep_fp32: '{pattern}' fits no parameter or buffer", fix="Give names of the state dict")
        kept |= fitting
    return kept


def check_runs(model: nn.Module, call: Call, batch: Mapping[str, Tensor], dtype: str) -> None:
    """Refuses a model that eager PyTorch does not run in bfloat16: tracing lets types pass that kernels refuse."""
    try:
        run_eagerly(model, call, {name: tensor[:2] for name, tensor in batch.items()})
    except RuntimeError as error:
        way, others = (("in bfloat16", "name parameters that stay in fp32 in keep_fp32, all of a module's")
                       if dtype == "bf16" else ("under autocast", "convert them where they meet (y.to(x.dtype))"))
        raise ExportError(f"the model does not run {way}: {error}", places.of_exception(error, model),
                          f"Make tensors in the type of those that they meet (torch.ones(..., dtype=x.dtype)), or {others}"
                          ) from error


def rounded(value: object) -> object:
    """An input of the model as its layers take it."""
    return value.to(torch.bfloat16) if isinstance(value, Tensor) and value.is_floating_point() else value
