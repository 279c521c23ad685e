"""What a layer costs: operations, and the bytes that are alive at the worst moment of a phase."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils.flop_counter import flop_registry, sdpa_flop_count

from .capture import base_of
from .fused_loss import LINEAR_CROSS_ENTROPY, chunk_bytes
from .joint import LayerGraphs, Phase
from .symbols import at, expression, linear

Pair = tuple[int, int]  # bytes: per sample, fixed

_ALIGNMENT = 64


def forward_flops(phase: Phase) -> float:
    """Floating-point operations of one sample's forward, a multiply-add as two, by PyTorch's own formulas."""
    return float(sum(_flops(node) for node in phase.graph.nodes))


def _attention_flops(query: Tensor, key: Tensor, value: Tensor, *rest: Any, **keywords: Any) -> int:
    return int(sdpa_flop_count(query.shape, key.shape, value.shape))  # type: ignore[no-untyped-call]


def _grouped_flops(a: Tensor, b: Tensor, *rest: Any, **keywords: Any) -> int:
    return 2 * a.numel() * b.shape[-1]


# What PyTorch has no formulas for.
_FORMULAS: dict[Any, Callable[..., int]] = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops,
    torch.ops.aten._grouped_mm: _grouped_flops,
}


def _flops(node: fx.Node) -> int:
    packet = getattr(node.target, "overloadpacket", None)
    formula = flop_registry.get(packet) or _FORMULAS.get(packet)
    if formula is None:
        return 0
    arguments = fx.node.map_arg(node.args, _of_one_sample)
    keywords = fx.node.map_arg(node.kwargs, _of_one_sample)
    result = torch.utils._pytree.tree_map(_shape_of_one_sample, node.meta["val"])
    return int(formula(*arguments, **keywords, out_val=result))


def _of_one_sample(node: fx.Node) -> Any:
    return _shape_of_one_sample(node.meta.get("val"))


def _shape_of_one_sample(value: Any) -> Any:
    if isinstance(value, Tensor):
        return torch.empty([at(expression(size), 1) for size in value.shape], dtype=value.dtype, device="meta")
    if isinstance(value, torch.SymInt):
        return at(expression(value), 1)
    return value


# ---- Workspace ----


def workspace(layer: LayerGraphs) -> dict[str, list[Pair]]:
    """By phase, the bytes that are alive at the worst moment: the largest per_sample*n + fixed over the pairs.

    In `saving` and `backward` what is saved lies in the workspace; `keeping` and `kept_backward` are the same two
    where it lies elsewhere."""
    pairs: dict[str, list[Pair]] = {name: [] for name in
                                    ("forward", "saving", "keeping", "backward", "kept_backward", "fused")}
    for name, phase in layer.phases.items():
        pairs[name] = peak(phase, saved_counts=True)
    if "saving" in layer.phases:
        pairs["keeping"] = peak(layer.phases["saving"], saved_counts=False)
        pairs["kept_backward"] = peak(layer.phases["backward"], saved_counts=False)
    return pairs


def tensor_bytes(tensor: Tensor) -> Pair:
    """A bound of a tensor's bytes, rounded up to 64."""
    elements = expression(1)
    for size in tensor.shape:
        elements *= expression(size)
    pair = linear(elements * tensor.element_size())
    if pair is None:
        # More than linear in n: counted as at the largest microbatch that is likely.
        return at(elements, 64) * tensor.element_size() // 64, _ALIGNMENT
    per_sample, fixed = pair
    return per_sample, fixed + (-fixed) % _ALIGNMENT if not per_sample % _ALIGNMENT else _rounded(fixed + _ALIGNMENT)


def _rounded(size: int) -> int:
    return size + (-size) % _ALIGNMENT


def peak(phase: Phase, saved_counts: bool) -> list[Pair]:
    """The bytes alive at each operation of a phase, without those that others exceed. Slots and tangents do not
    count. A result is handed on as soon as it is made; only what is saved stays, where it counts."""
    nodes = list(phase.graph.nodes)
    last_use: dict[fx.Node, int] = {}
    for position, node in enumerate(nodes):
        if node.op == "call_function":
            for argument in [node, *node.all_input_nodes]:
                last_use[base_of(argument)] = position
    if saved_counts:
        last_use.update({base_of(node): len(nodes) for node, port in phase.results if port.kind == "saved"})
    alive = {node: _bytes_of(node.meta["val"]) for node, port in phase.inputs
             if port.kind == "saved" and saved_counts}
    moments = [_total(alive.values())]
    for position, node in enumerate(nodes):
        if node.op == "call_function" and node.target is not operator.getitem and base_of(node) is node:
            alive.update(_results_of(node))
        moments.append(_total([*alive.values(), _temporaries(node)]))
        alive = {owner: size for owner, size in alive.items() if last_use.get(owner, -1) > position}
    return undominated(moments)


# The arguments of whose sizes an operation takes temporaries, as far as these are known: convolutions bring their
# kernel and an image into another order, and the backward of a BatchNorm makes its gradient twice.
_TEMPORARIES: dict[Any, tuple[int, ...]] = {
    torch.ops.aten.convolution: (0, 1),
    torch.ops.aten.convolution_backward: (0, 1, 2),
    torch.ops.aten.native_batch_norm_backward: (1,),
}


def _temporaries(node: fx.Node) -> Pair:
    if node.target is LINEAR_CROSS_ENTROPY:
        weight: Any = node.args[1]
        return 0, chunk_bytes(weight.meta["val"])
    positions = _TEMPORARIES.get(getattr(node.target, "overloadpacket", None), ())
    sources = [node.args[position] for position in positions]
    return _total(_bytes_of(source.meta["val"]) for source in sources if isinstance(source, fx.Node))


def _results_of(node: fx.Node) -> dict[fx.Node, Pair]:
    """The memory of an operation's results by the nodes that stand for them; of results that nobody uses, by the
    operation itself."""
    values = node.meta.get("val")
    if not isinstance(values, (tuple, list)):
        return {node: _bytes_of(values)}
    users = {user.args[1]: user for user in node.users}
    sizes = {users[i]: _bytes_of(value) for i, value in enumerate(values) if i in users}
    sizes[node] = _total(_bytes_of(value) for i, value in enumerate(values) if i not in users)
    return sizes


def _bytes_of(value: Any) -> Pair:
    return tensor_bytes(value) if isinstance(value, Tensor) else (0, 0)


def _total(sizes: Iterable[Pair]) -> Pair:
    pairs = list(sizes)
    return sum(p for p, _ in pairs), sum(f for _, f in pairs)


def undominated(pairs: list[Pair]) -> list[Pair]:
    """The pairs that are the largest for some number of samples, ascending by bytes per sample."""
    kept: list[Pair] = []
    for pair in sorted(set(pairs), reverse=True):
        # Of those with more per sample, none has more fixed bytes left to beat at one sample.
        if not kept or pair[0] + pair[1] > max(p + f for p, f in kept):
            kept.append(pair)
    return [pair for pair in reversed(kept) if pair != (0, 0)] or [(0, 0)]
