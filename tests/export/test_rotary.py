"""Rotary embedding as one operation."""

from __future__ import annotations

import unittest
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

import support  # first: it says where harmony_export is

from test_rms_norms import batch

_HEADS, _WIDTH = 3, 4


def _halves_turned(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


class Attention(nn.Module):
    """As models of the llama family have it, with something else where that is asked for."""

    def __init__(self, other: str) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(12, _HEADS * _WIDTH) for _ in range(3))
        self.o = nn.Linear(_HEADS * _WIDTH, 12)
        self.other = other
        angles = torch.rand(16, _WIDTH)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, x: Tensor) -> Tensor:
        samples, tokens, _ = x.shape
        q, k, v = (part(x).view(samples, tokens, _HEADS, _WIDTH).transpose(1, 2) for part in (self.q, self.k, self.v))
        cos, sin = self.cos[:tokens].to(x.dtype), self.sin[:tokens].to(x.dtype)
        y = functional.scaled_dot_product_attention(self._turned(q, cos, sin), self._turned(k, cos, sin), v, is_causal=True)
        return self.o(y.transpose(1, 2).reshape(samples, tokens, -1))  # type: ignore[no-any-return]

    def _turned(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        if self.other == "the wrong half":
            half = x.shape[-1] // 2
            return x * cos + torch.cat((x[..., half:], -x[..., :half]), -1) * sin
        if self.other == "uneven halves":
            return x * cos + torch.cat((-x[..., 1:], x[..., :1]), -1) * sin
        if self.other == "one number":
            return x * cos.sum() + _halves_turned(x) * sin.sum()
        if self.other == "in part":
            turned, passed = x[..., :2], x[..., 2:]
            return torch.cat((turned * cos[..., :2] + _halves_turned(turned) * sin[..., :2], passed), -1)
        if self.other == "a column":
            return x * cos[..., :1] + _halves_turned(x) * sin[..., :1]
        if self.other == "used twice":
            direct = x * cos
            return direct + _halves_turned(x) * sin + direct
        if self.other == "without heads":
            rows = x.transpose(1, 2)
            cos, sin = cos[:, None], sin[:, None]
            return (rows * cos + _halves_turned(rows) * sin).transpose(1, 2)
        turned = x * cos + _halves_turned(x) * sin
        return torch.cat((x.new_empty(0), turned), -2) if self.other == "an empty cache" else turned


class Layers(nn.Module):
    """Two of them, one behind the other."""

    def __init__(self, other: str = "") -> None:
        super().__init__()
        self.first = nn.Linear(8, 12)
        self.blocks = nn.ModuleList([Attention(other) for _ in range(2)])
        self.last = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Any:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x).mean(1)


class Rotary(support.ExportTest):
    def rotations(self, folder: Path) -> int:
        """How many there are in all backwards."""
        return support.count_of_operators(folder, "backward", "fused")["harmony::rotary_backward"]

    def test_a_rotation_is_one_operation_with_the_bits_of_its_parts(self) -> None:
        for other, dtype in (("", "fp32"), ("", "bf16"), ("in part", "bf16"), ("without heads", "bf16")):
            with self.subTest(other, dtype=dtype):
                self.lines = []
                folder = self.export(Layers(other), "cross_entropy", batch(), dtype=dtype)
                self.assertEqual(self.rotations(folder), 2)  # in a block; both have the same graph
                self.assertNotIn("aten::neg", support.operators(folder))
                self.assert_bits_of_eager()

    def test_gradients_of_heads_are_not_copied(self) -> None:
        folder = self.export(Layers(), "cross_entropy", batch(), dtype="bf16")
        self.assertEqual(support.count_of_operators(folder, "backward")["aten::clone"], 0)

    def test_a_cache_that_is_empty_is_named(self) -> None:
        for other, named in (("an empty cache", 1), ("", 0)):
            self.lines = []
            self.export(Layers(other), "cross_entropy", batch(), check=False)
            self.assertEqual(sum("config.use_cache = False" in line for line in self.lines), named)

    def test_what_is_something_else_stays(self) -> None:
        for other in ("the wrong half", "uneven halves", "a column", "one number", "used twice"):
            with self.subTest(other):
                self.assertEqual(self.rotations(self.export(Layers(other), "cross_entropy", batch(), check=False)), 0)


if __name__ == "__main__":
    unittest.main()
