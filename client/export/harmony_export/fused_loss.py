"""A linear layer and the cross entropy of what it makes, in one operation that takes the rows in chunks: the logits,
which for a large vocabulary are many times as large as all else in a microbatch, never exist whole.

It adds up in another order than eager PyTorch, so it is done where it is asked for only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor, fx

from .errors import ExportError
from .operators import define
from .patterns import results_of

aten = torch.ops.aten

LINEAR_CROSS_ENTROPY = define("linear_cross_entropy(Tensor x, Tensor weight, Tensor? bias, Tensor labels, int ignored, "
                              "Tensor scale) -> (Tensor, Tensor, Tensor, Tensor)")

_LOGITS = 16 << 20  # bytes of a chunk, but for 16 rows of very many classes
_MOST_ROWS = 1024
_SUM = 2  # nll_loss' code of that reduction


def chunk_rows(classes: int) -> int:
    """The rows of a chunk: a power of two."""
    rows = 16
    while rows * 2 <= _LOGITS // (4 * classes) and rows < _MOST_ROWS:
        rows *= 2
    return rows


def chunk_bytes(weight: Tensor) -> int:
    """What the operation takes for itself."""
    classes = int(weight.shape[0])
    return chunk_rows(classes) * classes * 4


def linear_cross_entropy(x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, ignored: int,
                         scale: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The sum of the cross entropies, and the gradients of `scale` times that by x, weight and bias."""
    loss = torch.zeros((), dtype=torch.float64)
    of_x, of_weight = torch.empty_like(x), torch.zeros_like(weight)
    of_bias = torch.zeros(weight.shape[0] if bias is not None else 0)
    for begin in range(0, x.shape[0], chunk_rows(weight.shape[0])):
        rows = slice(begin, begin + chunk_rows(weight.shape[0]))
        logarithms = functional.linear(x[rows], weight, bias).log_softmax(1)
        counted = labels[rows] != ignored
        picked = labels[rows].where(counted, 0)
        loss -= logarithms.gather(1, picked.unsqueeze(1)).squeeze(1)[counted].double().sum()
        gradient = logarithms.exp_()
        gradient[torch.arange(len(picked)), picked] -= 1
        gradient *= counted.unsqueeze(1) * scale
        of_x[rows] = gradient @ weight
        of_weight += gradient.T @ x[rows]
        if bias is not None:
            of_bias += gradient.sum(0)
    return loss.float(), of_x, of_weight, of_bias


# ---- Finding it ----


class _NotFound(Exception):
    """Why the operations of a loss cannot be one."""


@dataclass
class _Found:
    """The operations that the fused one takes the place of."""

    x: fx.Node
    weight: fx.Node
    bias: fx.Node | None
    labels: fx.Node
    ignored: int
    scale: fx.Node
    last: fx.Node  # the operation that makes the gradient of the logits
    loss: fx.Node
    of_x: list[fx.Node]
    of_weight: list[fx.Node]
    of_bias: list[fx.Node]


def fuse(graph: fx.Graph, where: str) -> None:
    """Puts the fused operation into a graph of forward, loss and backward."""
    try:
        found = _find(graph)
    except _NotFound as reason:
        raise ExportError(f"the loss cannot be fused: {reason}", where,
                          "Leave fused_loss (--fused-loss) out, or end the model in a linear layer and the cross "
                          "entropy of what it makes") from None
    with found.x.meta["val"].fake_mode:
        empty = found.bias.meta["val"] if found.bias is not None else found.loss.meta["val"].new_empty(0)
        values = [found.loss.meta["val"], torch.empty_like(found.x.meta["val"]),
                  torch.empty_like(found.weight.meta["val"]), torch.empty_like(empty)]
    with graph.inserting_before(found.last.next):
        parts = results_of(graph, LINEAR_CROSS_ENTROPY, (found.x, found.weight, found.bias, found.labels, found.ignored,
                                                         found.scale), values)
    for part, nodes in zip(parts, ([found.loss], found.of_x, found.of_weight, found.of_bias)):
        for node in nodes:
            _put_in_place(graph, node, part)
    graph.eliminate_dead_code()


def _put_in_place(graph: fx.Graph, node: fx.Node, part: fx.Node) -> None:
    wanted, made = node.meta["val"], part.meta["val"]
    if wanted.dim() != made.dim():  # a bias' gradient with the rows' dimension kept
        with graph.inserting_before(node):
            view = graph.call_function(aten.view.default, (part, list(wanted.shape)))
        view.meta["val"] = wanted
        part = view
    node.replace_all_uses_with(part)


def _find(graph: fx.Graph) -> _Found:
    losses: list[Any] = [node for node in graph.nodes if node.target is aten.nll_loss_forward.default]
    if len(losses) != 1:
        raise _NotFound(f"there are {len(losses)} cross entropies")
    loss, total = _results(losses[0])
    logarithms, labels, weights, reduction, ignored = losses[0].args
    if weights is not None or reduction != _SUM:
        raise _NotFound("the cross entropy has weights of classes, or is not that of all counted labels of the batch")
    backward: Any = _only(total, aten.nll_loss_backward.default, "the number of labels is used")
    if logarithms.target is not aten._log_softmax.default or logarithms.args[1] not in (1, -1):
        raise _NotFound("the cross entropy is not that of a softmax over the classes")
    last = _only([user for user in logarithms.users if user not in (losses[0], backward)],
                 aten._log_softmax_backward_data.default, "the logarithms are used")
    if any(user.op != "output" for user in loss.users):
        raise _NotFound("the loss is computed with")
    product = _source(logarithms.args[0])
    bias, x, transposed = _operands(product)
    if transposed.target is not aten.t.default:
        raise _NotFound("the logits are no linear layer's")
    if logarithms.meta["val"].shape[1] != transposed.meta["val"].shape[1]:
        raise _NotFound("the logits are looked at as those of other classes")
    found = _Found(x, transposed.args[0], bias, labels, ignored, backward.args[0], last, loss, [], [], [])
    for user in _readers(last):
        _sort_user(user, found, transposed)
    return found


def _sort_user(user: Any, found: _Found, transposed: fx.Node) -> None:
    """One of the operations that read the gradient of the logits."""
    if user.target is aten.mm.default and user.args[1].target is aten.t.default and user.args[1].args[0] is transposed:
        found.of_x.append(user)
    elif user.target is aten.sum.dim_IntList and user.args[1] == [0] and found.bias is not None:
        found.of_bias.append(user)
    elif user.target is aten.t.default and all(
            product.target is aten.mm.default and product.args == (user, found.x) for product in user.users):
        found.of_weight += user.users
    else:
        raise _NotFound(f"{user.target} reads the gradient of the logits")


def _operands(product: Any) -> tuple[fx.Node | None, Any, Any]:
    if product.target is aten.mm.default:
        return None, *product.args
    plain = product.target is aten.addmm.default and len(product.args) == 3 and not product.kwargs
    if not plain or product.args[0].meta["val"].dim() != 1:
        raise _NotFound("the logits are no linear layer's")
    bias, x, transposed = product.args
    return bias, x, transposed


_VIEWS = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)


def _source(node: Any) -> Any:
    """Where rows come from, which are looked at in other shapes on the way, by one reader each."""
    while node.target in _VIEWS:
        if len(node.users) > 1:
            raise _NotFound("the logits are used otherwise, too")
        node = node.args[0]
    if len(node.users) > 1:
        raise _NotFound("the logits are used otherwise, too")
    return node


def _readers(node: fx.Node) -> Iterable[fx.Node]:
    for user in node.users:
        if user.target in _VIEWS:
            yield from _readers(user)
        else:
            yield user


def _results(node: Any) -> tuple[Any, list[Any]]:
    """The loss, and what reads the number of labels."""
    parts = {user.args[1]: user for user in node.users}
    return parts[0], list(parts[1].users) if 1 in parts else []


def _only(nodes: Iterable[fx.Node], target: Any, otherwise: str) -> fx.Node:
    found = list(nodes)
    if len(found) != 1 or found[0].target is not target:
        raise _NotFound(otherwise)
    return found[0]
