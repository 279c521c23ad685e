"""The tensors of a model that have a life of their own: parameters, buffers and constants."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from .errors import ExportError

Role = Literal["trained", "fixed", "statistic"]

DTYPES: dict[torch.dtype, str] = {
    torch.float32: "float32",
    torch.bfloat16: "bfloat16",
    torch.float16: "float16",
    torch.float64: "float64",
    torch.int64: "int64",
    torch.int32: "int32",
    torch.int16: "int16",
    torch.int8: "int8",
    torch.uint8: "uint8",
    torch.bool: "bool",
}


def dtype_name(dtype: torch.dtype, where: str) -> str:
    """The name of a type in model.json and graphs."""
    if dtype not in DTYPES:
        raise ExportError(f"a tensor has the type {dtype}, which exported models cannot have", where,
                          "Compute with real numbers of an ordinary type")
    return DTYPES[dtype]


@dataclass
class Parameter:
    """One entry of `parameters` in model.json."""

    name: str
    tensor: Tensor
    role: Role
    exported: bool
    aliases: list[str] = field(default_factory=list)
    master: Tensor | None = None  # what training begins with, where `tensor` was rounded from it

    @property
    def weight_decay(self) -> bool:
        """Whether the optimizer decays it."""
        return self.role == "trained" and self.tensor.dim() >= 2


def named_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """All parameters and buffers, under each of their names."""
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


class State:
    """All parameters of a model, each tensor once, found by any of its names."""

    def __init__(self, model: nn.Module) -> None:
        self.entries: list[Parameter] = []
        self._index: dict[str, int] = {}
        in_file = set(_state_dict_names(model))
        by_tensor: dict[int, int] = {}
        for name, tensor in named_tensors(model):
            index = by_tensor.setdefault(id(tensor), len(self.entries))
            self._index[name] = index
            if index < len(self.entries):
                entry = self.entries[index]
                # A name of the state dict stands for the tensor where there is one.
                if name in in_file and not entry.exported:
                    entry.name, entry.exported = name, True
                elif name in in_file:
                    entry.aliases.append(name)
                continue
            self.entries.append(Parameter(name, tensor, _role(name, tensor), name in in_file))
        known = {entry.name for entry in self.entries} | {a for entry in self.entries for a in entry.aliases}
        for name in sorted(in_file - known):
            raise ExportError(f"the state dict has '{name}', which is neither a parameter nor a buffer",
                              fix="Make the names of state_dict() those of parameters and buffers")

    def index_of(self, name: str) -> int:
        """The position in `entries` of a parameter or buffer."""
        return self._index[name]

    def has(self, entry: Parameter) -> bool:
        """Whether an entry is a parameter or a buffer of the model, rather than a constant."""
        return entry.name in self._index

    def refuse_untied(self, overlapping_names: Iterable[tuple[str, str]]) -> None:
        """Refuses different tensors in the same memory where training or the forward changes one of them: here each has
        memory of its own. Constants of the code are looked at besides the names that are given."""
        entries = {name: self.entries[index] for name, index in self._index.items()}
        constants = {entry.name: entry for entry in self.entries if not self.has(entry)}
        named = {**entries, **constants}
        found = overlapping((name, entry.tensor) for name, entry in named.items()) if constants else []
        for one, other in [*overlapping_names, *found]:
            if {named[one].role, named[other].role} != {"fixed"}:
                raise ExportError(f"it shares memory with {other}, and training would change one of them only", one,
                                  "Make them one parameter (head.weight = embedding.weight), or compute what is read of it "
                                  "in the forward")

    def add_constant(self, tensor: Tensor) -> int:
        """A tensor that the model's code made while it was traced."""
        taken = {entry.name for entry in self.entries}
        number = len(taken)
        name = f"constant.{number}"
        while name in taken:
            number += 1
            name = f"constant.{number}"
        self.entries.append(Parameter(name, tensor, "fixed", exported=False))
        return len(self.entries) - 1


def _state_dict_names(model: nn.Module) -> Iterator[str]:
    for name, value in model.state_dict(keep_vars=True).items():
        if not isinstance(value, Tensor):
            raise ExportError(f"the state dict has '{name}', which is no tensor",
                              fix="Remove the extra state from the module")
        yield name


def overlapping(named: Iterable[tuple[str, Tensor]]) -> list[tuple[str, str]]:
    """Pairs of names of different tensors that have elements in the same memory."""
    spans: dict[int, list[tuple[int, int, str, Tensor]]] = {}
    for name, tensor in named:
        if isinstance(tensor, FakeTensor) or tensor.numel() == 0:
            continue
        begin = tensor.data_ptr()
        reach = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
        spans.setdefault(tensor.untyped_storage().data_ptr(), []).append(
            (begin, begin + reach * tensor.element_size(), name, tensor))
    pairs = []
    for inside in spans.values():
        inside.sort(key=lambda span: span[:2])
        for position, (begin, end, name, tensor) in enumerate(inside):
            followers = itertools.takewhile(lambda span: span[0] < end, inside[position + 1:])
            pairs += [(name, span[2]) for span in followers if span[3] is not tensor and _share(tensor, span[3])]
    return pairs


def _share(one: Tensor, other: Tensor) -> bool:
    """Whether tensors of one storage have an element in common, as halves of a matrix's rows have not."""
    if one.element_size() != other.element_size():
        return True
    begin = min(one.storage_offset(), other.storage_offset())
    taken = torch.zeros(one.untyped_storage().nbytes() // one.element_size() - begin, dtype=torch.bool)
    taken.as_strided(one.shape, one.stride(), one.storage_offset() - begin).fill_(True)
    return bool(taken.as_strided(other.shape, other.stride(), other.storage_offset() - begin).any())


def _role(name: str, tensor: Tensor) -> Role:
    dtype_name(tensor.dtype, name)
    if not (isinstance(tensor, nn.Parameter) and tensor.requires_grad):
        return "fixed"
    if tensor._backward_hooks or tensor._post_accumulate_grad_hooks:
        raise ExportError("the parameter has a hook on its gradient", name, "Remove the hook")
    return "trained"
