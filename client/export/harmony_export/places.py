"""Where in a model and in the code of its author something stands, for messages."""

from __future__ import annotations

import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import fx, nn

_OWN = str(Path(__file__).parent)
_PYTORCH = str(Path(torch.__file__).parent)
_PYTHON = sysconfig.get_paths()["stdlib"]
# Libraries of models, whose code is named where no other leads to a place.
_LIBRARIES = ("transformers", "torchvision")
_TYPED = ("<stdin>", "<ipython-input")  # "files" of what the author types into Python


def module_stack(node: fx.Node) -> list[tuple[str, str]]:
    """The modules of the user's model that a node was traced in, outermost first: a key that tells
    calls of one module apart, and the module's path."""
    stack = []
    for key, (path, _) in (node.meta.get("nn_module_stack") or {}).items():
        if path == "model" or path.startswith("model."):
            stack.append((key, path[len("model."):]))
    return stack


def of_node(node: fx.Node) -> str:
    """The innermost module of a node, and the line of code."""
    stack = module_stack(node)
    lines = re.findall(r'File "(.*?)", line (\d+)', node.meta.get("stack_trace") or "")
    return _place(stack[-1][1] if stack else None, _line([(file, int(line)) for file, line in lines]))


def of_running(model: nn.Module) -> str:
    """The innermost module of the model whose code is running, and the line of code."""
    frames: list[FrameType] = []
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        frames.insert(0, frame)
        frame = frame.f_back
    return _place(_module_in(frames, model), _line([(f.f_code.co_filename, f.f_lineno) for f in frames]))


def of_exception(error: BaseException, model: nn.Module) -> str:
    """The innermost module of the model that an exception comes from, and the line of code."""
    module: str | None = None
    for cause in causes(error):
        frames = list(traceback.walk_tb(cause.__traceback__))
        line = _line([(frame.f_code.co_filename, number) for frame, number in frames])
        found = _module_in([frame for frame, _ in frames], model)
        module = module if found is None else found
        if line:
            return _place(module, line)
    return _place(module or "", "")


def of_function(function: Callable[..., Any]) -> str:
    """The line at which a function begins."""
    code = getattr(function, "__code__", None)
    return _place(None, f"{code.co_filename}:{code.co_firstlineno}" if code is not None else "")


def causes(error: BaseException) -> Iterator[BaseException]:
    """An exception, and those before it that it was made from."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def _place(module: str | None, line: str) -> str:
    """Code that runs in no module of the model is that of the loss."""
    name = "the loss" if module is None and line else module or "the model"
    return f"{name} ({line})" if line else name


def _module_in(frames: Sequence[FrameType], model: nn.Module) -> str | None:
    """The innermost module of the model whose code runs in one of the frames, outermost first; the model itself has
    an empty name."""
    names: dict[int, str] = {id(module): name for name, module in model.named_modules()}
    for frame in reversed(frames):
        this = frame.f_locals.get("self")
        if isinstance(this, nn.Module) and id(this) in names:
            return names[id(this)]
    return None


def _line(lines: Sequence[tuple[str, int]]) -> str:
    """Of lines that call each other, outermost first, the innermost that the author of the model wrote. What calls the
    export is before its own lines."""
    begin = next((i for i, (file, _) in enumerate(lines) if _is_in(file, _OWN)), 0)
    others = [(file, line) for file, line in reversed(lines[begin:]) if not _is_machinery(file)]
    of_models = [str(Path(file).parent) for name in _LIBRARIES if (file := getattr(sys.modules.get(name), "__file__", ""))]
    written = [place for place in others if not any(_is_in(place[0], folder) for folder in of_models)]
    file, line = next(iter(written or others), ("", 0))
    return f"{file}:{line}" if file else ""


def _is_machinery(file: str) -> bool:
    if file.startswith(_TYPED):
        return False
    of_python = _is_in(file, _PYTHON) and "-packages" not in file
    # PyTorch has code of its own under "<string>" and relative paths.
    return of_python or any(_is_in(file, folder) for folder in (_OWN, _PYTORCH)) or not Path(file).is_absolute()


def _is_in(file: str, folder: str) -> bool:
    return file.startswith((folder + "/", folder + "\\"))
