"""Writes a chain of layers as a model directory (docs/model_format.md)."""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, fx

from .chain import Chain, Piece, boundary_shape
from .costs import forward_flops, workspace
from .dropout import KEYS
from .errors import ExportError
from .joint import LayerGraphs, differentiate
from .labels import COUNTS, Counted
from .lengths import Lengths
from .polynomial import Polynomial
from .serialize import Json, graph_file, tensor_json
from .state import State, dtype_name
from .symbols import shape_json


_COUNTS_TENSOR: Json = {"dtype": "int64", "shape": ["n", 2]}


@dataclass
class Loss:
    """How the loss is formed."""

    reduction: str
    labels_per_sample: Polynomial
    counted: Counted | None = None
    fused: bool = False  # with the linear layer before it

    def as_json(self) -> Json:
        """As model.json has it."""
        document: Json = {"reduction": self.reduction, "labels_per_sample": self.labels_per_sample.text()}
        if self.counted is not None:
            document["counted"] = {"input": self.counted.input, "first": self.counted.first.text(),
                                   "ignored": self.counted.ignored}
        return document


@dataclass
class Description:
    """What model.json says beside the chain."""

    name: str
    values_below: Mapping[str, int]
    loss: Loss
    sequence_length: int | Lengths | None
    own_products: bool = False


@dataclass
class LayerSummary:
    """What is told of a layer: its trained parameters, and the bytes of one sample that it hands on."""

    name: str
    parameters: int
    boundary_bytes: int
    graph: str


@dataclass
class Written:
    """The contents of a directory: model.json, graph files by digest, tensors by name."""

    document: Json
    graphs: dict[str, bytes] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    summaries: list[LayerSummary] = field(default_factory=list)
    other_on_gpus: list[str] = field(default_factory=list)  # names of operations


class Assembler:
    """Differentiates the pieces of a chain, equal ones once, and numbers what they share."""

    def __init__(self, chain: Chain, description: Description) -> None:
        self._chain = chain
        self._captured = chain.analysis.captured
        self._description = description
        self._state: State = self._captured.state
        self._layers: dict[str, LayerGraphs] = {}  # by signature
        self._values: dict[fx.Node, int] = {}
        self._value_entries: list[Json] = []
        self._graph_entries: dict[str, Json] = {}
        self._written = Written({})

    def assemble(self) -> Written:
        """The whole directory, in memory."""
        unread = self._place_unread()
        numbers = self._number_parameters(unread)
        pieces = self._chain.pieces
        layers = [self._layer(piece, unread.get(i, []), numbers, i + 1 == len(pieces))
                  for i, piece in enumerate(pieces)]
        description = self._description
        self._written.document = {
            "harmony_model": 1,
            "name": description.name,
            "torch": torch.__version__.partition("+")[0],
            "inputs": self._inputs(),
            "values": self._value_entries,
            "parameters": [self._parameter(index) for index in numbers],
            "layers": layers,
            "graphs": list(self._graph_entries.values()),
            "loss": description.loss.as_json(),
        }
        length = description.sequence_length
        if length is not None:
            self._written.document["sequence_length"] = dataclasses.asdict(length) if isinstance(length, Lengths) else (
                length)
        self._written.other_on_gpus = sorted({name for graphs in self._layers.values() for name in graphs.other_on_gpus})
        return self._written

    # ---- Parameters ----

    def _read_by(self, piece: Piece) -> list[int]:
        sources = self._captured.sources
        return [sources[node].index for node, is_parameter in zip(piece.slots, piece.is_parameter) if is_parameter]

    def _place_unread(self) -> dict[int, list[int]]:
        """Tensors of the state dict that no layer reads travel with the layer whose parameters have the closest
        names, by layer, so that they are part of what training leaves."""
        read = [self._read_by(piece) for piece in self._chain.pieces]
        known = {index for indices in read for index in indices}
        placed: dict[int, list[int]] = {}
        for index, entry in enumerate(self._state.entries):
            if index in known or not entry.exported:
                continue
            if entry.role == "trained" and entry.master is not None:
                entry.tensor = entry.master
            entry.role = "fixed"
            names = [[self._state.entries[i].name for i in indices] for indices in read]
            closeness = [max((_common_parts(entry.name, name) for name in own), default=0) for own in names]
            placed.setdefault(closeness.index(max(closeness)), []).append(index)
        return placed

    def _number_parameters(self, unread: dict[int, list[int]]) -> dict[int, int]:
        """By position in the state, that in model.json: in the order of the layers that read them first."""
        numbers: dict[int, int] = {}
        for i, piece in enumerate(self._chain.pieces):
            for index in self._read_by(piece) + unread.get(i, []):
                numbers.setdefault(index, len(numbers))
        return numbers

    def _parameter(self, index: int) -> Json:
        entry = self._state.entries[index]
        trained = entry.role == "trained"
        self._written.tensors[entry.name] = entry.tensor if entry.master is None or not trained else entry.master
        return {"name": entry.name, "aliases": entry.aliases, "dtype": dtype_name(entry.tensor.dtype, entry.name),
                "shape": list(entry.tensor.shape), "role": entry.role, "weight_decay": entry.weight_decay,
                "exported": entry.exported}

    # ---- Inputs, values, layers ----

    def _inputs(self) -> list[Json]:
        nodes = {source.index: node for node, source in self._captured.sources.items() if source.kind == "input"}
        inputs = [{"name": name, "values_below": self._description.values_below.get(name, 0),
                   **tensor_json(nodes[i].meta["val"], f"the input {name}")}
                  for i, name in enumerate(self._captured.input_names)]
        if inputs[-1]["name"] == KEYS:
            inputs[-1]["derived"] = KEYS
        if self._description.loss.counted is not None:
            inputs.append({"name": COUNTS, "values_below": 0, "derived": COUNTS, **_COUNTS_TENSOR})
        return inputs

    def _layer(self, piece: Piece, extra: list[int], numbers: dict[int, int], is_last: bool) -> Json:
        graphs = self._differentiated(piece, is_last)
        tensors = [argument for argument in piece.arguments if isinstance(argument, Tensor)]
        tensors += [self._state.entries[index].tensor for index in extra]
        slots = [tensor_json(tensor, piece.name) for tensor in tensors]
        counts = is_last and self._description.loss.counted is not None
        data = graph_file(graphs, [*slots, *([_COUNTS_TENSOR] if counts else [])], piece.name)
        digest = hashlib.sha256(data).hexdigest()
        if digest not in self._graph_entries:
            self._written.graphs[digest] = data
            self._graph_entries[digest] = {
                "graph": digest, "forward_flops": forward_flops(graphs.forward, piece.name),
                "workspace": workspace(graphs, piece.name),
                "saved": [tensor_json(tensor, piece.name) for tensor in graphs.saved]}
        references = [self._reference(node, numbers) for node in piece.slots]
        references += [["parameter", numbers[index]] for index in extra]
        references += [["input", len(self._captured.input_names)]] if counts else []
        outputs = [] if is_last else [self._value(node, piece.name) for node in piece.outputs]
        self._summarize(piece, digest, outputs)
        return {"name": piece.name, "graph": digest, "slots": references, "outputs": outputs}

    def _differentiated(self, piece: Piece, is_last: bool) -> LayerGraphs:
        signature = _signature(piece)
        if is_last or signature not in self._layers:
            length = self._description.sequence_length
            graphs = differentiate(piece, is_last, length if isinstance(length, Lengths) else None,
                                   fused_loss=is_last and self._description.loss.fused,
                                   own_products=self._description.own_products)
            self._check_statistics(piece, graphs)
            self._layers[signature] = graphs
        return self._layers[signature]

    def _check_statistics(self, piece: Piece, graphs: LayerGraphs) -> None:
        for slot in graphs.updates:
            index = self._captured.sources[piece.slots[slot]].index
            assert self._state.entries[index].role == "statistic", self._state.entries[index].name

    def _reference(self, node: fx.Node, numbers: dict[int, int]) -> Json:
        source = self._captured.sources.get(node)
        if source is None:
            return ["value", self._values[node]]
        return ["parameter", numbers[source.index]] if source.kind == "parameter" else ["input", source.index]

    def _value(self, node: fx.Node, where: str) -> int:
        self._values[node] = len(self._value_entries)
        value = node.meta["val"]
        shape = boundary_shape(node, self._captured.samples)
        entry = {"dtype": dtype_name(value.dtype, where), "shape": shape_json(shape, where)}
        self._value_entries.append({"name": f"v{len(self._value_entries)}",
                                    "gradient": self._chain.analysis.gradient[node], **entry})
        return self._values[node]

    def _summarize(self, piece: Piece, digest: str, outputs: list[int]) -> None:
        parameters = sum(self._state.entries[i].tensor.numel() for i in self._read_by(piece)
                         if self._state.entries[i].role == "trained")
        length = self._captured.length
        hint = 0 if length is None else length.node.hint
        sizes = [_bytes_of_one_sample(self._value_entries[v], hint) for v in outputs]
        self._written.summaries.append(LayerSummary(piece.name, parameters, sum(sizes), digest))


def _common_parts(a: str, b: str) -> int:
    parts = os.path.commonprefix([a.split("."), b.split(".")])
    return len(parts)


def _bytes_of_one_sample(value: Json, length: int) -> int:
    size = torch.empty((), dtype=getattr(torch, value["dtype"])).element_size()
    for extent in value["shape"]:
        size *= Polynomial.parse(extent).at(length)
    return size


def _signature(piece: Piece) -> str:
    """Equal for pieces that have equal graphs."""
    numbers: dict[fx.Node, int] = {}

    def text(value: Any) -> str:
        if isinstance(value, fx.Node):
            return f"%{numbers[value]}"
        if isinstance(value, (list, tuple)):
            return f"[{','.join(map(text, value))}]"
        if isinstance(value, dict):
            return f"{{{','.join(f'{k}:{text(v)}' for k, v in value.items())}}}"
        return repr(value)

    lines = []
    for number, node in enumerate(piece.module.graph.nodes):
        numbers[node] = number
        target = str(node.target) if node.op == "call_function" else ""
        lines.append(f"{node.op} {target} {text(node.args)} {text(node.kwargs)}")
    for argument, is_parameter in zip(piece.arguments, [*piece.is_parameter, False]):
        if isinstance(argument, Tensor):
            shape = shape_json(argument.shape, piece.name)
            lines.append(f"{shape} {argument.dtype} {argument.requires_grad} {is_parameter}")
    return "\n".join(lines)


# ---- Files ----


@contextlib.contextmanager
def new_directory(out: Path, overwrite: bool) -> Iterator[Path]:
    """A folder that takes the place of `out` when the block ends well, and leaves nothing when it does not. What lies in `out`
    that no export writes, such as data beside a model, stays there."""
    if out.exists() and not out.is_dir():
        raise ExportError(f"{out} is a file", fix="Name a folder")
    occupied = out.is_dir() and any(out.iterdir())
    if occupied and not overwrite:
        raise ExportError(f"{out} is there and not empty", fix="Name another folder, or give overwrite=True (--overwrite)")
    if occupied and not _is_exported(out / "model.json"):
        raise ExportError(f"{out} holds something else than an exported model", fix="Name another folder")
    out.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        os.chmod(scratch, 0o755)
        yield scratch
        if out.is_dir():
            old = Path(tempfile.mkdtemp(prefix=f".{out.name}.old.", dir=out.parent))
            os.rename(out, old / "directory")
            os.rename(scratch, out)
            for path in (old / "directory").iterdir():
                if not _is_ours(path.name) and not (out / path.name).exists():
                    os.rename(path, out / path.name)
            shutil.rmtree(old)
        else:
            os.rename(scratch, out)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


# Files of a model of transformers that go along with its export.
COPIED = ("config.json", "generation_config.json", "preprocessor_config.json", "processor_config.json",
          "video_preprocessor_config.json", "tokenizer*.json", "tokenizer*.model", "vocab.json", "vocab.txt", "merges.txt",
          "special_tokens_map.json", "added_tokens.json", "spiece.model", "sentencepiece*.model", "chat_template*.jinja",
          "chat_template*.json", "tekken.json")


def _is_ours(name: str) -> bool:
    """Whether an export may have written what has this name in its directory."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in ("model.json", "weights.safetensors", "graphs", *COPIED))


def _is_exported(file: Path) -> bool:
    return file.is_file() and re.search(rb'"harmony_model"', file.read_bytes()) is not None


def write(written: Written, folder: Path, with_weights: bool, copies: Sequence[Path]) -> None:
    """Writes all files into a folder that is there."""
    (folder / "graphs").mkdir()
    for digest, data in written.graphs.items():
        (folder / "graphs" / f"{digest}.json").write_bytes(data)
    if with_weights:
        # A file of its own for each tensor: neither views nor tensors that share memory can be saved.
        save_file({name: _compact(tensor) for name, tensor in written.tensors.items()},
                  folder / "weights.safetensors")
    for path in copies:
        shutil.copy2(path, folder / path.name)
    text = json.dumps(written.document, sort_keys=True, indent=1, allow_nan=False)
    (folder / "model.json").write_text(text + "\n")


def _compact(tensor: Tensor) -> Tensor:
    tensor = tensor.detach().cpu()
    whole = tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    return tensor if whole else tensor.clone(memory_format=torch.contiguous_format)
