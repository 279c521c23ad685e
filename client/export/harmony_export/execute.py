"""Runs graph files in Python, to check what was written. It reads nothing but the files."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .devices import attention, attention_backward, batch_norm, batch_norm_backward, layer_norm, layer_norm_backward
from .dropout import draw
from .fast_products import product
from .fused_loss import linear_cross_entropy
from .gated import gated, gated_backward
from .rms_norms import rms_norm, rms_norm_backward
from .rotary import rotary, rotary_backward
from .state import DTYPES as _NAMES

aten = torch.ops.aten
DTYPES = {name: dtype for dtype, name in _NAMES.items()}
_MEMORY_FORMATS = {
    "contiguous_format": torch.contiguous_format,
    "preserve_format": torch.preserve_format,
    "channels_last": torch.channels_last,
}
_SIZES: dict[str, Callable[..., int]] = {
    "size": lambda tensor, dimension: int(tensor.size(dimension)),
    "stride": lambda tensor, dimension: int(tensor.stride(dimension)),
    "numel": lambda tensor: int(tensor.numel()),
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "neg": operator.neg,
    "max": max,
    "min": min,
}
_OWN: dict[str, Callable[..., Any]] = {"attention": attention, "attention_backward": attention_backward,
                                       "batch_norm": batch_norm, "batch_norm_backward": batch_norm_backward,
                                       "dropout_mask": draw, "gated": gated, "gated_backward": gated_backward,
                                       "group_norm": aten.native_group_norm,
                                       "group_norm_backward": aten.native_group_norm_backward, "layer_norm": layer_norm,
                                       "layer_norm_backward": layer_norm_backward,
                                       "linear_cross_entropy": linear_cross_entropy,
                                       "product": product, "rms_norm": rms_norm,
                                       "rms_norm_backward": rms_norm_backward, "rotary": rotary,
                                       "rotary_backward": rotary_backward}

Json = Any
Inputs = Mapping[str, Sequence[Any]]


class GraphRunner:
    """The phases of one graph file."""

    def __init__(self, path: Path) -> None:
        document = json.loads(path.read_bytes())
        self._phases = document["phases"]

    def phases(self) -> set[str]:
        """The names of the phases that the file has."""
        return set(self._phases)

    def run(self, phase: str, inputs: Inputs) -> dict[str, dict[int, Tensor]]:
        """The outputs of a phase by kind and index. `inputs` are by kind, and there by index."""
        document = self._phases[phase]
        values: list[Any] = [None] * document["values"]
        for entry in document["inputs"]:
            values[entry["value"]] = inputs[entry["kind"]][entry["index"]]
        last_use = self._last_uses(document)
        with torch.no_grad():
            for position, operation in enumerate(document["ops"]):
                self._run(operation, values)
                for dead in last_use.get(position, ()):
                    values[dead] = None
        outputs: dict[str, dict[int, Tensor]] = {}
        for entry in document["outputs"]:
            outputs.setdefault(entry["kind"], {})[entry["index"]] = values[entry["value"]]
        return outputs

    @staticmethod
    def _last_uses(document: Any) -> dict[int, list[int]]:
        last: dict[int, int] = {}
        for position, operation in enumerate(document["ops"]):
            last.update({value: position for value in _values_in(operation["arguments"])})
        for entry in document["outputs"]:
            last.pop(entry["value"], None)
        by_position: dict[int, list[int]] = {}
        for value, position in last.items():
            by_position.setdefault(position, []).append(value)
        return by_position

    @staticmethod
    def _run(operation: Any, values: list[Any]) -> None:
        arguments = [_argument(argument, values) for argument in operation["arguments"]]
        namespace, name = operation["op"].split("::")
        if namespace == "sym":
            values[operation["results"][0]] = _SIZES[name](*arguments)
            return
        if namespace == "harmony":
            result = _OWN[name](*arguments)
        else:
            overload = getattr(getattr(aten, name), operation["overload"] or "default")
            positional, keywords = _split(overload, arguments)
            result = overload(*positional, **keywords)
        results = result if isinstance(result, (tuple, list)) else [result]
        for number, value in zip(operation["results"], results, strict=True):
            if number >= 0:
                values[number] = value


def _split(overload: Any, arguments: list[Any]) -> tuple[list[Any], dict[str, Any]]:
    """Positional arguments, and those that an operator takes by keyword only."""
    positional, keywords = [], {}
    for parameter, argument in zip(overload._schema.arguments, arguments, strict=True):
        if parameter.kwarg_only:
            keywords[parameter.name] = argument
        else:
            positional.append(argument)
    return positional, keywords


def _values_in(argument: Any) -> list[int]:
    if isinstance(argument, list):
        return [value for item in argument for value in _values_in(item)]
    return [argument["value"]] if isinstance(argument, dict) and "value" in argument else []


def _argument(argument: Any, values: list[Any]) -> Any:
    if isinstance(argument, list):
        return [_argument(item, values) for item in argument]
    if not isinstance(argument, dict):
        return argument
    (kind, value), = argument.items()
    readers: dict[str, Callable[[Any], Any]] = {
        "value": lambda v: values[v],
        "float": float,
        "bool": bool,
        "text": str,
        "dtype": lambda v: DTYPES[v],
        "device": lambda v: torch.device("cpu"),
        "layout": lambda v: torch.strided,
        "memory_format": lambda v: _MEMORY_FORMATS[v],
    }
    return readers[kind](value)
