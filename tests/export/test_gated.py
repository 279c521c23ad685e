"""Gated products as one operation."""

from __future__ import annotations

import unittest
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

import support  # first: it says where harmony_export is

from test_rms_norms import batch, saved_bytes_of_a_row


class Mlp(nn.Module):
    """As models of the llama family have it, with something else where that is asked for."""

    def __init__(self, activation: str, other: str) -> None:
        super().__init__()
        self.into = nn.Linear(12, 12)
        self.gate, self.up, self.down = nn.Linear(12, 20), nn.Linear(12, 20), nn.Linear(20, 12)
        self.both = nn.Linear(12, 40)
        self.activation, self.other = activation, other

    def forward(self, x: Tensor) -> Tensor:
        x = self.into(x)
        gate, up = self.gate(x), self.up(x)
        if self.other == "halves":
            gate, up = self.both(x).chunk(2, -1)
        activated = {"silu": functional.silu, "gelu": functional.gelu, "relu": functional.relu,
                     "tanh": lambda t: functional.gelu(t, approximate="tanh")}[self.activation](gate)
        if self.other == "used twice":
            up = up + activated
        if self.other == "itself":
            up = activated
        if self.other == "a column":
            up = up[..., :1]
        if self.other == "a number":
            return self.down(activated * 0.5) + up.mean()  # type: ignore[no-any-return]
        return self.down(activated * up)  # type: ignore[no-any-return]


class Layers(nn.Module):
    """Two of them, one behind the other."""

    def __init__(self, activation: str = "silu", other: str = "") -> None:
        super().__init__()
        self.first = nn.Linear(8, 12)
        self.blocks = nn.ModuleList([Mlp(activation, other) for _ in range(2)])
        self.last = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Any:
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        return self.last(x).mean(1)


class Gated(support.ExportTest):
    def products(self, folder: Path) -> int:
        """How many there are in all backwards."""
        return support.count_of_operators(folder, "backward", "fused")["harmony::gated_backward"]

    def test_a_product_is_one_operation_with_the_bits_of_its_parts(self) -> None:
        for activation, other in (("silu", ""), ("gelu", ""), ("tanh", ""), ("silu", "halves")):
            for dtype in ("fp32", "bf16"):
                with self.subTest(activation, other=other, dtype=dtype):
                    self.lines = []
                    folder = self.export(Layers(activation, other), "cross_entropy", batch(), dtype=dtype)
                    self.assertEqual(self.products(folder), 2)  # one in each block, of which the second has the loss
                    self.assertFalse({"aten::silu", "aten::gelu"} & support.operators(folder))
                    self.assert_bits_of_eager()

    def test_a_backward_is_not_left_what_is_activated(self) -> None:
        folder = self.export(Layers(), "cross_entropy", batch(), dtype="bf16")
        self.assertEqual(saved_bytes_of_a_row(folder), 2 * (12 + 3 * 20))  # rows, both factors and the product

    def test_what_is_something_else_stays(self) -> None:
        for activation, other in (("relu", ""), ("silu", "used twice"), ("silu", "itself"), ("silu", "a column"),
                                  ("silu", "a number")):
            with self.subTest(activation, other=other):
                folder = self.export(Layers(activation, other), "cross_entropy", batch(), check=False)
                self.assertEqual(self.products(folder), 0)


if __name__ == "__main__":
    unittest.main()
