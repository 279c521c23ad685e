"""Operators that graphs have beside ATen's. docs/model_format.md says what they compute."""

from __future__ import annotations

from typing import Any

import torch
from torch import library

_library: Any = library.Library("harmony", "FRAGMENT")  # type: ignore[no-untyped-call]


def define(schema: str) -> Any:
    """A new operator, for graphs to call. PyTorch only knows its schema: who runs graphs has the function."""
    _library.define(schema)
    return getattr(torch.ops.harmony, schema.partition("(")[0]).default
