"""Models whose parameters take no memory: larger ones than the machine has, traced but not trained here."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode


@contextlib.contextmanager
def without_memory() -> Iterator[None]:
    """Parameters of modules that are made inside the block have types and shapes, but no memory. Buffers are real:
    what a forward computes from them may decide its shapes."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    original = nn.Module.register_parameter

    def register(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and not isinstance(parameter, FakeTensor):
            parameter = nn.Parameter(mode.from_tensor(parameter.detach()), requires_grad=parameter.requires_grad)
        original(module, name, parameter)

    setattr(nn.Module, "register_parameter", register)
    try:
        yield
    finally:
        setattr(nn.Module, "register_parameter", original)


def has_memory(model: nn.Module) -> bool:
    """Whether the model's parameters are real."""
    return not any(isinstance(parameter, FakeTensor) for parameter in model.parameters())
