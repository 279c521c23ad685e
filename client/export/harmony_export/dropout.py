"""Dropout by counter-based numbers: which elements are kept follows from the seed, the step, the sample, the layer and
the element, so that a forward that is done again keeps the same, whatever has happened in between.

While a model is traced, its dropouts become a mask (`harmony::dropout_mask`) and two products. To compare with eager
PyTorch, the same functions are replaced there, with masks of the same numbers.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor, library, nn
from torch.utils._pytree import tree_map

from .errors import ExportError
from .polynomial import number
from .symbols import by_samples, expression, grows

KEYS = "sample_keys"  # the batch input that brings a random number for each sample

_operators: Any = library.Library("harmony", "DEF")  # type: ignore[no-untyped-call]
# A graph file's operation has one more argument, the number of the layer, which is not known here.
_operators.define("dropout_mask(Tensor keys, int number, SymInt[] shape, int dimension, float p) -> Tensor")


def _shape_of_mask(keys: Tensor, number: int, shape: Sequence[int], dimension: int, p: float) -> Tensor:
    return keys.new_empty(shape, dtype=torch.bool)


_operators.impl("dropout_mask", _shape_of_mask, "Meta")
MASK = torch.ops.harmony.dropout_mask.default


# ---- Which elements are kept ----

_ROUNDS = 10
_WORD = 0xFFFFFFFF


def draw(keys: Tensor, layer: int, number: int, shape: Sequence[int], dimension: int, p: float) -> Tensor:
    """The mask itself. `dimension` counts rows, as many for each sample. Word i of the blocks of Philox4x32-10 (Salmon
    et al., SC 2011) with the sample's key and the counter (block, layer, number) decides on its i-th element."""
    samples = keys.numel()
    elements = math.prod(shape) // samples
    blocks = torch.arange((elements + 3) // 4).expand(samples, -1)
    words = _philox(keys.reshape(-1, 1), blocks, number, layer)
    kept = words.flatten(1)[:, :elements] >= round(p * 2**32)
    rows_first = [shape[dimension], *shape[:dimension], *shape[dimension + 1:]]
    return kept.reshape(rows_first).movedim(0, dimension).contiguous()


def sample_keys(seed: int, step: int, samples: int) -> Tensor:
    """The keys that a worker gives the samples of a step (both count from 0)."""
    key = torch.tensor([[seed if seed < 2**63 else seed - 2**64]])
    counter = torch.arange(samples).unsqueeze(0)
    words = _philox(key, counter, step & _WORD, (step >> 32) + (2 << 16))[0]
    return (words[:, 0] << 32) | words[:, 1]


def _philox(key: Tensor, block: Tensor, counter2: int, counter3: int) -> Tensor:
    k0, k1 = key & _WORD, (key >> 32) & _WORD
    c0, c1 = block & _WORD, (block >> 32) & _WORD
    c2, c3 = torch.full_like(c0, counter2), torch.full_like(c0, counter3)
    for _ in range(_ROUNDS):
        high0, low0 = _product(c0, 0xD2511F53)
        high1, low1 = _product(c2, 0xCD9E8D57)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + 0x9E3779B9) & _WORD, (k1 + 0xBB67AE85) & _WORD
    return torch.stack((c0, c1, c2, c3), dim=-1)


def _product(word: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """The upper and the lower half of a product of two 32-bit words; int64 has no room for all of it."""
    low, high = (word & 0xFFFF) * factor, (word >> 16) * factor
    middle = (low >> 16) + (high & _WORD)
    return ((high >> 32 << 16) + (middle >> 16)) & _WORD, ((middle << 16) | (low & 0xFFFF)) & _WORD


# ---- What takes the place of PyTorch's functions ----


@dataclass(frozen=True)
class Place:
    """Where the draws of one call of a dropout stand in the chain."""

    layer: int
    number: int
    dimension: int


@dataclass
class Tracing:
    """Numbers the calls of dropout while the program is traced. `dimensions` are those that count the samples."""

    keys: Tensor | None = None
    dimensions: list[int] = field(default_factory=list)

    def mask(self, shape: Sequence[int], p: float) -> Tensor:
        """The mask of the next call."""
        growing = [i for i, size in enumerate(shape) if grows(size)]
        pairs = [by_samples(expression(shape[i])) for i in growing]
        if len(growing) != 1 or pairs[0] is None or pairs[0][1] != number(0) or self.keys is None:
            raise ExportError(f"dropout of a tensor of shape {[str(size) for size in shape]}, of which no dimension "
                              "counts the samples",
                              fix="Drop values that belong to samples, or export with dropout=False (--no-dropout)")
        self.dimensions.append(growing[0])
        mask = MASK(self.keys, len(self.dimensions) - 1, shape, growing[0], p)
        assert isinstance(mask, Tensor)
        return mask


@dataclass
class Drawing:
    """The same calls in eager PyTorch, for samples of these keys."""

    keys: Tensor
    places: Sequence[Place]
    calls: int = 0

    def mask(self, shape: Sequence[int], p: float) -> Tensor:
        """The mask of the next call."""
        place = self.places[self.calls]
        self.calls += 1
        return draw(self.keys, place.layer, place.number, shape, place.dimension, p)


Source = Tracing | Drawing


@contextlib.contextmanager
def applied(source: Source) -> Iterator[None]:
    """Dropouts take their masks from `source` inside the block."""
    replaced: dict[str, Callable[..., Tensor]] = {"dropout": _dropout(source, functional.dropout, channels=False),
                                                  "scaled_dot_product_attention": _attention(source)}
    for name in ("dropout1d", "dropout2d", "dropout3d"):
        replaced[name] = _dropout(source, getattr(functional, name), channels=True)
    before = {name: getattr(functional, name) for name in replaced}
    try:
        for name, function in replaced.items():
            setattr(functional, name, function)
        yield
    finally:
        for name, function in before.items():
            setattr(functional, name, function)


def _dropout(source: Source, original: Callable[..., Tensor], channels: bool) -> Callable[..., Tensor]:
    def run(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if not training or p == 0 or not 0 <= p <= 1:
            return original(input, p, training, inplace)
        shape = [*input.shape[:2], *[1] * (input.dim() - 2)] if channels else list(input.shape)
        mask = source.mask(shape, p)
        # As eager PyTorch rounds it: a quotient of two float32 numbers.
        scale = 0.0 if p == 1 else ctypes.c_float(1 / ctypes.c_float(1 - p).value).value
        return input.mul_(mask).mul_(scale) if inplace else input * mask * scale

    return run


def _attention(source: Source) -> Callable[..., Tensor]:
    """Where attention drops weights, the operations that it consists of in eager PyTorch."""
    original = functional.scaled_dot_product_attention

    def run(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
            is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False) -> Tensor:
        if dropout_p == 0:
            return original(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        kind = query.device.type
        if torch.is_autocast_enabled(kind):
            # It casts what the whole operation takes, and nothing within.
            dtype = torch.get_autocast_dtype(kind)
            query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
            if attn_mask is not None and attn_mask.is_floating_point():
                attn_mask = attn_mask.to(dtype)
            with torch.autocast(kind, enabled=False):
                return run(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        if is_causal:
            attn_mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
        if enable_gqa:
            key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
            value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
        root = math.sqrt(1 / math.sqrt(query.shape[-1]) if scale is None else scale)
        scores = torch.matmul(query * root, key.transpose(-2, -1) * root)
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill(~attn_mask, -math.inf)
        if attn_mask is None:
            return torch.matmul(functional.dropout(torch.softmax(scores, dim=-1), dropout_p), value)
        scores = scores + attn_mask
        # What may look at nothing, such as padding, sees zeros; neither it nor its gradient is a number otherwise.
        blind = (scores == -math.inf).all(-1, keepdim=True)
        weights = torch.softmax(scores.masked_fill(blind, 0), dim=-1).masked_fill(blind, 0)
        return torch.matmul(functional.dropout(weights, dropout_p), value)

    return run


# ---- What is switched off ----

_PROBABILITY = re.compile(r"(^|_)(dropout|pdrop|drop_path|drop_prob|drop_rate|drop_path_rate|layerdrop|dropout_p"
                          r"|dropout_prob|dropout_rate)($|_(p|prob|rate|probability)$)|dropout")
# Skip whole layers or blocks, or put other numbers than zeros in the place of what they drop.
_OTHER = re.compile(r"layerdrop|drop_path|stochastic_depth")
_SKIPPED = "layerdrop"
_OTHER_MODULES = ("StochasticDepth", "DropPath", "SwinDropPath", "DropBlock2d", "DropBlock3d", "AlphaDropout",
                  "FeatureAlphaDropout")


class _Never(float):
    """Zero as the probability that a layer is skipped. Models compare a random tensor with it, which a trace cannot decide;
    of this number the answer is known."""

    @classmethod
    def __torch_function__(cls, function: Callable[..., Any], types: Any, args: Sequence[Any] = (),
                           kwargs: dict[str, Any] | None = None) -> Any:
        if function in (Tensor.lt, Tensor.__lt__, Tensor.le, Tensor.__le__):
            return False
        if function in (Tensor.gt, Tensor.__gt__, Tensor.ge, Tensor.__ge__):
            return True
        plain = tree_map(lambda value: float(value) if isinstance(value, cls) else value, (args, kwargs or {}))
        return function(*plain[0], **plain[1])


def _is_switched_off(owner: object, name: str, value: Any, everything: bool) -> bool:
    if type(value) not in (int, float):
        return False
    if _SKIPPED in name:
        return True  # of zero as well: random tensors are compared with it
    if value == 0:
        return False
    if type(owner).__name__ in _OTHER_MODULES or type(owner).__name__.endswith("DropPath"):
        return name == "p" or _PROBABILITY.search(name) is not None
    # Recurrent networks drop inside of one operation.
    if isinstance(owner, nn.RNNBase):
        return name == "dropout"
    if _OTHER.search(name):
        return True
    is_dropout = isinstance(owner, nn.modules.dropout._DropoutNd) and name == "p"
    return everything and (is_dropout or _PROBABILITY.search(name) is not None)


def set_to_zero(owner: object, everything: bool) -> list[tuple[object, str, Any]]:
    """Sets the probabilities among an object's attributes to zero that are not applied, and says what they were."""
    changed = [(owner, name, value) for name, value in list(vars(owner).items())
               if _is_switched_off(owner, name, value, everything)]
    for _, name, _ in changed:
        setattr(owner, name, _Never() if _SKIPPED in name else 0.0)
    return changed


def names_of(changed: Sequence[tuple[object, str, Any]]) -> list[str]:
    """What was switched off, in the names of its classes. What was zero before was not."""
    return sorted({f"{type(owner).__name__}.{name}" for owner, name, value in changed if value})


@contextlib.contextmanager
def switched_off(model: nn.Module, everything: bool = True) -> Iterator[list[str]]:
    """Trains the model inside the block without dropout, or only without what cannot be exported; yields the names of
    what there was."""
    changed: list[tuple[object, str, Any]] = []
    for module in model.modules():
        changed += set_to_zero(module, everything)
        config = getattr(module, "config", None)
        if config is not None and hasattr(config, "__dict__"):
            changed += set_to_zero(config, everything)
    try:
        yield names_of(changed)
    finally:
        for thing, name, value in reversed(changed):
            setattr(thing, name, value)
