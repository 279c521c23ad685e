"""Products of matrices by the runtime's own kernel, where that is asked for.

On processors with AVX-512 that are not Intel's the library behind eager PyTorch's products stays with AVX2, and the
runtime's kernel is up to twice as fast. It adds up in another order, so the last bits are others than eager PyTorch's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from .operators import define
from .parts import call, continues, is_sum, summands

aten = torch.ops.aten

PRODUCT = define("product(Tensor? bias, Tensor a, Tensor b) -> Tensor")


def product(bias: Tensor | None, a: Tensor, b: Tensor) -> Tensor:
    """a b, or bias + a b, as eager PyTorch computes it."""
    return torch.mm(a, b) if bias is None else torch.addmm(bias, a, b)


_FEWEST = 4  # products in a sum


def join_sums(graph: fx.Graph) -> None:
    """A sum of many products becomes one of longer rows: the gradient of a recurrence's weights, which each step adds
    to, is then written once. It is added up in another order."""
    for root in list(graph.nodes):
        if not is_sum(root) or continues(root):
            continue
        found = [_product(node) for node in summands(root)]
        turned = {odd for _, odd in found}
        products = [node for node, _ in found if node is not None]
        if len(found) < _FEWEST or len(products) < len(found) or len(turned) > 1:
            continue
        with graph.inserting_before(root):
            total = _longer(graph, products)
            root.replace_all_uses_with(call(graph, aten.t.default, total) if turned == {True} else total)
    graph.eliminate_dead_code()


def _product(node: Any) -> tuple[fx.Node | None, bool]:
    """The product that a summand is, if it is one that nothing else reads, and whether it is transposed."""
    odd = False
    while node.target is aten.t.default and len(node.users) == 1:
        node, odd = node.args[0], not odd
    own = node.target is aten.mm.default and len(node.users) == 1
    return (node if own else None), odd


def _longer(graph: fx.Graph, products: list[fx.Node]) -> fx.Node:
    left: list[Any] = [node.args[0] for node in products]
    if all(a.target is aten.t.default for a in left):
        a = call(graph, aten.t.default, call(graph, aten.cat.default, [a.args[0] for a in left], 0))
    else:
        a = call(graph, aten.cat.default, left, 1)
    return call(graph, aten.mm.default, a, call(graph, aten.cat.default, [node.args[1] for node in products], 0))


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
