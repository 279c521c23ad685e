"""Writes PyTorch models as directories that Harmony trains without Python."""

import logging

# It says that it lacks Triton, which nothing here needs.
logging.getLogger("torch.utils.flop_counter").setLevel(logging.ERROR)

from .errors import ExportError  # noqa: E402
from .export import export  # noqa: E402
from .memory import without_memory  # noqa: E402

__all__ = ["ExportError", "export", "without_memory"]
