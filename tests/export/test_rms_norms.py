"""RMS norms as one operation."""

from __future__ import annotations

import json
import unittest
from pathlib import Path

import torch
from torch import Tensor, nn

import support  # first: it says where harmony_export is

import make_models

_WIDTH = 12


class Norm(nn.Module):
    """As models of the llama family have it, with something else where that is asked for."""

    def __init__(self, other: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(_WIDTH) + 0.5, requires_grad=other != "frozen weight")
        self.other = other

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.float32)
        variance = wide.pow(2).mean(-1, keepdim=True)
        if self.other == "centred":
            variance = variance - wide.mean(-1, keepdim=True).pow(2)
        normed = wide * torch.rsqrt(variance + 1e-6)
        if self.other == "chunks":
            return torch.cat([part * 2 for part in normed.to(x.dtype).chunk(2, -1)], -1) * self.weight
        if self.other == "a size":
            return normed.to(x.dtype) * x.shape[0] * self.weight
        if self.other == "one more":
            return (normed * (1.0 + self.weight.float())).to(x.dtype)
        y = self.weight * normed.to(x.dtype)
        return y + variance.to(x.dtype) if self.other == "used variance" else y


class Layers(nn.Module):
    """Norms with a way around each, over rows of several dimensions."""

    def __init__(self, other: str = "") -> None:
        super().__init__()
        self.turned = other == "turned"
        self.first = nn.Linear(8, _WIDTH)
        self.blocks = nn.ModuleList([nn.ModuleList([Norm(other), nn.Linear(_WIDTH, _WIDTH)]) for _ in range(2)])
        self.last = nn.Linear(_WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.turned:
            x = x.transpose(1, 2).contiguous().transpose(1, 2)
        for norm, linear in self.blocks:  # type: ignore[misc]
            x = x + linear(norm(x)).tanh()
        result = self.last(x).mean(1)
        assert isinstance(result, Tensor)
        return result


def batch() -> dict[str, Tensor]:
    """Noise with labels."""
    return {"x": torch.randn(4, 3, 8), "labels": torch.arange(4)}


def saved_bytes_of_a_row(folder: Path) -> int:
    """What the layer that leaves most leaves to its backward, for each row of its tensors."""
    document = json.loads((folder / "model.json").read_text())
    sizes = {"float32": 4, "bfloat16": 2}
    return max(sum(sizes[saved["dtype"]] * saved["shape"][-1] for saved in graph["saved"]) for graph in document["graphs"])


class RmsNorms(support.ExportTest):
    def norms(self, folder: Path) -> int:
        """How many there are in all backwards."""
        return support.count_of_operators(folder, "backward", "fused")["harmony::rms_norm_backward"]

    def test_a_norm_is_one_operation_with_the_bits_of_its_parts(self) -> None:
        for dtype in ("fp32", "bf16"):
            with self.subTest(dtype):
                self.lines = []
                folder = self.export(Layers(), "cross_entropy", batch(), dtype=dtype)
                self.assertEqual(self.norms(folder), 2)  # one in each block, of which the second has the loss
                self.assertFalse({"aten::rsqrt", "aten::pow.Tensor_Scalar"} & support.operators(folder))
                self.assert_bits_of_eager()

    def test_a_backward_is_left_no_rows_in_float32(self) -> None:
        with_norm = saved_bytes_of_a_row(self.export(Layers(), "cross_entropy", batch(), dtype="bf16"))
        # Three times rows of bf16 (the norm's result, and around tanh), and the row's number.
        self.assertLessEqual(with_norm, 3 * 2 * _WIDTH + 4)

    def test_what_is_something_else_stays(self) -> None:
        for other in ("a size", "centred", "chunks", "one more", "used variance", "frozen weight"):
            with self.subTest(other):
                folder = self.export(Layers(other), "cross_entropy", batch(), dtype="bf16", check=False)
                self.assertEqual(self.norms(folder), 0)
                self.assertIn("aten::rsqrt", support.operators(folder))

    def test_rows_in_another_order_in_memory_stay(self) -> None:
        for dtype in ("fp32", "bf16"):
            with self.subTest(dtype):
                # The first block's only: what it hands on is brought into order.
                self.assertLess(self.norms(self.export(Layers("turned"), "cross_entropy", batch(), dtype=dtype)), 2)

    def test_language_models_have_them_gated_products_and_rotary_embeddings(self) -> None:
        for name, dtype in (("llama", "bf16"), ("mixtral", "fp32")):
            with self.subTest(name):
                counts = support.count_of_operators(self.export_case(make_models.make(name), dtype=dtype))
                self.assertGreater(counts["harmony::rms_norm_backward"], 1)
                self.assertGreater(counts["harmony::rotary_backward"], 1)
                if name == "llama":
                    self.assertGreater(counts["harmony::gated_backward"], 0)


if __name__ == "__main__":
    unittest.main()
