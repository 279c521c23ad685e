"""RMS norms as one operation."""

from __future__ import annotations

import json
import unittest
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

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
        if self.other == "one more":  # as Gemma has it
            return (normed * (1.0 + self.weight.float())).to(x.dtype)
        if self.other == "wide":  # as OLMo has it
            return (self.weight * normed).to(x.dtype)
        y = self.weight * normed.to(x.dtype)
        return y + variance.to(x.dtype) if self.other == "used variance" else y


class Layers(nn.Module):
    """Norms with a way around each, over rows of several dimensions."""

    def __init__(self, other: str = "") -> None:
        super().__init__()
        self.other = other
        self.first = nn.Linear(8, _WIDTH)
        self.blocks = nn.ModuleList([nn.ModuleList([Norm(other), nn.Linear(_WIDTH, _WIDTH)]) for _ in range(2)])
        self.last = nn.Linear(_WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.other == "turned":
            x = x.transpose(1, 2).contiguous().transpose(1, 2)
        for norm, linear in self.blocks:  # type: ignore[misc]
            x = x + linear(norm(x)).tanh()
        result = self.last(x).mean(1)
        assert isinstance(result, Tensor)
        return result


class Heads(nn.Module):
    """Attention whose queries are normed: as Qwen3 has them, or, turned, as Gemma3 has."""

    def __init__(self, turned: bool) -> None:
        super().__init__()
        self.turned = turned
        self.norm = Norm("")
        self.queries, self.others = nn.Linear(_WIDTH, 2 * _WIDTH), nn.Linear(_WIDTH, 2 * _WIDTH)
        self.back = nn.Linear(2 * _WIDTH, _WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        samples, length, _ = x.shape
        queries, others = (product(x).view(samples, length, 2, _WIDTH) for product in (self.queries, self.others))
        queries = self.norm(queries.transpose(1, 2)) if self.turned else self.norm(queries).transpose(1, 2)
        others = others.transpose(1, 2)
        # A product, as a rotary embedding has it, brings the gradient into another order.
        made = functional.scaled_dot_product_attention(torch.cat((-queries, others), -1) * 0.5, torch.cat((others, others), -1), others)
        result = self.back(made.transpose(1, 2).reshape(samples, length, 2 * _WIDTH))
        assert isinstance(result, Tensor)
        return x + result


class Last(nn.Module):
    """Classes of a whole sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.classes = nn.Linear(_WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        result = self.classes(x).mean(1)
        assert isinstance(result, Tensor)
        return result


def heads(turned: bool) -> nn.Module:
    """Two blocks of attention, the second of which has the loss."""
    return nn.Sequential(nn.Linear(8, _WIDTH), Heads(turned), nn.Sequential(Heads(turned), Last()))


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
        for other in ("a size", "centred", "chunks", "used variance", "frozen weight"):
            with self.subTest(other):
                folder = self.export(Layers(other), "cross_entropy", batch(), dtype="bf16", check=False)
                self.assertEqual(self.norms(folder), 0)
                self.assertIn("aten::rsqrt", support.operators(folder))

    def test_a_weight_may_be_multiplied_by_in_float32(self) -> None:
        for other in ("one more", "wide"):
            for dtype in ("fp32", "bf16"):
                with self.subTest(f"{other} {dtype}"):
                    self.lines = []
                    folder = self.export(Layers(other), "cross_entropy", batch(), dtype=dtype)
                    self.assertEqual(self.norms(folder), 2)
                    self.assertFalse({"aten::rsqrt", "aten::pow.Tensor_Scalar"} & support.operators(folder))
                    self.assert_bits_of_eager()

    def test_gradients_in_another_order_than_the_rows_stay(self) -> None:
        for dtype in ("fp32", "bf16"):
            with self.subTest(dtype):
                # The first block's only: what it hands on is brought into order.
                self.assertLess(self.norms(self.export(Layers("turned"), "cross_entropy", batch(), dtype=dtype)), 2)

    def test_rows_may_lie_in_memory_in_any_order(self) -> None:
        for dtype in ("fp32", "bf16"):
            for name, model in (("heads", heads(False)), ("turned heads", heads(True))):
                with self.subTest(f"{name} {dtype}"):
                    self.lines = []
                    self.assertEqual(self.norms(self.export(model, "cross_entropy", batch(), dtype=dtype)), 2)
                    self.assert_bits_of_eager()

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
