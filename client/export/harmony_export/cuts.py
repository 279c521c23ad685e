"""Where a model is cut into layers: at modules that the user names, or at its repeated blocks."""

from __future__ import annotations

import contextlib
import fnmatch
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Literal

from torch import nn

from .errors import ExportError

Cuts = Literal["auto"] | Sequence[str]

_CONTAINERS = (nn.ModuleList, nn.Sequential, nn.ModuleDict)
_PLAIN_CONTAINERS = (nn.ModuleList, nn.Sequential)


def find_cuts(model: nn.Module, cuts: Cuts, frozen: Collection[str] = ()) -> dict[str, str]:
    """The modules at which layers begin: by path, the path of the module that begins the layer. A module
    that maps to another one joins its layer. `frozen` names parameters that no gradient reaches."""
    if isinstance(cuts, str):
        if cuts != "auto":
            raise ExportError(f"cuts is '{cuts}'", fix="Give 'auto' or a list of patterns such as ['blocks.*']")
        with _not_trained(model, frozen):
            return _automatic(model)
    found = {}
    for pattern in cuts:
        paths = [path for path, _ in model.named_modules() if path and _matches(path, pattern)]
        if not paths:
            raise ExportError(f"the cut '{pattern}' matches no module",
                              fix="Patterns match paths part by part, as in 'encoder.layer.*'")
        found.update({path: path for path in paths})
    return found


def too_few_layers(readers: Sequence[str]) -> ExportError:
    """What is said of a model that falls into one layer. `readers` are the innermost modules whose operations read trained
    parameters, in order; the model itself is the one with an empty path."""
    modules = list(dict.fromkeys(readers))
    rule = "A model needs two layers at least, each with trained parameters"
    if not modules:
        return ExportError("the loss depends on no trained parameter", fix=f"{rule}: call requires_grad_() on what is to "
                           "be trained")
    if len(modules) == 1:
        only = f"'{modules[0]}' alone" if modules[0] else "only the forward of the model itself"
        return ExportError(f"{only} reads trained parameters, so the model does not fall into two layers", fix=f"{rule}, "
                           "and is cut between modules only: train more of it (requires_grad_() of the last block), or "
                           "make two modules of this one")
    begins = [path for path in modules if path]
    return ExportError("the model does not fall into two layers with trained parameters",
                       fix=f"Give modules at which layers begin: cuts={begins[-2:]}")


def _matches(path: str, pattern: str) -> bool:
    parts, wanted = path.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(map(fnmatch.fnmatchcase, parts, wanted))


@contextlib.contextmanager
def _not_trained(model: nn.Module, names: Collection[str]) -> Iterator[None]:
    parameters = [parameter for name, parameter in model.named_parameters(remove_duplicate=False) if name in names]
    try:
        for parameter in parameters:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(True)


def _automatic(model: nn.Module) -> dict[str, str]:
    blocks = {path: path for path in _blocks(model, "")}
    if blocks:
        return blocks
    leaves: dict[str, str] = {}
    for path, container in _plain_lists(model, ""):
        leaves.update(_leaf_layers(path, container))
    return leaves or {path: path for path in _children_of_the_root(model)}


# ---- Repeated blocks ----


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _trained(module: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())


def _blocks(module: nn.Module, path: str) -> list[str]:
    """The outermost repeated blocks at or below a module."""
    if isinstance(module, _CONTAINERS) and _is_list_of_blocks(module):
        return _blocks_of_list(module, path)
    return [found for name, child in module.named_children() for found in _blocks(child, _join(path, name))]


def _block_children(container: nn.Module) -> list[nn.Module]:
    """The children of a container that may be blocks: those with modules and parameters of their own,
    all of the class that most of them have."""
    children = [c for c in container.children() if _trained(c) and next(c.children(), None) is not None]
    if not children:
        return []
    common, _ = Counter(type(c) for c in children).most_common(1)[0]
    return [c for c in children if type(c) is common]


def _is_list_of_blocks(container: nn.Module) -> bool:
    blocks = _block_children(container)
    return len(blocks) >= 2 or (isinstance(container, nn.ModuleList) and len(blocks) == len(container) == 1)


def _blocks_of_list(container: nn.Module, path: str) -> list[str]:
    """The children of a list, or the blocks inside them where the children are stages: lists of blocks
    themselves, or of one class with different shapes."""
    blocks = _block_children(container)
    inner = {id(c): _blocks(c, "") for c in blocks}
    structures = Counter(_structure(c) for c in blocks)
    plain = all(type(c) in _PLAIN_CONTAINERS for c in blocks)
    stages = sum(bool(found) for found in inner.values()) >= 2 and (plain or max(structures.values()) == 1)
    paths = []
    for name, child in container.named_children():
        inside = [_join(name, found) for found in inner.get(id(child), [])] if stages else []
        paths += [_join(path, found) for found in inside or [name]]
    return paths


def _structure(module: nn.Module) -> tuple[tuple[object, ...], ...]:
    modules = tuple((name, type(child).__qualname__) for name, child in module.named_modules())
    shapes = tuple((name, tuple(parameter.shape)) for name, parameter in module.named_parameters())
    return modules, shapes


# ---- Lists of single operations, and models without any list ----


def _plain_lists(module: nn.Module, path: str) -> Iterator[tuple[str, nn.Module]]:
    if isinstance(module, _CONTAINERS) and sum(map(_trained, module.children())) >= 2:
        yield path, module
        return
    for name, child in module.named_children():
        yield from _plain_lists(child, _join(path, name))


def _leaf_layers(path: str, container: nn.Module) -> dict[str, str]:
    """A layer begins at each child with a matrix or a kernel; norms, activations and pools join it."""
    layers: dict[str, str] = {}
    head = ""
    for name, child in container.named_children():
        own = _join(path, name)
        if not head or any(p.requires_grad and p.dim() >= 2 for p in child.parameters()):
            head = own
        layers[own] = head
    return layers


def _children_of_the_root(model: nn.Module) -> list[str]:
    path, module = "", model
    while True:
        children = [(_join(path, name), child) for name, child in module.named_children() if _trained(child)]
        if len(children) != 1:
            return [name for name, _ in children]
        path, module = children[0]
