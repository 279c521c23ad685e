"""The rules of docs/model_format.md, as checks of a directory. Written from that page, not from the exporter."""

from __future__ import annotations

import hashlib
import json
import math
import re
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

DTYPES = {"float32", "bfloat16", "float16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool"}
WORKSPACE = {"forward", "saving", "keeping", "backward", "kept_backward", "fused"}
READS = {"forward": {"slot"}, "saving": {"slot"}, "backward": {"slot", "saved", "tangent"},
         "fused": {"slot", "tangent"}}
MAKES = {"forward": {"output"}, "saving": {"output", "saved", "update"}, "backward": {"gradient"},
         "fused": {"loss", "gradient", "update"}}
DERIVED = {"label_counts": ["n", 2], "sample_keys": ["n"]}
SIZES = {"size", "stride", "numel", "add", "sub", "mul", "floordiv", "mod", "neg", "max", "min"}
MEMORY_FORMATS = {"contiguous_format", "preserve_format", "channels_last"}


def check_directory(folder: Path) -> None:
    """Asserts that a directory follows the format."""
    model = json.loads((folder / "model.json").read_text())
    keys(model, "harmony_model name torch inputs values parameters layers graphs loss", "sequence_length")
    assert model["harmony_model"] == 1
    lengths = model.get("sequence_length", 1)
    if not isinstance(lengths, int):
        keys(lengths, "least most")
        assert 1 <= lengths["least"] <= lengths["most"]
    texts = [text for text in all_texts(model) if "s" in text]
    assert isinstance(lengths, dict) or not texts
    for text in texts:
        assert values(text, lengths) == sorted(values(text, lengths)) and values(text, lengths)[0] >= 0
    check_loss(model)
    for entry in model["inputs"]:
        keys(entry, "name dtype shape values_below", "derived")
        check_tensor(entry)
        assert entry["shape"][0] == "n" and entry["values_below"] >= 0
        if "derived" in entry:
            assert entry["dtype"] == "int64" and entry["shape"] == DERIVED[entry["derived"]]
    derived = [entry["derived"] for entry in model["inputs"] if "derived" in entry]
    assert len(set(derived)) == len(derived)
    for entry in model["values"]:
        keys(entry, "name dtype shape gradient")
        check_tensor(entry)
        assert sum("n" in str(extent) for extent in entry["shape"]) == 1, entry
    check_parameters(model, folder)
    files = {path.stem for path in (folder / "graphs").iterdir()}
    assert files == {entry["graph"] for entry in model["graphs"]}
    assert len(files) == len(model["graphs"]), "a graph is there twice"
    check_layers(model)
    graphs = {entry["graph"]: entry for entry in model["graphs"]}
    for entry in model["graphs"]:
        check_graph(model, entry, folder)
    assert all(layer["graph"] in graphs for layer in model["layers"])


def all_texts(model: dict[str, Any]) -> list[str]:
    """What is written for sizes and amounts, where it is no number."""
    tensors = [*model["inputs"], *model["values"], *(saved for entry in model["graphs"] for saved in entry["saved"])]
    amounts = [extent for tensor in tensors for extent in tensor["shape"]]
    amounts += [entry["forward_flops"] for entry in model["graphs"]]
    amounts += [amount for entry in model["graphs"] for pairs in entry["workspace"].values() for pair in pairs
                for amount in pair]
    amounts += [model["loss"]["labels_per_sample"], model["loss"].get("counted", {}).get("first", 0)]
    return [amount for amount in amounts if isinstance(amount, str)]


TERM = r"([1-9][0-9]*\*)?n(\*s)*|([1-9][0-9]*\*)?s(\*s)*|[1-9][0-9]*"


def values(amount: int | float | str, lengths: dict[str, int]) -> list[float]:
    """An amount, of one sample, at some of the lengths, ascending."""
    if not isinstance(amount, str):
        return [amount]
    assert re.fullmatch(f"({TERM})([+-]({TERM}))*", amount), amount
    terms = re.split(r"[+-]", amount)
    assert len({"n" in term for term in terms}) == 1, amount
    powers = [term.count("s") for term in terms]
    assert powers == sorted(set(powers), reverse=True), amount
    least, most = lengths["least"], lengths["most"]
    return [eval(amount, {"n": 1, "s": s}) for s in sorted({least, least + 1, (least + most) // 2, most})]


def check_loss(model: dict[str, Any]) -> None:
    """How the loss is formed, and that the last layer is told the labels that count."""
    loss = model["loss"]
    keys(loss, "reduction labels_per_sample", "counted")
    lengths = model.get("sequence_length")
    assert loss["reduction"] in ("mean", "sum") and values(loss["labels_per_sample"], lengths)[0] >= 1
    if "counted" not in loss:
        return
    keys(loss["counted"], "input first ignored")
    assert loss["reduction"] == "sum"
    labels = model["inputs"][loss["counted"]["input"]]
    assert labels["dtype"].startswith(("int", "uint")) and "derived" not in labels
    for s in lengths.values() if isinstance(lengths, dict) else [0]:
        only = {"least": s, "most": s}
        first, count = (values(amount, only)[0] for amount in (loss["counted"]["first"], loss["labels_per_sample"]))
        assert 0 <= first <= math.prod(values(extent, only)[0] for extent in labels["shape"][1:]) - count
    counts = [i for i, entry in enumerate(model["inputs"]) if entry.get("derived") == "label_counts"]
    assert [["input", i] in model["layers"][-1]["slots"] for i in counts] == [True]


def keys(entry: dict[str, Any], required: str, optional: str = "") -> None:
    """Exactly these keys."""
    missing, more = set(required.split()) - entry.keys(), entry.keys() - set(required.split()) - set(optional.split())
    assert not missing and not more, (missing, more)


def check_tensor(entry: dict[str, Any]) -> None:
    """A type, and extents that are numbers, or texts with n or s."""
    assert entry["dtype"] in DTYPES
    for extent in entry["shape"]:
        assert isinstance(extent, int) or re.search("[ns]", extent) and values(extent, {"least": 2, "most": 2}), extent


def check_parameters(model: dict[str, Any], folder: Path) -> None:
    """Their keys, their names, and that the file of weights has these tensors."""
    names = [name for entry in model["parameters"] for name in (entry["name"], *entry["aliases"])]
    assert len(set(names)) == len(names)
    read = {slot[1] for layer in model["layers"] for slot in layer["slots"] if slot[0] == "parameter"}
    assert read == set(range(len(model["parameters"])))
    for entry in model["parameters"]:
        keys(entry, "name aliases dtype shape role weight_decay exported")
        check_tensor(entry)
        assert entry["role"] in ("trained", "fixed", "statistic")
        assert all(isinstance(extent, int) for extent in entry["shape"])
        assert entry["role"] != "trained" or entry["dtype"] in ("float32", "bfloat16")
        assert entry["weight_decay"] == (entry["role"] == "trained" and len(entry["shape"]) >= 2)
    if not (folder / "weights.safetensors").exists():
        return
    with safe_open(folder / "weights.safetensors", "pt") as file:
        assert set(file.keys()) == {entry["name"] for entry in model["parameters"]}
        for entry in model["parameters"]:
            tensor = file.get_tensor(entry["name"])
            assert list(tensor.shape) == entry["shape"]
            # Masters have more digits than what is trained in bfloat16.
            stored = [entry["dtype"], "float32"] if entry["role"] == "trained" else [entry["dtype"]]
            assert str(tensor.dtype).removeprefix("torch.") in stored, entry


def check_layers(model: dict[str, Any]) -> None:
    """Values are made once, before they are read, and all are read."""
    made: set[int] = set()
    read: set[int] = set()
    assert len(model["layers"]) >= 2
    for number, layer in enumerate(model["layers"]):
        keys(layer, "name graph slots outputs")
        slots = [tuple(slot) for slot in layer["slots"]]
        assert len(set(slots)) == len(slots), "a slot is there twice"
        values = {index for kind, index in slots if kind == "value"}
        assert values <= made and (number > 0 or not values)
        assert any(kind == "parameter" and model["parameters"][index]["role"] == "trained" for kind, index in slots)
        assert made.isdisjoint(layer["outputs"])
        assert bool(layer["outputs"]) == (number + 1 < len(model["layers"]))
        made |= set(layer["outputs"])
        read |= values
    assert made == read == set(range(len(model["values"])))
    statistics = [index for layer in model["layers"] for kind, index in layer["slots"]
                  if kind == "parameter" and model["parameters"][index]["role"] == "statistic"]
    assert len(set(statistics)) == len(statistics), "several layers have a statistic"


def check_graph(model: dict[str, Any], entry: dict[str, Any], folder: Path) -> None:
    """A graph's file, and that it fits the layers that name it."""
    keys(entry, "graph forward_flops saved workspace")
    keys(entry["workspace"], " ".join(WORKSPACE), "attention_sums")
    for pairs in entry["workspace"].values():
        assert all(len(pair) == 2 and min(amount for amount in pair if isinstance(amount, int)) >= 0
                   for pair in pairs if not all(isinstance(amount, str) for amount in pair))
    for saved in entry["saved"]:
        keys(saved, "dtype shape")
        check_tensor(saved)
    data = (folder / "graphs" / f"{entry['graph']}.json").read_bytes()
    assert hashlib.sha256(data).hexdigest() == entry["graph"]
    graph = json.loads(data)
    assert json.dumps(graph, sort_keys=True, separators=(",", ":")).encode() == data, "not in the canonical form"
    keys(graph, "harmony_graph slots phases")
    assert graph["harmony_graph"] == 1
    layers = [(i, layer) for i, layer in enumerate(model["layers"]) if layer["graph"] == entry["graph"]]
    assert layers
    for number, layer in layers:
        is_last = number + 1 == len(model["layers"])
        assert set(graph["phases"]) == ({"fused"} if is_last else {"forward", "saving", "backward"})
        assert graph["slots"] == [slot_tensor(model, slot) for slot in layer["slots"]]
        for name, phase in graph["phases"].items():
            check_phase(name, phase, model, layer, len(entry["saved"]))
    used = {name for name, pairs in entry["workspace"].items() if pairs} - {"attention_sums"}
    assert used == ({"fused"} if "fused" in graph["phases"] else WORKSPACE - {"fused"})


def slot_tensor(model: dict[str, Any], slot: list[Any]) -> dict[str, Any]:
    """The type and shape of what a slot names."""
    entry = model[{"value": "values", "input": "inputs", "parameter": "parameters"}[slot[0]]][slot[1]]
    return {"dtype": entry["dtype"], "shape": entry["shape"]}


def check_phase(name: str, phase: dict[str, Any], model: dict[str, Any], layer: dict[str, Any], saved: int) -> None:
    """Inputs, operations and outputs of a phase."""
    keys(phase, "values inputs ops outputs")
    counts = {"slot": len(layer["slots"]), "saved": saved, "tangent": max(len(layer["outputs"]), 1), "samples": 1,
              "length": 1, "layer": 1,
              "output": len(layer["outputs"]), "loss": 1, "gradient": len(layer["slots"]),
              "update": len(layer["slots"])}
    known: set[int] = set()
    for entry in phase["inputs"]:
        keys(entry, "value kind index")
        assert entry["kind"] in READS[name] | {"samples", "length", "layer"} and 0 <= entry["index"] < counts[entry["kind"]]
        assert entry["value"] not in known
        known.add(entry["value"])
    for operation in phase["ops"]:
        keys(operation, "op overload arguments results", "list")
        check_operation(operation, known)
    assert known == set(range(phase["values"]))
    outputs = [(entry["kind"], entry["index"]) for entry in phase["outputs"]]
    assert len(set(outputs)) == len(outputs)
    for entry in phase["outputs"]:
        keys(entry, "value kind index")
        assert entry["value"] in known
        assert entry["kind"] in MAKES[name] and 0 <= entry["index"] < counts[entry["kind"]]
    check_outputs(name, phase, outputs, model, layer, saved)


def check_outputs(name: str, phase: dict[str, Any], outputs: list[tuple[str, int]], model: dict[str, Any],
                  layer: dict[str, Any], saved: int) -> None:
    """All that a phase has to make is there, and gradients and updates are of slots that take them."""
    if name in ("forward", "saving"):
        assert sorted(i for kind, i in outputs if kind == "output") == list(range(len(layer["outputs"])))
    if name == "saving":
        assert sorted(i for kind, i in outputs if kind == "saved") == list(range(saved))
        slots = {entry["value"] for entry in phase["inputs"] if entry["kind"] == "slot"}
        assert all(entry["value"] not in slots for entry in phase["outputs"] if entry["kind"] == "saved")
    if name == "fused":
        assert ("loss", 0) in outputs
    for kind, index in outputs:
        if kind not in ("gradient", "update"):
            continue
        what, which = layer["slots"][index]
        entry = model[{"value": "values", "input": "inputs", "parameter": "parameters"}[what]][which]
        if kind == "update":
            assert entry["role"] == "statistic"
        else:
            assert entry.get("gradient") or entry.get("role") == "trained"


def check_operation(operation: dict[str, Any], known: set[int]) -> None:
    """An operation that the format allows, with as many arguments and results as its schema has."""
    for argument in operation["arguments"]:
        check_argument(argument, known)
    namespace, name = operation["op"].split("::")
    results = operation["results"]
    if namespace == "sym":
        assert name in SIZES and operation["overload"] == "" and len(results) == 1
    elif namespace == "harmony":
        assert (name, len(operation["arguments"]), len(results)) in (
            ("attention", 6, 2), ("attention_backward", 9, 3), ("batch_norm", 6, 3),
            ("batch_norm_backward", 10, 3), ("dropout_mask", 6, 1), ("gated", 3, 1), ("gated_backward", 4, 2), ("group_norm", 8, 3),
            ("group_norm_backward", 10, 3), ("layer_norm", 5, 3), ("layer_norm_backward", 8, 3),
            ("linear_cross_entropy", 6, 4), ("product", 3, 1), ("rms_norm", 3, 2), ("rms_norm_backward", 5, 2),
            ("rotary", 4, 1), ("rotary_backward", 4, 1))
    else:
        assert namespace == "aten"
        overload = getattr(getattr(torch.ops.aten, name), operation["overload"] or "default")
        assert not overload._schema.is_mutable
        assert len(operation["arguments"]) == len(overload._schema.arguments)
        if operation.get("list"):
            assert operation["list"] is True and [str(r.type) for r in overload._schema.returns] == ["List[Tensor]"]
        else:
            assert len(results) == len(overload._schema.returns)
    for result in results:
        assert result == -1 or result not in known
    known |= {result for result in results if result >= 0}


def check_argument(argument: Any, known: set[int]) -> None:
    """One of the forms of arguments."""
    if isinstance(argument, list):
        for item in argument:
            check_argument(item, known)
    elif isinstance(argument, dict):
        (kind, value), = argument.items()
        allowed = {"value": lambda: value in known, "float": lambda: isinstance(value, str) and [float(value)],
                   "bool": lambda: isinstance(value, bool), "text": lambda: isinstance(value, str),
                   "dtype": lambda: value in DTYPES, "device": lambda: value == "default",
                   "layout": lambda: value == "strided", "memory_format": lambda: value in MEMORY_FORMATS}
        assert allowed[kind](), argument
    else:
        assert argument is None or type(argument) is int, argument
