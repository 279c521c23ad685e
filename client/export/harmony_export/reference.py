"""Runs one microbatch through an exported directory, layer by layer, in plain PyTorch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from .errors import ExportError
from .execute import DTYPES, GraphRunner, Inputs, Json
from .labels import COUNTS, label_counts, length_of


@dataclass
class Microbatch:
    """What a microbatch leaves: gradients of trained parameters, the new statistics, and what went wrong in the
    comparison of `forward` with `saving`."""

    loss: Tensor  # as the graphs make it
    divisor: float  # of the loss, before its gradient is taken
    gradients: dict[str, Tensor] = field(default_factory=dict)
    statistics: dict[str, Tensor] = field(default_factory=dict)
    disagreeing: list[str] = field(default_factory=list)


class ReferenceModel:
    """An exported directory with its weights in memory."""

    def __init__(self, directory: Path) -> None:
        self.document = json.loads((directory / "model.json").read_bytes())
        # Copies lie aligned in memory, which the last digits of some kernels depend on.
        types = {entry["name"]: DTYPES[entry["dtype"]] for entry in self.document["parameters"]}
        self.weights = {name: tensor.to(types[name], copy=True)
                        for name, tensor in load_file(directory / "weights.safetensors").items()}
        self._entries = {entry["graph"]: entry for entry in self.document["graphs"]}
        self._graphs = {entry["graph"]: GraphRunner(directory / "graphs" / f"{entry['graph']}.json")
                        for entry in self.document["graphs"]}
        self._names = [entry["name"] for entry in self.document["parameters"]]

    def run(self, batch: Mapping[str, Tensor], divisor: float | None = None) -> Microbatch:
        """Forward, loss and backward. The loss is divided by the labels of the microbatch, where they are counted, or
        by `divisor`. The batch has the samples' keys where there are dropouts. `weights` stay as they are."""
        counts = self.label_counts(batch)
        inputs = [counts if entry["name"] == COUNTS else batch[entry["name"]] for entry in self.document["inputs"]]
        divisor = float(counts[0, 1]) if divisor is None else divisor
        sizes = {"samples": [len(inputs[0])], "length": [length_of(self.document, batch)]}
        values: dict[int, Tensor] = {}
        saved: list[dict[int, Tensor]] = []
        layers = self.document["layers"]
        result = Microbatch(torch.empty(()), divisor)
        for number, layer in enumerate(layers[:-1]):
            given: Inputs = {"slot": self._slots(layer, inputs, values), **sizes, "layer": [number]}
            made = self._graphs[layer["graph"]].run("saving", given)
            again = self._graphs[layer["graph"]].run("forward", given)["output"]
            for index, value in enumerate(layer["outputs"]):
                if not torch.equal(made["output"][index], again[index]):
                    result.disagreeing.append(layer["name"])
                values[value] = made["output"][index].contiguous()
            self._check_types(layer, made)
            saved.append(made.get("saved", {}))
            self._take_updates(layer, made, result)
        gradients: dict[int, Tensor] = {}
        made = self._graphs[layers[-1]["graph"]].run("fused", {
            "slot": self._slots(layers[-1], inputs, values), **sizes, "layer": [len(layers) - 1],
            "tangent": [torch.tensor(1 / divisor)]})
        self._check_types(layers[-1], made)
        result.loss = made["loss"][0]
        self._take_updates(layers[-1], made, result)
        self._take_gradients(layers[-1], made, result, gradients)
        for number, layer in reversed(list(enumerate(layers[:-1]))):
            tangents = [gradients.pop(v, None) for v in layer["outputs"]]
            tangents = [torch.zeros_like(values[v]) if t is None else t for t, v in zip(tangents, layer["outputs"])]
            left = saved.pop()
            made = self._graphs[layer["graph"]].run("backward", {
                "slot": self._slots(layer, inputs, values), **sizes, "layer": [number],
                "tangent": tangents,
                "saved": [left[i].contiguous() for i in range(len(left))]})
            self._check_types(layer, made)
            self._take_gradients(layer, made, result, gradients)
        return result

    def label_counts(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Of each sample how many labels count, and of all. Where they are not counted, one: the loss is what the
        graphs make it."""
        counts = label_counts(self.document, batch)
        return torch.ones(1, 2, dtype=torch.int64) if counts is None else counts

    def _slots(self, layer: Json, inputs: list[Tensor], values: dict[int, Tensor]) -> list[Tensor]:
        tensors = []
        for kind, index in layer["slots"]:
            if kind == "parameter":
                tensors.append(self.weights[self._names[index]])
            else:
                tensors.append(inputs[index] if kind == "input" else values[index])
        return tensors

    def _check_types(self, layer: Json, made: dict[str, dict[int, Tensor]]) -> None:
        """Raises where a kernel makes another type than its shape function said, for the runtime would refuse it."""
        of_kind = {"value": "values", "input": "inputs", "parameter": "parameters"}
        slots = [self.document[of_kind[kind]][index] for kind, index in layer["slots"]]
        described = {"output": [self.document["values"][value] for value in layer["outputs"]], "gradient": slots,
                     "saved": self._entries[layer["graph"]]["saved"], "update": slots, "loss": [{"dtype": "float32"}]}
        for kind, tensors in made.items():
            for index, tensor in tensors.items():
                said = described[kind][index]["dtype"]
                if tensor.dtype != DTYPES[said]:
                    raise ExportError(f"{kind} {index} has the type {tensor.dtype}, and model.json says {said}",
                                      layer["name"], "This is a fault of the export")

    def _take_updates(self, layer: Json, made: dict[str, dict[int, Tensor]], result: Microbatch) -> None:
        for slot, value in made.get("update", {}).items():
            result.statistics[self._names[layer["slots"][slot][1]]] = value

    def _take_gradients(self, layer: Json, made: dict[str, dict[int, Tensor]], result: Microbatch,
                        gradients: dict[int, Tensor]) -> None:
        for slot, gradient in made.get("gradient", {}).items():
            kind, index = layer["slots"][slot]
            if kind == "parameter":
                name = self._names[index]
                before = result.gradients.get(name)
                # The sum is float32 whatever the weight is.
                result.gradients[name] = gradient if before is None else before.float() + gradient
            else:
                # A gradient lies as its value does: contiguous.
                whole = gradient.contiguous()
                gradients[index] = gradients[index] + whole if index in gradients else whole
