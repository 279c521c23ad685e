"""How model and loss are called, and what is said where no loss comes out of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from . import autocast, places
from .capture import Call
from .errors import ExportError
from .precision import rounded
from .symbols import expression

LossFunction = Callable[[Any, Mapping[str, Tensor]], Tensor]

_LOSSES = ("cross_entropy", "mse_loss")
_GIVE_ONE = "Give loss='cross_entropy', or a function of the model's result and the batch"
_ONE_NUMBER = "one number, the mean (or sum) over the labels"


def loss_call(model: nn.Module, loss: str | LossFunction | None, batch: Mapping[str, Tensor], dtype: str = "fp32"
              ) -> Call:
    """How the loss of a batch is computed. In bf16 the model takes bfloat16 where the batch has other floats."""
    if isinstance(loss, str) and loss not in _LOSSES:
        raise ExportError(f"the loss '{loss}' is not known", fix=f"Give one of {', '.join(_LOSSES)}, or a function")
    if isinstance(loss, str) and "labels" not in batch:
        raise ExportError("the sample batch has no 'labels'", fix="Add them, or give the loss as a function")
    names = _names_of_forward(model, [name for name in batch if loss is None or name != "labels"])

    def run(module: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
        given = {name: rounded(tensor) if dtype == "bf16" else tensor for name, tensor in inputs.items()}
        if names is None:
            result = module(next(iter(given.values())))
        else:
            result = module(**{name: given[name] for name in names})
        if isinstance(loss, str):
            return _named_loss(loss, result, inputs["labels"])
        if loss is None:
            return _loss_in(result)
        return _checked(loss(result, inputs), f"the loss function returns {{}} rather than {_ONE_NUMBER}",
                        places.of_function(loss), "Return that as a tensor: reduction='mean' where PyTorch computes it")

    return autocast.of_training(run) if dtype == "autocast" else run


def _names_of_forward(model: nn.Module, given: Sequence[str]) -> list[str] | None:
    parameters = inspect.signature(model.forward).parameters
    names = [name for name in given if name in parameters]
    if not names and any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return list(given)
    return names or None


def _named_loss(name: str, result: Any, labels: Tensor) -> Tensor:
    output = result if isinstance(result, Tensor) else getattr(result, "logits", None)
    if not isinstance(output, Tensor):
        raise ExportError(f"the model returns {_described(result)}, neither a tensor nor something with .logits, so it "
                          f"is not known what '{name}' is of",
                          fix="Give a function: lambda result, batch: ... (batch['labels'] are the labels)")
    if output.dtype == torch.bfloat16:
        output = output.float()  # losses are float32
    if name == "cross_entropy" and output.dim() > 2 and output.shape[:-1] == labels.shape:
        # Classes last, as sequence models have them.
        # Where the length is free, sizes that are equal in one batch say nothing: the traced ones do.
        is_fixed = [isinstance(size, int) for size in output.shape] == [False] + [True] * (output.dim() - 1)
        if is_fixed and output.shape[2:] == labels.shape[1:]:
            raise ExportError(f"the model returns {_described(output)}, of which dimension 1 may count the classes as well "
                              "as the last one", fix="Give the loss as a function: lambda result, batch: "
                              "functional.cross_entropy(result, batch['labels']) has the classes in dimension 1, that of "
                              "result.flatten(0, -2) and batch['labels'].flatten() in the last one")
        output, labels = output.flatten(0, -2), labels.flatten()
    value = getattr(functional, name)(output, labels)
    assert isinstance(value, Tensor)
    return value


def _loss_in(result: Any) -> Tensor:
    """What a model returns that computes its loss itself."""
    if isinstance(result, Tensor):
        return _checked(result, "the model returns no loss but {}", "", f"{_GIVE_ONE}; or let the model return "
                        f"{_ONE_NUMBER}")
    value = getattr(result, "loss", None)
    if value is None:
        of_transformers = hasattr(result, "loss") or hasattr(result, "logits")
        raise ExportError(f"the model returns no loss but {_described(result)}",
                          fix=f"{_GIVE_ONE}; " + ("or add 'labels' to the sample batch, with which models of transformers "
                          "return one" if of_transformers else f"or let the model return {_ONE_NUMBER}"))
    return _checked(value, "the .loss that the model returns is {}", "", f"It must be {_ONE_NUMBER}")


def _checked(value: Any, what: str, where: str, fix: str) -> Tensor:
    if not isinstance(value, Tensor) or value.dim() != 0 or not value.is_floating_point():
        raise ExportError(what.format(_described(value)), where, fix)
    return value


def _described(value: Any) -> str:
    """A value in words, n for the number of samples where it is not a number yet."""
    if isinstance(value, Tensor):
        shape = ", ".join(str(expression(size)) for size in value.shape)
        return f"a tensor of shape [{shape}] and type {value.dtype}"
    if value is None:
        return "None"
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}"
