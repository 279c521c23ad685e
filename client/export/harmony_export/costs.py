"""What a layer costs: operations, and the bytes that are alive at the worst moment of a phase."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import sympy
import torch
from torch import Tensor, fx
from torch.utils.flop_counter import flop_registry

from .capture import base_of
from .devices import copies_in_float32
from .fast_products import PRODUCT
from .fused_loss import LINEAR_CROSS_ENTROPY, chunk_bytes
from .joint import LayerGraphs, Phase
from .polynomial import SAMPLES, Amount, Polynomial, number
from .rms_norms import RMS_NORM, RMS_NORM_BACKWARD, temporaries
from .rotary import ROTARY, ROTARY_BACKWARD
from .symbols import by_samples, dimensions_in_memory, expression, not_exact

aten = torch.ops.aten

Pair = tuple[Polynomial, Polynomial]  # bytes: per sample, fixed

_ALIGNMENT = 64


def forward_flops(phase: Phase, where: str) -> float | Amount:
    """Floating-point operations of one sample's forward, a multiply-add as two, by PyTorch's own formulas."""
    total = sympy.expand(sum((_flops(node) for node in phase.graph.nodes), sympy.Integer(0)))
    polynomial = Polynomial.of(total)
    if polynomial is None or not polynomial.never_falls(least=2):
        raise not_exact(f"the layer takes {total} operations", where)
    return float(polynomial.at(0)) if polynomial.is_number else polynomial.text()


Sizes = Sequence[sympy.Expr]


def _attention_flops(query: Sizes, key: Sizes, value: Sizes, *rest: Any, **keywords: Any) -> sympy.Expr:
    """Scores, and what they weigh; heads of queries may share one of keys."""
    return 2 * math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


def _grouped_flops(a: Sizes, b: Sizes, *rest: Any, **keywords: Any) -> sympy.Expr:
    return 2 * math.prod(a) * b[-1]


def _product_flops(bias: Sizes | None, a: Sizes, b: Sizes, **keywords: Any) -> sympy.Expr:
    return _grouped_flops(a, b)


# What PyTorch has no formulas for. Formulas are of shapes.
_FORMULAS: dict[Any, Callable[..., sympy.Expr]] = {
    aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops,
    aten._grouped_mm: _grouped_flops,
    PRODUCT.overloadpacket: _product_flops,
}


def _flops(node: fx.Node) -> sympy.Expr:
    packet = getattr(node.target, "overloadpacket", None)
    formula = flop_registry.get(packet) or _FORMULAS.get(packet)
    if formula is None:
        return sympy.Integer(0)
    arguments = fx.node.map_arg(node.args, _of_one_sample)
    keywords = fx.node.map_arg(node.kwargs, _of_one_sample)
    result = torch.utils._pytree.tree_map(_shape_of_one_sample, node.meta["val"])
    return sympy.sympify(formula(*arguments, **keywords, out_val=result))


def _of_one_sample(node: fx.Node) -> Any:
    return _shape_of_one_sample(node.meta.get("val"))


def _shape_of_one_sample(value: Any) -> Any:
    if isinstance(value, Tensor):
        return tuple(_of_one(size) for size in value.shape)
    if isinstance(value, torch.SymInt):
        return _of_one(value)
    return value


def _of_one(size: int | torch.SymInt) -> sympy.Expr:
    return expression(size).subs({SAMPLES: 1})


# ---- Workspace ----


def workspace(layer: LayerGraphs, where: str) -> dict[str, list[tuple[Amount, Amount]]]:
    """By phase, the bytes that are alive at the worst moment: the largest per_sample*n + fixed over the pairs.

    In `saving` and `backward` what is saved lies in the workspace; `keeping` and `kept_backward` are the same two
    where it lies elsewhere."""
    pairs: dict[str, list[Pair]] = {name: [] for name in
                                    ("forward", "saving", "keeping", "backward", "kept_backward", "fused")}
    for name, phase in layer.phases.items():
        pairs[name] = peak(phase, saved_counts=True, where=where)
    if "saving" in layer.phases:
        pairs["keeping"] = peak(layer.phases["saving"], saved_counts=False, where=where)
        pairs["kept_backward"] = peak(layer.phases["backward"], saved_counts=False, where=where)
    sums = attention_sums(layer, where)
    if sums:
        pairs["attention_sums"] = sums
    return {name: [(per_sample.text(), fixed.text()) for per_sample, fixed in sizes] for name, sizes in pairs.items()}


_WIDE = 4  # bytes of an fp32
_LEAST_FUSED_ROWS = 128  # common/model/gpu_attention.h


def attention_sums(layer: LayerGraphs, where: str) -> list[Pair]:
    """What fused attention adds the gradients of its queries up in on GPUs: bytes of all heads of a sample and, in 16 bits,
    of one head, for each operation but those that others exceed. Where heads of queries share one of keys, the gradients of
    keys and values exist for each of them in 16 bits, as large together; in 32 there is no fused attention then."""
    found = []
    for phase in layer.phases.values():
        for node in phase.graph.nodes:
            if getattr(node.target, "overloadpacket", None) is not aten._scaled_dot_product_flash_attention_for_cpu_backward:
                continue
            query, key = (_tensor(node.args[i]) for i in (1, 2))
            samples, heads, rows, width = (expression(size) for size in query.shape)
            narrow, shared = query.element_size() < _WIDE, expression(key.shape[1]) != heads
            short = rows.is_Integer and rows < _LEAST_FUSED_ROWS
            if short or query.element_size() > _WIDE or (shared and not narrow):
                continue
            head = _WIDE * _up_to(rows, 128) * _up_to(width, 64)
            (per_sample, fixed), (_, of_head) = (bytes_of(size, where)
                                                 for size in ((2 if shared else 1) * samples * heads * head, head))
            found.append((per_sample + fixed, of_head if narrow else number(0)))
    return undominated(found) if found else []


def _up_to(size: sympy.Expr, multiple: int) -> sympy.Expr:
    """A multiple that is not less; of a size that is not known yet, a bound of it."""
    return sympy.Integer(_rounded(int(size), multiple)) if size.is_Integer else size + (multiple - 1)


def tensor_bytes(tensor: Tensor, where: str) -> Pair:
    """A bound of a tensor's bytes, rounded up to 64."""
    return bytes_of(math.prod(map(expression, tensor.shape)) * tensor.element_size(), where)


def bytes_of(size: sympy.Expr, where: str) -> Pair:
    """A bound of so many bytes, rounded up to 64."""
    pair = by_samples(sympy.sympify(size))
    if pair is None:
        # More than linear in n: counted as at the largest microbatch that is likely.
        likely = Polynomial.of(sympy.expand(size.subs({SAMPLES: 64})))
        if likely is None:
            raise not_exact(f"a tensor has {size} bytes", where)
        shares = {power: -(-coefficient // 64) for power, coefficient in enumerate(likely.coefficients)}
        return Polynomial.by_power(shares), number(_ALIGNMENT)
    per_sample, fixed = pair
    least = fixed.at(0)
    rest = [*per_sample.coefficients, *fixed.coefficients[1:]]
    known = all(c % _ALIGNMENT == 0 for c in rest)
    rounded = _rounded(least if known else least + _ALIGNMENT, _ALIGNMENT)
    return per_sample, fixed + number(rounded - least)


def _rounded(size: int, multiple: int) -> int:
    return size + (-size) % multiple


def peak(phase: Phase, saved_counts: bool, where: str) -> list[Pair]:
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
    alive = {node: _bytes_of(node.meta["val"], where) for node, port in phase.inputs
             if port.kind == "saved" and saved_counts}
    moments = [_total(alive.values())]
    for position, node in enumerate(nodes):
        if node.op == "call_function" and node.target is not operator.getitem and base_of(node) is node:
            alive.update(_results_of(node, where))
        moments.append(_total([*alive.values(), _temporaries(node, where)]))
        alive = {owner: size for owner, size in alive.items() if last_use.get(owner, -1) > position}
    return undominated(moments)


# The arguments of whose sizes an operation takes temporaries, as far as these are known: convolutions bring their
# kernel and an image into another order, and the backward of a BatchNorm makes its gradient twice.
_TEMPORARIES: dict[Any, tuple[int, ...]] = {
    aten.convolution: (0, 1),
    aten.convolution_backward: (0, 1, 2),
    aten.native_batch_norm_backward: (1,),
}


def _temporaries(node: fx.Node, where: str) -> Pair:
    if node.target is LINEAR_CROSS_ENTROPY:
        weight: Any = node.args[1]
        return number(0), number(chunk_bytes(weight.meta["val"]))
    if node.target in (RMS_NORM, RMS_NORM_BACKWARD):
        *rows, width = map(expression, _tensor(node.args[0]).shape)
        of_element, of_row = temporaries(node)
        return bytes_of((of_element * width + of_row) * math.prod(rows), where)
    if node.target in (ROTARY, ROTARY_BACKWARD):  # half of the result
        made = _tensor(node)
        return bytes_of(made.element_size() * math.prod(map(expression, made.shape)) / 2, where)
    positions = _TEMPORARIES.get(getattr(node.target, "overloadpacket", None), ())
    sources = [node.args[position] for position in positions]
    sizes = [_bytes_of(source.meta["val"], where) for source in sources if isinstance(source, fx.Node)]
    if node.target is aten.convolution.default and node.meta["val"].dtype == torch.bfloat16:
        sizes.append(_bytes_of(node.meta["val"], where))  # the result is brought into another order, too
    copies = copies_in_float32(node)
    if copies:
        elements = math.prod(map(expression, _tensor(node.args[0]).shape))
        sizes.append(bytes_of(_WIDE * copies * elements, where))
    if node.target is aten.convolution_backward.default:
        sizes.append(_blocks_of_weights(node, where))
    return _total(sizes)


_BLOCK = 16  # channels


def _blocks_of_weights(node: fx.Node, where: str) -> Pair:
    """What a convolution's backward takes for the gradient of its weights beside what it brings into another order.

    As measured with oneDNN: it sums up in fp32, with the channels of each group filled up to blocks, and has another copy
    of it and one sample of image and gradient in such blocks where these are bf16. A gradient of fp32 without groups is
    summed up where it is; of one channel a group it has other kernels, where the kernel is small or channels come first."""
    gradient, image, weight = (_tensor(node.args[i]) for i in range(3))
    groups: Any = node.args[9]
    narrow = weight.dtype == torch.bfloat16
    channels_last = image.dim() == 4 and dimensions_in_memory(image) == [0, 2, 3, 1]
    by_channel = groups > 1 and weight.shape[1] == 1
    if by_channel:
        blocks = channels_last and max(weight.shape[2:]) > 3
    else:
        blocks = narrow or (groups > 1 and channels_last)
    if not blocks:
        return number(0), number(0)
    inside = int(groups) * _rounded(int(image.shape[1]) // groups, _BLOCK)
    outside = _rounded(int(weight.shape[0]) // groups, _BLOCK)
    total = expression(inside * outside * math.prod(weight.shape[2:]) * (6 if narrow else 4))
    if narrow:
        for tensor, channels in ((image, inside), (gradient, int(groups) * outside)):
            total += 2 * channels * math.prod(map(expression, tensor.shape[2:]))
    pair = by_samples(total)
    if pair is None:
        raise not_exact(f"a convolution takes {total} bytes", where)
    return pair


def _tensor(node: Any) -> Tensor:
    value = node.meta["val"]
    assert isinstance(value, Tensor)
    return value


def _results_of(node: fx.Node, where: str) -> dict[fx.Node, Pair]:
    """The memory of an operation's results by the nodes that stand for them; of results that nobody uses, by the
    operation itself."""
    values = node.meta.get("val")
    if not isinstance(values, (tuple, list)):
        return {node: _bytes_of(values, where)}
    users = {user.args[1]: user for user in node.users}
    sizes = {users[i]: _bytes_of(value, where) for i, value in enumerate(values) if i in users}
    sizes[node] = _total(_bytes_of(value, where) for i, value in enumerate(values) if i not in users)
    return sizes


def _bytes_of(value: Any, where: str) -> Pair:
    return tensor_bytes(value, where) if isinstance(value, Tensor) else (number(0), number(0))


def _total(sizes: Iterable[Pair]) -> Pair:
    per_sample = fixed = number(0)
    for p, f in sizes:
        per_sample, fixed = per_sample + p, fixed + f
    return per_sample, fixed


def undominated(pairs: list[Pair]) -> list[Pair]:
    """The pairs that are the largest for some number of samples and some length, ascending by bytes per sample."""
    def by_size(pair: Pair) -> tuple[tuple[int, ...], ...]:
        return tuple((len(p.coefficients), *reversed(p.coefficients)) for p in pair)

    kept: list[Pair] = []
    for pair in sorted(set(pairs), key=by_size, reverse=True):
        # None with less per sample is larger for some number of samples that is not so for one.
        if not any((p - pair[0]).never_falls(least=2) and (p + f - pair[0] - pair[1]).never_falls(least=2)
                   for p, f in kept):
            kept.append(pair)
    nothing = (number(0), number(0))
    return [pair for pair in reversed(kept) if pair != nothing] or [nothing]
