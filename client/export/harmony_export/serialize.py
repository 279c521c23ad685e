"""The graphs of a layer as a graph file (docs/model_format.md)."""

from __future__ import annotations

import json
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload

from .capture import arguments_of, draws_random_numbers
from .devices import LEFT_OUT, NEUTRAL, name_of
from .dropout import MASK
from .errors import ExportError
from .fast_products import PRODUCT
from .fused_loss import LINEAR_CROSS_ENTROPY
from .gated import GATED, GATED_BACKWARD
from .joint import LayerGraphs, Phase
from .rms_norms import RMS_NORM, RMS_NORM_BACKWARD
from .rotary import ROTARY, ROTARY_BACKWARD
from .state import DTYPES, dtype_name
from .symbols import shape_json

Json = Any

_SIZE_OPERATIONS = {
    operator.add: "add",
    operator.sub: "sub",
    operator.mul: "mul",
    operator.floordiv: "floordiv",
    operator.mod: "mod",
    operator.neg: "neg",
    torch.sym_max: "max",
    torch.sym_min: "min",
}

_OWN = (GATED, GATED_BACKWARD, LINEAR_CROSS_ENTROPY, PRODUCT, RMS_NORM, RMS_NORM_BACKWARD, ROTARY, ROTARY_BACKWARD)

_MEMORY_FORMATS = {
    torch.contiguous_format: "contiguous_format",
    torch.preserve_format: "preserve_format",
    torch.channels_last: "channels_last",
}


def tensor_json(tensor: Tensor, where: str) -> dict[str, Json]:
    """The type and shape of a fake tensor."""
    return {"dtype": dtype_name(tensor.dtype, where), "shape": shape_json(tensor.shape, where)}


def graph_file(layer: LayerGraphs, slots: Sequence[Json], where: str) -> bytes:
    """The bytes of a layer's graph file: the same for equal layers. `slots` are their types and shapes."""
    document = {
        "harmony_graph": 1,
        "slots": slots,
        "phases": {name: _PhaseWriter(where).write(phase) for name, phase in layer.phases.items()},
    }
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


class _PhaseWriter:
    """Numbers the values of a phase in the order in which they are made."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._numbers: dict[fx.Node, int] = {}
        self._count = 0
        self._layer: int | None = None  # the value that holds the number of the layer

    def write(self, phase: Phase) -> Json:
        """The phase as JSON."""
        inputs: list[Json] = [{"value": self._number(node), "kind": port.kind, "index": port.index}
                              for node, port in phase.inputs]
        if any(node.target is MASK for node in phase.graph.nodes):
            self._layer = self._count
            self._count += 1
            inputs.append({"value": self._layer, "kind": "layer", "index": 0})
        operations = [self._operation(node) for node in phase.graph.nodes
                      if node.op == "call_function" and node.target is not operator.getitem]
        outputs = [{"value": self._numbers[node], "kind": port.kind, "index": port.index}
                   for node, port in phase.results]
        return {"values": self._count, "inputs": inputs, "ops": operations, "outputs": outputs}

    def _number(self, node: fx.Node) -> int:
        self._numbers[node] = self._count
        self._count += 1
        return self._numbers[node]

    def _operation(self, node: fx.Node) -> Json:
        if node.target in _SIZE_OPERATIONS:
            arguments = [self._argument(argument, None) for argument in node.args]
            return {"op": f"sym::{_SIZE_OPERATIONS[node.target]}", "overload": "", "arguments": arguments,
                    "results": [self._number(node)]}
        if node.target is MASK:
            keys, *rest = self._arguments(node)
            return {"op": "harmony::dropout_mask", "overload": "", "arguments": [keys, {"value": self._layer}, *rest],
                    "results": [self._number(node)]}
        self._check(node)
        schema = node.target._schema  # type: ignore[union-attr]
        name = name_of(node)
        overload = "" if name.startswith("harmony::") else schema.overload_name
        operation = {"op": name, "overload": overload, "arguments": self._arguments(node)}
        if not isinstance(node.meta["val"], (tuple, list)):
            return operation | {"results": [self._number(node)]}
        results = [-1] * len(node.meta["val"])
        for user in sorted(node.users, key=lambda u: int(u.args[1])):  # type: ignore[arg-type]
            assert user.target is operator.getitem and isinstance(user.args[1], int)
            if results[user.args[1]] < 0:
                results[user.args[1]] = self._count
                self._count += 1
            self._numbers[user] = results[user.args[1]]
        operation["results"] = results
        returns = [str(result.type) for result in schema.returns]
        if returns == ["List[Tensor]"]:
            operation["list"] = True
        elif any(result != "Tensor" for result in returns):
            raise ExportError(f"{node.target} returns something else than tensors", self._where,
                              "Use another operator")
        return operation

    def _check(self, node: fx.Node) -> None:
        target = node.target
        if target in _OWN:
            return
        if not isinstance(target, OpOverload) or target.namespace != "aten":
            raise ExportError(f"{target} is no operator of ATen", self._where, "Use PyTorch's own tensor operations")
        if target._schema.is_mutable:
            raise ExportError(f"{target} writes to its arguments", self._where, "Use the functional form")
        if draws_random_numbers(node):
            raise ExportError(f"{target} draws random numbers", self._where, "Switch the noise off")

    def _arguments(self, node: fx.Node) -> list[Json]:
        parameters = node.target._schema.arguments  # type: ignore[union-attr]
        return [self._argument(_filled(value, parameter), parameter.type)
                for value, parameter in zip(arguments_of(node).values(), parameters, strict=True)
                if node.target not in NEUTRAL or parameter.name != LEFT_OUT]

    def _argument(self, value: Any, kind: Any) -> Json:
        if isinstance(value, fx.Node):
            return {"value": self._numbers[value]}
        if value is None:
            return None
        if isinstance(value, bool):
            return {"bool": value}
        if isinstance(value, int):
            return {"float": repr(float(value))} if str(kind) in ("float", "Optional[float]") else value
        if isinstance(value, float):
            return {"float": repr(value)}
        if isinstance(value, str):
            return {"text": value}
        if isinstance(value, torch.dtype) and value in DTYPES:
            return {"dtype": DTYPES[value]}
        if isinstance(value, torch.device):
            return {"device": "default"}
        if value is torch.strided:
            return {"layout": "strided"}
        if isinstance(value, torch.memory_format) and value in _MEMORY_FORMATS:
            return {"memory_format": _MEMORY_FORMATS[value]}
        if isinstance(value, (list, tuple)):
            return [self._argument(item, None) for item in value]
        raise ExportError(f"an operation has the argument {value!r}, which graphs cannot express", self._where,
                          "Compute with real tensors and plain numbers")


def _filled(value: Any, parameter: Any) -> Any:
    """One number that stands for a list of fixed length, as that list."""
    if isinstance(value, (int, fx.Node)) and not isinstance(value, bool) and parameter.N and "List[int]" in str(
            parameter.type):
        return [value] * parameter.N
    return value
