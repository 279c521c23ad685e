"""Which tensors of a model are trained, which are fixed, and what is said of those that PyTorch would keep in step."""

from __future__ import annotations

import functools
import json
import unittest
from collections.abc import Callable
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

import support  # first: it says where harmony_export is

from harmony_export import ExportError
from harmony_export.state import overlapping


def vectors() -> dict[str, Tensor]:
    return {"x": torch.randn(4, 8), "labels": torch.randint(0, 5, (4,))}


class Middle(nn.Module):
    """Calls a function between two of its layers."""

    def __init__(self, function: Callable[[Any, Tensor], Tensor], **attributes: Any) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 5)
        self.function = function
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.second(self.function(self, torch.tanh(self.first(x))))))


class Frozen(nn.Module):
    """A body that is frozen by how it is called, not by what its parameters say."""

    def __init__(self, detach: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 5)
        self.detach = detach

    def forward(self, x: Tensor) -> Tensor:
        with torch.set_grad_enabled(self.detach):
            x = self.body(x)
        return self.last(torch.tanh(self.first(x.detach() if self.detach else x)))


class WithoutGradient(support.ExportTest):
    def test_what_no_gradient_reaches_is_fixed_and_begins_no_layer(self) -> None:
        for dtype in ("fp32", "autocast"):
            for detach in (False, True):
                with self.subTest(dtype, detach=detach):
                    self.lines.clear()
                    model = Frozen(detach)
                    folder = self.export(model, "cross_entropy", vectors(), dtype=dtype)
                    document = json.loads((folder / "model.json").read_text())
                    roles = {entry["name"]: (entry["role"], entry["weight_decay"]) for entry in document["parameters"]}
                    self.assertEqual(roles["body.0.weight"], ("fixed", False))
                    types = {entry["dtype"] for entry in document["parameters"] if entry["role"] == "fixed"}
                    self.assertEqual(types, {"float32"}, "nothing trains a copy")
                    self.assertEqual({name for name, (role, _) in roles.items() if role == "trained"},
                                     {"first.weight", "first.bias", "last.weight", "last.bias"})
                    self.assertEqual([layer["name"] for layer in document["layers"]], ["first", "last"])
                    self.assertIn("not trained, for no gradient reaches them: body.0.weight", self.lines[0])
                    self.assertTrue(all(parameter.requires_grad for parameter in model.parameters()))

    def test_what_is_read_with_a_gradient_as_well_is_trained(self) -> None:
        def twice(module: Any, x: Tensor) -> Tensor:
            return module.second(x).detach() + x

        folder = self.export(Middle(twice), "cross_entropy", vectors())
        document = json.loads((folder / "model.json").read_text())
        self.assertEqual({entry["role"] for entry in document["parameters"]}, {"trained"})


class SharedMemory(support.ExportTest):
    def refused(self, text: str, model: nn.Module) -> None:
        with self.assertRaisesRegex(ExportError, text):
            self.export(model, "cross_entropy", vectors())

    def test_tensors_of_one_memory_of_which_one_is_trained_are_refused(self) -> None:
        model = Middle(lambda module, x: x)
        model.second.weight.data = model.first.weight.data
        self.refused("(first|second).weight: it shares memory with (first|second).weight.*Make them one parameter", model)
        model = Middle(lambda module, x: x @ module.turned)
        model.register_buffer("turned", model.first.weight.detach().t())
        self.refused("shares memory", model)
        part = Middle(lambda module, x: x + module.part.mean())
        part.part = nn.Parameter(part.first.weight.data[:3])
        self.refused("shares memory", part)
        constant = Middle(lambda module, x: x @ module.kept)
        constant.kept = constant.first.weight.detach()
        self.refused("shares memory", constant)

    def test_statistics_share_no_memory(self) -> None:
        model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 5))
        model.register_buffer("seen", model[1].running_mean[:4])
        self.refused("shares memory", model)

    def test_pieces_of_one_memory_and_fixed_tensors_are_fine(self) -> None:
        model = Middle(lambda module, x: x * module.scale + module.part.mean())
        flat = torch.randn(2 * 64)
        for layer, piece in zip((model.first, model.second), flat.split(64)):
            layer.weight = nn.Parameter(piece.view(8, 8))
        model.register_buffer("scale", torch.rand(8))
        model.register_buffer("part", model.scale[2:])
        self.export(model, "cross_entropy", vectors())
        self.assert_bits_of_eager()

    def test_columns_of_a_matrix_do_not_overlap(self) -> None:
        matrix = torch.zeros(4, 6)
        tensors = {"left": matrix[:, :3], "right": matrix[:, 3:], "row": matrix[1], "last": matrix[:, 5], "same": matrix[1:2],
                   "other": torch.zeros(4, 6), "none": matrix[:0]}
        self.assertEqual({frozenset(pair) for pair in overlapping(tensors.items())},
                         set(map(frozenset, [("left", "row"), ("left", "same"), ("right", "row"), ("right", "same"),
                                             ("right", "last"), ("row", "last"), ("row", "same"), ("same", "last")])))


class Caches(support.ExportTest):
    def test_what_the_first_forward_makes_and_keeps(self) -> None:
        @functools.lru_cache
        def table(length: int) -> Tensor:
            return torch.linspace(0, 1, length)

        def in_a_buffer(module: Any, x: Tensor) -> Tensor:
            if not hasattr(module, "table"):
                module.register_buffer("table", torch.linspace(0, 1, 8), persistent=False)
            return x * module.table

        def in_a_dictionary(module: Any, x: Tensor) -> Tensor:
            if 8 not in module.tables:
                module.tables[8] = torch.linspace(0, 1, 8)
            return x * module.tables[8]

        models = {"a function's": Middle(lambda module, x: x * table(8)), "a buffer": Middle(in_a_buffer),
                  "a dictionary": Middle(in_a_dictionary, tables={})}
        for name, model in models.items():
            with self.subTest(name):
                self.lines.clear()
                self.export(model, "cross_entropy", vectors())
                self.assert_bits_of_eager()
                model(vectors()["x"])

    def test_a_buffer_that_the_forward_assigns_begins_as_it_was(self) -> None:
        def assigning(module: Any, x: Tensor) -> Tensor:
            module.mean = 0.9 * module.mean + 0.1 * x.detach().mean(0)
            return x

        model = Middle(assigning)
        model.register_buffer("mean", torch.zeros(8))
        folder = self.export(model, "cross_entropy", vectors())
        self.assertTrue(torch.equal(model.mean, torch.zeros(8)))
        with safe_open(folder / "weights.safetensors", "pt") as file:
            self.assertTrue(torch.equal(file.get_tensor("mean"), torch.zeros(8)))


if __name__ == "__main__":
    unittest.main()
