"""Dropout is not applied in training: its probabilities are set to zero while a model is exported."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

from torch import nn

_PROBABILITY = re.compile(r"(^|_)(dropout|pdrop|drop_path|drop_prob|drop_rate|drop_path_rate|layerdrop|dropout_p"
                          r"|dropout_prob|dropout_rate)($|_(p|prob|rate|probability)$)|dropout")
_MODULES_WITH_P = ("StochasticDepth", "DropPath", "DropBlock2d", "DropBlock3d")


def _is_probability(name: str, value: Any) -> bool:
    return type(value) in (int, float) and value != 0 and _PROBABILITY.search(name) is not None


def set_to_zero(thing: object) -> list[tuple[object, str, Any]]:
    """Sets the probabilities among an object's attributes to zero, and says what they were."""
    changed: list[tuple[object, str, Any]] = []
    for name, value in list(vars(thing).items()):
        if _is_probability(name, value):
            changed.append((thing, name, value))
    is_dropout = isinstance(thing, nn.modules.dropout._DropoutNd) or type(thing).__name__ in _MODULES_WITH_P
    if is_dropout and getattr(thing, "p", None):
        changed.append((thing, "p", getattr(thing, "p")))
    for _, name, _ in changed:
        setattr(thing, name, 0.0)
    return changed


@contextlib.contextmanager
def switched_off(model: nn.Module) -> Iterator[bool]:
    """Trains the model without dropout inside the block; yields whether there was any. Modules that skip themselves
    at random (layerdrop) do so in training only, so they alone are taken out of it."""
    changed: list[tuple[object, str, Any]] = []
    for module in model.modules():
        changed += set_to_zero(module)
        config = getattr(module, "config", None)
        if config is not None and hasattr(config, "__dict__"):
            changed += set_to_zero(config)
        if hasattr(module, "layerdrop") and module.training:
            changed.append((module, "training", True))
            module.training = False
    try:
        yield any(name != "training" for _, name, _ in changed)
    finally:
        for thing, name, value in reversed(changed):
            setattr(thing, name, value)
