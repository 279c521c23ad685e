"""Graphs have nothing in them about the device that they were traced on. support.py looks for operators that GPUs lack in
whatever a test exports."""

from __future__ import annotations

import unittest

import torch
from torch import Tensor, nn

import support  # first: it says where harmony_export is

import make_models


class Devices(support.ExportTest):
    def test_attention_is_an_operation_of_any_device(self) -> None:
        for name in ("mixtral", "t5", "translator"):  # other tests export more
            with self.subTest(name):
                found = support.operators(self.export_case(make_models.make(name), check=False))
                self.assertLessEqual({"harmony::attention", "harmony::attention_backward"}, found)
                self.assertEqual([op for op in found if any(kind in op for kind in ("cpu", "mkldnn", "cuda"))], [])

    def test_an_operator_that_only_a_cpu_has_is_named(self) -> None:
        class Odd(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 5)

            def forward(self, x: Tensor) -> Tensor:
                y: Tensor = self.head(self.body(x) + torch.ops.aten._add_relu(x.detach(), x.detach()))
                return y

        if not support.has_kernel("aten::mm", "CUDA"):
            self.skipTest("this PyTorch is built without CUDA, and cannot tell")
        self.only_on_cpu = ["aten::_add_relu.Tensor"]
        self.export(Odd(), "cross_entropy", {"x": torch.randn(4, 8), "labels": torch.arange(4)})
        self.assertIn("only runs on CPU devices: aten::_add_relu.Tensor", self.lines)


if __name__ == "__main__":
    unittest.main()
