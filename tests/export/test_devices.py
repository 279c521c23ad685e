"""Graphs have nothing in them about the device that they were traced on. support.py looks for operators that GPUs lack in
whatever a test exports."""

from __future__ import annotations

import json
import unittest

import torch
from torch import Tensor, fx, nn

import support  # first: it says where harmony_export is

import make_models
from harmony_export import devices, faithful

aten = torch.ops.aten


class Devices(support.ExportTest):
    def test_attention_is_an_operation_of_any_device(self) -> None:
        for name in ("mixtral", "t5", "translator"):  # other tests export more
            with self.subTest(name):
                found = support.operators(self.export_case(make_models.make(name), check=False))
                self.assertLessEqual({"harmony::attention", "harmony::attention_backward"}, found)
                self.assertEqual([op for op in found if any(kind in op for kind in ("cpu", "mkldnn", "cuda"))], [])

    def test_causal_attention_has_no_mask_where_eager_has_none(self) -> None:
        """With one, GPUs have no fused kernel for it."""
        for name in ("gpt2", "llama"):
            folder = self.export_case(make_models.make(name), check=False)
            graphs = [json.loads(file.read_text()) for file in (folder / "graphs").iterdir()]
            calls = [op["arguments"] for graph in graphs for phase in graph["phases"].values() for op in phase["ops"]
                     if op["op"] == "harmony::attention"]
            self.assertTrue(calls)
            for arguments in calls:
                self.assertEqual(arguments[3:5], [{"bool": True}, None], name)

    def test_norms_of_narrow_inputs_leave_one_type_on_all_devices(self) -> None:
        """Of ATen's, a GPU's layer norm leaves other types, and its norms take no parameters in another type."""
        class Instance(nn.Module):
            def __init__(self, affine: bool) -> None:
                super().__init__()
                self.body, self.norm, self.head = nn.Conv2d(3, 8, 3), nn.InstanceNorm2d(8, affine=affine), nn.Linear(8, 5)

            def forward(self, x: Tensor) -> Tensor:
                y: Tensor = self.head(torch.relu(self.norm(self.body(x))).mean((2, 3)))
                return y

        def instance(affine: bool) -> make_models.Case:
            batch = {"x": torch.randn(4, 3, 8, 8), "labels": torch.arange(4)}
            return make_models.Case(Instance(affine), "cross_entropy", batch)

        norms = {"layer_norm", "group_norm", "batch_norm"}
        for name, case, dtype, ours in (
                ("gpt2", make_models.make("gpt2"), "bf16", "layer"), ("unet", make_models.make("unet"), "autocast", "group"),
                ("affine", instance(True), "bf16", "batch"), ("plain", instance(False), "bf16", "batch"),
                ("plain", instance(False), "autocast", "batch")):
            with self.subTest(name, dtype=dtype):
                folder = self.export_case(case, check=ours == "batch", dtype=dtype)
                found = support.operators(folder)
                self.assertLessEqual({f"harmony::{ours}_norm", f"harmony::{ours}_norm_backward"}, found)
                model = json.loads((folder / "model.json").read_text())
                seen = set()
                for graph in model["graphs"]:
                    phases = json.loads((folder / "graphs" / f"{graph['graph']}.json").read_text())["phases"]
                    if "saving" not in phases:
                        continue
                    made = {result for op in phases["saving"]["ops"] if op["op"].partition("::")[2].removeprefix("native_") in norms
                            for result in op["results"][1:]}
                    statistics = [out["index"] for out in phases["saving"]["outputs"]
                                  if out["kind"] == "saved" and out["value"] in made]
                    seen |= {graph["saved"][index]["dtype"] for index in statistics}
                self.assertEqual(seen, {"float32"})

    def test_copies_that_a_gpu_needs_of_what_a_norm_reads_are_counted(self) -> None:
        def copies(kind: str, parameters: torch.dtype | None, x: torch.dtype = torch.bfloat16) -> tuple[int, int]:
            graph = fx.Graph()

            def given(dtype: torch.dtype | None, *shape: int) -> fx.Node | None:
                node = graph.placeholder("x") if dtype else None
                if node is not None:
                    node.meta["val"] = torch.empty(shape, dtype=dtype)
                return node

            image, weight, statistics = given(x, 2, 4, 8), given(parameters, 4), given(torch.float32, 2, 1)
            sizes = [2, 4, 8, 2] if kind == "group" else []
            shape = [] if kind == "group" else [[8]]
            forward = getattr(aten, f"native_{kind}_norm").default
            backward = getattr(aten, f"native_{kind}_norm_backward").default
            bias = [] if kind == "group" else [weight]
            return (devices.copies_in_float32(graph.call_function(forward, (image, *shape, weight, weight, *sizes, 1e-5))),
                    devices.copies_in_float32(graph.call_function(backward, (
                        image, image, *shape, statistics, statistics, weight, *bias, *sizes, [True] * 3))))

        self.assertEqual(copies("layer", torch.float32), (2, 3))
        self.assertEqual(copies("group", torch.float32), (2, 3))
        for parameters in (torch.bfloat16, None):
            self.assertEqual(copies("layer", parameters), (0, 0))
        self.assertEqual(copies("layer", torch.float32, torch.float32), (0, 0))

    def test_what_has_another_shape_on_gpus_is_not_saved(self) -> None:
        class Frozen(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.body, self.norm, self.head = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 5)

            def forward(self, x: Tensor) -> Tensor:
                y: Tensor = self.head(nn.functional.logsigmoid(self.norm(self.body(x))).mean((2, 3)))
                return y

        model = Frozen().train()
        model.norm.eval()
        folder = self.export(model, "cross_entropy", {"x": torch.randn(4, 3, 8, 8), "labels": torch.arange(4)}, cuts=["head"])
        phases = [json.loads(file.read_text())["phases"] for file in (folder / "graphs").iterdir()]
        first = next(graph for graph in phases if "saving" in graph)
        made = {op["op"]: op for op in first["backward"]["ops"]}
        self.assertIn("aten::log_sigmoid_forward", made)
        self.assertEqual(made["aten::native_batch_norm_backward"]["arguments"][5:7], [None, None])
        for graph in json.loads((folder / "model.json").read_text())["graphs"]:
            self.assertNotIn("0", [extent for saved in graph["saved"] for extent in map(str, saved["shape"])])

    def test_positions_with_a_row_for_each_sample_may_be_packed(self) -> None:
        asked = []
        find = faithful._packed_as_in_eager(lambda positions: asked.append(positions))
        row = torch.arange(4).unsqueeze(0)
        for model_s_own in (row, row.expand(3, -1)):
            self.assertIsNone(find(model_s_own))
        self.assertEqual(asked, [])
        of_a_batch = row.repeat(3, 1)
        find(of_a_batch)
        self.assertIs(asked[0], of_a_batch)

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
