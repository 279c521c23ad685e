"""The check against eager PyTorch: what it takes for rounding, and what not."""

from __future__ import annotations

import unittest
from pathlib import Path
from unittest import mock

import torch
import torch.nn.functional as functional
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import support  # first of ours: it says where harmony_export is

from harmony_export import ExportError
from harmony_export.check import Exactness, check
from harmony_export.losses import loss_call
from harmony_export.rounding import in_float64


class Shared(nn.Module):
    """Three layers add to the gradient of one value twice each: the order of the sums differs from eager PyTorch's."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 64)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(3))
        self.head = nn.Linear(64, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = shared = self.first(x)
        for block in self.blocks:
            x = block(x * shared) + shared.sin()
        result: Tensor = self.head(x)
        return result


class Check(support.ExportTest):
    def setUp(self) -> None:
        super().setUp()
        self.model = Shared()
        self.batch = {"x": torch.randn(6, 8), "labels": torch.randint(0, 5, (6,))}

    def checked(self, folder: Path, tolerance: float) -> Exactness:
        return check(folder, self.model.train(), loss_call(self.model, "cross_entropy", self.batch), [self.batch], "mean",
                     (), tolerance)

    def test_what_is_as_near_to_float64_as_eager_pytorch_is_rounding(self) -> None:
        folder = self.export(self.model, "cross_entropy", self.batch)
        before = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        found = self.checked(folder, tolerance=0)
        self.assertTrue(any(d.error for d in found.deviations))
        self.assertRegex(str(found), r"within \S+, the gradient of .*, where eager PyTorch is \S+e-0[678] from float64")
        for name, tensor in self.model.state_dict().items():
            self.assertTrue(torch.equal(tensor, before[name]), name)
        self.assertIs(torch.get_default_dtype(), torch.float32)
        self.assertTrue(all(parameter.grad is None for parameter in self.model.parameters()))

    def test_one_sample_may_be_too_few(self) -> None:
        class Squeezed(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 5)

            def forward(self, x: Tensor) -> Tensor:
                y = self.last(self.first(x).squeeze())
                return y - y.amax(1, keepdim=True)

        self.export(Squeezed(), "cross_entropy", self.batch)
        self.assertRegex(self.lines[-1], "statistics.: 2 samples to the last bit; 5 samples to the last bit")

    def test_in_a_block_without_gradients_it_is_the_same(self) -> None:
        with torch.no_grad():
            self.export(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 5)), "cross_entropy", self.batch)
        self.assert_bits_of_eager()

    def test_a_small_fault_is_none(self) -> None:
        folder = self.export(self.model, "cross_entropy", self.batch)
        weights = load_file(folder / "weights.safetensors")
        weights["head.weight"] *= 1 + 5e-6
        save_file(weights, folder / "weights.safetensors")
        with self.assertRaisesRegex(ExportError, r"differ from eager PyTorch: 1 sample within [2-9]\.\de-06"):
            self.checked(folder, tolerance=1e-6)

    def test_graphs_that_do_not_run_are_a_fault_of_the_export(self) -> None:
        folder = self.export(self.model, "cross_entropy", self.batch)
        weights = load_file(folder / "weights.safetensors")
        save_file({**weights, "head.weight": weights["head.weight"][:, :-1].contiguous()}, folder / "weights.safetensors")
        with self.assertRaisesRegex(ExportError, "graphs do not run with 1 sample .*RuntimeError.*fault of the export"):
            self.checked(folder, tolerance=1)

    def test_float64_is_asked_only_where_something_differs(self) -> None:
        with mock.patch("harmony_export.check.in_float64", side_effect=AssertionError("it is asked")):
            folder = self.export(self.model, "cross_entropy", self.batch)
            self.checked(folder, tolerance=1e-6)

    def test_float64_is_that_of_casts_and_constants_too(self) -> None:
        x = torch.rand(4, 8)
        with in_float64(self.model):
            y = functional.softmax(self.model(x.double()).float(), dim=-1, dtype=torch.float32) + torch.ones(5)
            self.assertIs(y.to(torch.float32).dtype, torch.float64)
            wanted = functional.softmax(self.model(x.double()), dim=-1) + 1
        self.assertTrue(torch.equal(y, wanted))

    def test_float64_knows_products_of_groups(self) -> None:
        rows, weights, ends = torch.rand(5, 16), torch.rand(3, 16, 8), torch.tensor([2, 2, 5], dtype=torch.int32)
        with in_float64(self.model):
            exact = functional.grouped_mm(rows.double(), weights.double(), offs=ends)
        self.assertIs(exact.dtype, torch.float64)
        self.assertTrue(torch.allclose(exact.float(), torch.cat([rows[:2] @ weights[0], rows[2:] @ weights[2]])))

    def test_where_float64_has_no_kernel_rounding_is_not_known(self) -> None:
        folder = self.export(self.model, "cross_entropy", self.batch)
        with mock.patch("harmony_export.check.in_float64", side_effect=RuntimeError("no kernel")):
            with self.assertRaisesRegex(ExportError, r"not run in float64 \(RuntimeError: no kernel\): .* larger tolerance"):
                self.checked(folder, tolerance=0)


if __name__ == "__main__":
    unittest.main()
