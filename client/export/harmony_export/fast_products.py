"""Products of matrices by the runtime's own kernel, where that is asked for.

On processors with AVX-512 that are not Intel's the library behind eager PyTorch's products stays with AVX2, and the
runtime's kernel is up to twice as fast. It adds up in another order, so the last bits are others than eager PyTorch's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx, library

aten = torch.ops.aten

_operators: Any = library.Library("harmony", "FRAGMENT")  # type: ignore[no-untyped-call]
_operators.define("product(Tensor? bias, Tensor a, Tensor b) -> Tensor")
PRODUCT = torch.ops.harmony.product.default


def product(bias: Tensor | None, a: Tensor, b: Tensor) -> Tensor:
    """a b, or bias + a b, as eager PyTorch computes it."""
    return torch.mm(a, b) if bias is None else torch.addmm(bias, a, b)


def use(graph: fx.Graph) -> None:
    """Has the operator compute all products of fp32 in a graph."""
    for node in graph.nodes:
        bias = node.args[0] if node.target is aten.addmm.default else None
        plain = node.target is aten.mm.default or bias is not None and len(node.args) == 3 and not node.kwargs
        if not plain or node.meta["val"].dtype != torch.float32:
            continue
        if bias is None or bias.meta["val"].dim() == 1:
            node.args = (bias, *node.args[-2:])
            node.target = PRODUCT
