"""Whether numbers differ from eager PyTorch's by rounding alone: eager PyTorch, which rounds as well, is as far from the
model in float64."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

# Sums in another order round as often, but not the same way, so that the largest of few errors may be several times
# another order's.
_TIMES_EAGER = 10
# Where a tensor has few numbers, eager PyTorch may hit them by chance; it is not better than this.
_LAST_BITS = 2.0**-22


def is_rounding(of_graphs: float, of_eager: float) -> bool:
    """Whether graphs are about as near to float64 as eager PyTorch is."""
    return of_graphs <= _TIMES_EAGER * max(of_eager, _LAST_BITS)


@contextlib.contextmanager
def in_float64(model: nn.Module) -> Iterator[None]:
    """The model computes in float64 inside the block, from the same numbers. What its code makes or casts in float32 is
    float64 as well."""
    tensors = [tensor for tensor in [*model.parameters(), *model.buffers()] if tensor.dtype == torch.float32]
    before = [(tensor, tensor.data, tensor.grad if tensor.is_leaf else None) for tensor in tensors]
    default = torch.get_default_dtype()
    try:
        for tensor in tensors:
            tensor.grad = None
            tensor.data = tensor.data.double()
        torch.set_default_dtype(torch.float64)
        with _Float64ForFloat32():
            yield
    finally:
        torch.set_default_dtype(default)
        for tensor, data, gradient in before:
            tensor.grad = None
            tensor.data = data
            tensor.grad = gradient


def widened(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A batch with the same numbers in float64."""
    return {name: tensor.double() if tensor.dtype == torch.float32 else tensor for name, tensor in batch.items()}


class _Float64ForFloat32(TorchFunctionMode):
    def __torch_function__(self, function: Callable[..., Any], types: Any, arguments: Any = (),
                           keywords: Any = None) -> Any:
        if function is Tensor.float:
            function = Tensor.double
        arguments, keywords = tree_map(_wide, (arguments, keywords or {}))
        if function is torch._grouped_mm and arguments[0].dtype == torch.float64:
            function = _product_by_groups
        return function(*arguments, **keywords)


def _product_by_groups(rows: Tensor, weights: Tensor, offs: Tensor, **_: Any) -> Tensor:
    """The product of each group of rows, which ends at its number of `offs`, with weights of its own: PyTorch's has no kernel
    for float64."""
    ends = offs.tolist()
    products = [rows[begin:end] @ own for begin, end, own in zip([0, *ends], ends, weights)]
    return torch.cat([*products, rows.new_zeros(len(rows) - ends[-1], weights.shape[-1])])


def _wide(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value
