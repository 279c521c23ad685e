"""A gated product, activation(gate) times something, and its gradients as one operation each: the activation is computed again
in the backward, which is cheap, and not left to it. On a CPU the bits are those of the operations that they take the place of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor, fx

from .operators import define
from .patterns import NotFound, Substitute, has_rows, in_order, is_product, only, other_operand, require, results_of

aten = torch.ops.aten

GATED = define("gated(Tensor gate, Tensor up, str activation) -> Tensor")
GATED_BACKWARD = define("gated_backward(Tensor gradient, Tensor gate, Tensor up, str activation) -> (Tensor, Tensor)")

_BACKWARD: dict[Any, Any] = {aten.silu.default: aten.silu_backward.default, aten.gelu.default: aten.gelu_backward.default}


def _activated(gate: Tensor, activation: str) -> Tensor:
    if activation == "silu":
        return functional.silu(gate)
    return functional.gelu(gate, approximate="tanh" if activation == "gelu_tanh" else "none")


def gated(gate: Tensor, up: Tensor, activation: str) -> Tensor:
    """The product, as eager PyTorch computes it."""
    return _activated(gate, activation) * up


def gated_backward(gradient: Tensor, gate: Tensor, up: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    """The gradients by both, as eager PyTorch computes them."""
    of_activated = gradient * up
    if activation == "silu":
        of_gate = aten.silu_backward(of_activated, gate)
    else:
        of_gate = aten.gelu_backward(of_activated, gate, approximate="tanh" if activation == "gelu_tanh" else "none")
    return of_gate, gradient * _activated(gate, activation)


# ---- Finding them ----


@dataclass
class _Found:
    gate: fx.Node
    up: fx.Node
    activation: str
    product: fx.Node
    gradient: fx.Node
    of_activated: fx.Node
    of_gate: fx.Node
    of_up: fx.Node


def join(graph: fx.Graph, substitute: Substitute) -> None:
    """Puts them into a graph of forward and backward."""
    for node in list(graph.nodes):
        if node.target not in _BACKWARD:
            continue
        try:
            found = _find(node)
        except NotFound:
            continue
        with graph.inserting_before(found.product):
            product = graph.call_function(GATED, (found.gate, found.up, found.activation))
            product.meta["val"] = found.product.meta["val"]
        order = {other: number for number, other in enumerate(graph.nodes)}
        with graph.inserting_before(min(found.of_up, found.of_activated, key=lambda other: order[other])):
            of_gate, of_up = results_of(graph, GATED_BACKWARD, (found.gradient, found.gate, found.up, found.activation),
                                        [found.of_gate.meta["val"], found.of_up.meta["val"]])
        for part, result in ((found.product, product), (found.of_gate, of_gate), (found.of_up, of_up)):
            substitute(part, result)
    graph.eliminate_dead_code()


def _find(activated: Any) -> _Found:
    backward, kind = _BACKWARD[activated.target], activated.meta["val"].dtype
    gate = activated.args[0]
    of_gate = only([user for user in gate.users if user.target is backward and user.args[1] is gate
                    and user.kwargs == activated.kwargs])
    require(len(activated.args) == 1 and len(of_gate.args) == 2 and len(activated.users) == 2)
    of_activated: Any = of_gate.args[0]
    require(len(of_activated.users) == 1)
    # Of the two readers of what is activated the first makes the product, the other the gradient of its other factor.
    product, of_up = sorted(activated.users)
    require(isinstance(product.meta.get("val"), Tensor) and isinstance(of_up.meta.get("val"), Tensor))
    up, gradient = other_operand(product, activated), other_operand(of_up, activated)
    require(is_product(product, activated, up) and is_product(of_up, activated, gradient))
    require(up is not gradient and is_product(of_activated, gradient, up))
    sizes = activated.meta["val"].shape
    for node in (gate, up, gradient, product, of_gate, of_up):
        value = node.meta["val"]
        # The factors may be halves of one tensor; all else lies as the operations' results do.
        require(has_rows(node) if node in (gate, up) else in_order(node))
        # Symbols are compared as they are, which assumes nothing of them.
        require(value.dtype == kind and [str(size) for size in value.shape] == [str(size) for size in sizes])
    require(kind in (torch.float32, torch.bfloat16))
    name = "silu" if activated.target is aten.silu.default else "gelu"
    tanh = activated.kwargs.get("approximate", "none") == "tanh"
    return _Found(gate, up, name + ("_tanh" if tanh else ""), product, gradient, of_activated, of_gate, of_up)
