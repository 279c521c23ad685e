"""Products of matrices by the runtime's own kernel."""

from __future__ import annotations

import json
import unittest
from pathlib import Path
from typing import Any

import torch

import support  # first: it says where harmony_export is

import make_models
from harmony_export.errors import ExportError
from harmony_export.fast_products import product


def entries(folder: Path) -> list[dict[str, Any]]:
    """What model.json says of graphs, but for their names."""
    graphs = json.loads((folder / "model.json").read_text())["graphs"]
    return [{key: value for key, value in entry.items() if key != "graph"} for entry in graphs]


class FastProducts(support.ExportTest):
    def test_all_products_are_by_the_operator_and_cost_the_same(self) -> None:
        for name in ("bert_masked", "mixtral", "lstm"):
            with self.subTest(name):
                folder = self.export_case(make_models.make(name), check=False)
                before = entries(folder)
                self.assertIn("aten::mm", support.operators(folder))
                folder = self.export_case(make_models.make(name), fast_products=True)
                self.assertIn("harmony::product", support.operators(folder))
                self.assertFalse({"aten::mm", "aten::addmm"} & support.operators(folder))
                self.assertEqual(entries(folder), before)

    def test_it_is_what_eager_computes(self) -> None:
        a, b, bias = torch.randn(3, 4), torch.randn(4, 5), torch.randn(5)
        self.assertTrue(product(None, a, b).equal(a @ b))
        self.assertTrue(product(bias, a, b).equal(torch.addmm(bias, a, b)))

    def test_other_types_have_none(self) -> None:
        with self.assertRaisesRegex(ExportError, "fast products are of fp32"):
            self.export_case(make_models.make("mlp"), fast_products=True, dtype="bf16")


if __name__ == "__main__":
    unittest.main()
