"""A linear layer and the cross entropy of what it makes as one operation."""

from __future__ import annotations

import json
import unittest
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

import support  # first: it says where harmony_export is

import make_models
from harmony_export.errors import ExportError
from harmony_export.fused_loss import chunk_rows, linear_cross_entropy


def last_graph(folder: Path) -> tuple[Any, list[str]]:
    """What model.json says of the last layer's graph, and its operations."""
    document = json.loads((folder / "model.json").read_text())
    digest = document["layers"][-1]["graph"]
    phases = json.loads((folder / "graphs" / f"{digest}.json").read_text())["phases"]
    entry, = (graph for graph in document["graphs"] if graph["graph"] == digest)
    return entry, [op["op"] for op in phases["fused"]["ops"]]


class Classes(nn.Module):
    """Many classes, with what is asked for between the last linear layer and the loss."""

    def __init__(self, classes: int = 3000, end: str = "") -> None:
        super().__init__()
        self.body = nn.Linear(8, 16)
        self.head = nn.Linear(16, classes)
        self.end = end

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        logits = self.head(self.body(x).relu())
        if self.end == "scaled":
            logits = logits * 2
        loss = functional.cross_entropy(logits, labels, reduction="sum")
        if self.end == "other rows":
            loss = functional.nll_loss(logits.log_softmax(0), labels, reduction="sum")
        if self.end == "other classes":
            loss = functional.cross_entropy(logits.view(-1, 1000), labels.repeat(3), reduction="sum")
        if self.end == "watched":
            loss = loss + 0 * logits.square().sum()
        return loss


def batch(samples: int = 4) -> dict[str, Tensor]:
    """Noise with labels."""
    return {"x": torch.randn(samples, 8), "labels": torch.arange(samples) * 11}


class FusedLoss(support.ExportTest):
    def test_it_is_one_operation_that_holds_less(self) -> None:
        before, operations = last_graph(self.export(Classes(), None, batch(), reduction="sum"))
        self.assertRegex(self.lines[0], r"of a loss that is a sum the mean is trained: .* and their labels, \d+ each")
        self.assertIn("aten::_log_softmax", operations)
        after, operations = last_graph(self.export(Classes(), None, batch(), reduction="sum", fused_loss=True))
        self.assertIn("harmony::linear_cross_entropy", operations)
        self.assertFalse({"aten::_log_softmax", "aten::nll_loss_forward", "aten::nll_loss_backward"} & set(operations))
        self.assertEqual(after["forward_flops"], before["forward_flops"])

        def peak(entry: Any, samples: int) -> int:
            return max(per_sample * samples + fixed for per_sample, fixed in entry["workspace"]["fused"])

        self.assertGreater(peak(before, 4000), 2 * 4000 * 3000 * 4)
        self.assertLess(peak(after, 4000), (16 << 20) + 4000 * 2000)

    def test_language_models_are_as_in_eager(self) -> None:
        for name in ("gpt2", "bert_masked", "t5"):
            with self.subTest(name):
                folder = self.export_case(make_models.make(name), fused_loss=True)
                self.assertIn("harmony::linear_cross_entropy", last_graph(folder)[1])

    def test_it_is_what_its_parts_compute(self) -> None:
        torch.manual_seed(1)
        x, weight, bias = torch.randn(2100, 6), torch.randn(11, 6), torch.randn(11)
        labels = torch.randint(0, 11, (2100,))
        labels[::3] = -100
        for parameters in ((x, weight, bias), (x, weight)):
            wanted = [tensor.detach().requires_grad_() for tensor in parameters]
            loss = functional.cross_entropy(functional.linear(*wanted), labels, reduction="sum")
            (loss * 0.5).backward()
            made = linear_cross_entropy(x, weight, bias if len(wanted) == 3 else None, labels, -100, torch.tensor(0.5))
            torch.testing.assert_close(made[0], loss.detach(), rtol=1e-6, atol=0)
            for gradient, tensor in zip(made[1:], wanted):
                torch.testing.assert_close(gradient, tensor.grad, rtol=1e-5, atol=1e-4)

    def test_chunks_have_as_many_rows_as_in_the_runtime(self) -> None:
        # The same numbers as in tests/unit/worker/graphs/linear_cross_entropy_test.cc.
        self.assertEqual([chunk_rows(classes) for classes in (10, 50257, 1000000)], [1024, 64, 16])

    def test_what_does_not_end_so_is_refused_with_the_reason(self) -> None:
        for end, reason in (("scaled", "no linear layer's"), ("watched", "the loss is computed with"),
                            ("other rows", "not that of a softmax over"), ("other classes", "those of other classes")):
            with self.subTest(end), self.assertRaisesRegex(ExportError, reason):
                self.export(Classes(end=end), None, batch(), reduction="sum", check=False, fused_loss=True)
        with self.assertRaisesRegex(ExportError, "0 cross entropies"):
            self.export(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1)), lambda result, _: result.square().mean(),
                        {"x": batch()["x"]}, fused_loss=True)


if __name__ == "__main__":
    unittest.main()
