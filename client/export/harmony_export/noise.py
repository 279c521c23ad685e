"""Random numbers that are none of PyTorch's: a trace has them once and for all."""

from __future__ import annotations

import contextlib
import pickle
import random
import sys
from collections.abc import Iterator
from typing import Any

from .errors import ExportError


@contextlib.contextmanager
def refused() -> Iterator[None]:
    """Raises where numbers are drawn inside the block by Python's or NumPy's generator."""
    before = _states()
    yield
    drawn = [name for name, state in _states().items() if before.get(name, state) != state]
    if drawn:
        raise ExportError(f"the model draws random numbers by {' and '.join(drawn)}, which the exported graphs would draw "
                          "once for all steps", fix="Switch it off, or give random numbers as a batch input")


def _states() -> dict[str, Any]:
    states: dict[str, Any] = {"Python's random": random.getstate()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        states["numpy.random"] = pickle.dumps(numpy.random.get_state())
    return states
