"""What keeps graphs free of the device that they were traced on, a CPU, for they run on any."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten

# PyTorch has a kernel of attention for each kind of device under a name of its own, and traces that of the CPU. A graph
# has it under these names, with the same arguments but for the dropout, which is never there.
NEUTRAL: dict[Any, str] = {
    aten._scaled_dot_product_flash_attention_for_cpu.default: "harmony::attention",
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: "harmony::attention_backward",
}
LEFT_OUT = "dropout_p"


def attention(query: Tensor, key: Tensor, value: Tensor, causal: bool, mask: Tensor | None, scale: float | None) -> Any:
    """harmony::attention as eager PyTorch computes it on a CPU."""
    return aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, causal, attn_mask=mask, scale=scale)


def attention_backward(gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, output: Tensor, logarithms: Tensor,
                       causal: bool, mask: Tensor | None, scale: float | None) -> Any:
    """harmony::attention_backward as eager PyTorch computes it on a CPU."""
    return aten._scaled_dot_product_flash_attention_for_cpu_backward(
        gradient, query, key, value, output, logarithms, 0.0, causal, attn_mask=mask, scale=scale)


def only_on_cpu(graphs: Iterable[bytes]) -> list[str]:
    """The operators in graph files that a GPU has no kernel of."""
    has_kernel = torch._C._dispatch_has_computed_kernel_for_dispatch_key
    if not has_kernel("aten::mm", "CUDA"):
        return []  # this PyTorch was built without, and cannot tell
    phases = [phase for data in graphs for phase in json.loads(data)["phases"].values()]
    names = {".".join(filter(None, (op["op"], op["overload"]))) for phase in phases for op in phase["ops"]}
    return sorted(name for name in names if name.startswith("aten::") and not has_kernel(name, "CUDA"))
