"""Models under torch.autocast, by their own code or by the training loop that they are exported for."""

from __future__ import annotations

import contextlib
import io
import json
import unittest
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as functional
from safetensors.torch import load_file
from torch import Tensor, nn

import support  # first: it says where harmony_export is

import autocast_models
import make_models
from harmony_export import ExportError, without_memory
from harmony_export.cli import main

BATCH = {"x": torch.randn(4, 8), "labels": torch.randint(0, 5, (4,))}


def mlp() -> nn.Module:
    """Matrices, a norm and the loss: what autocast casts to bfloat16, reads as it is, and casts to float32."""
    return nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 5))


class Inside(nn.Module):
    """Computes inside of a region."""

    def __init__(self, region: Callable[[], Any]) -> None:
        super().__init__()
        self.layers = mlp()
        self.region = region

    def forward(self, x: Tensor) -> Tensor:
        with self.region():
            return self.layers(x)


class OfWeights(nn.Module):
    """Reads weights through views, and one of them twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.both = (nn.Parameter(torch.randn(8, 8)) for _ in range(3))
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.einsum("nc,dc->nd", x @ self.first.T, self.second)
        return self.head(x @ self.both + x @ self.both[:, 0].unsqueeze(1))


class Attention(nn.Module):
    """Drops weights of attention, of which autocast casts what the whole operation takes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(8, 2, 16, 0.2, batch_first=True) for _ in range(2))
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


class Autocast(support.ExportTest):
    def types(self, folder: Path) -> dict[str, str]:
        return {entry["name"]: entry["dtype"] for entry in json.loads((folder / "model.json").read_text())["parameters"]}

    def narrow(self, folder: Path) -> set[str]:
        """The parameters in bfloat16."""
        return {name for name, dtype in self.types(folder).items() if dtype == "bfloat16"}

    def exact(self, model: nn.Module, loss: Any = "cross_entropy", batch: Any = None, **options: Any) -> Path:
        """Exported, and the check found the bits of eager PyTorch."""
        folder = self.export(model, loss, batch or BATCH, **options)
        self.assertNotIn("within", self.lines[-1])
        self.assertIn("to the last bit", self.lines[-1])
        return folder

    def test_weights_that_are_cast_are_copies_of_masters(self) -> None:
        model = mlp()
        folder = self.exact(model, dtype="autocast", cuts=["1", "2"])
        self.assertEqual(self.narrow(folder), {"0.weight", "0.bias", "2.weight", "2.bias"})
        stored = load_file(folder / "weights.safetensors")
        for name, tensor in model.state_dict().items():
            self.assertTrue(stored[name].equal(tensor), name)
        document = json.loads((folder / "model.json").read_text())
        self.assertEqual([value["dtype"] for value in document["values"]], ["bfloat16", "bfloat16"])
        self.assertEqual(document["inputs"][0]["dtype"], "float32")
        casts = [self.casts(folder, layer["graph"]) for layer in document["layers"]]
        # Of the batch input; none; of the logits for the loss, and of their gradient.
        self.assertEqual(casts, [{"forward": 1, "saving": 1}, {}, {"fused": 2}])

    @staticmethod
    def casts(folder: Path, graph: str) -> dict[str, int]:
        phases = json.loads((folder / "graphs" / f"{graph}.json").read_text())["phases"]
        counts = {name: Counter(op["op"] for op in phase["ops"])["aten::_to_copy"] for name, phase in phases.items()}
        return {name: count for name, count in counts.items() if count}

    def test_a_region_in_the_model_counts_with_every_dtype(self) -> None:
        def narrow(region: Callable[[], Any], dtype: str = "fp32") -> int:
            return len(self.narrow(self.exact(Inside(region), dtype=dtype, cuts=["layers.1", "layers.2"])))

        prepared = autocast_models.bfloat16()
        for region in (autocast_models.bfloat16, lambda: prepared, lambda: torch.autocast("cpu")):
            self.assertEqual(narrow(region), 4)
        self.assertEqual(narrow(autocast_models.bfloat16, "autocast"), 4)
        self.assertEqual(narrow(autocast_models.bfloat16, "bf16"), 6)  # with the norm's
        for region in (lambda: torch.autocast("cpu", enabled=False), lambda: torch.autocast("cuda", enabled=False)):
            self.assertEqual(narrow(region), 0)
            self.assertEqual(narrow(region, "autocast"), 0 if region().device == "cpu" else 4)

    def test_regions_within_regions_and_without_gradients(self) -> None:
        case = make_models.make("regions")
        narrow = self.narrow(self.exact(case.model, case.loss, case.batch))
        self.assertEqual(narrow, {f"blocks.{i}.{layer}.{which}" for i in (0, 1) for layer in ("queries", "keys", "out")
                                  for which in ("weight", "bias")})

    def test_a_weight_is_cast_once_in_a_region_with_a_cache(self) -> None:
        def again(*layers: str) -> set[str]:
            return {f"{layer}.{which}" for layer in layers for which in ("weight", "bias")}

        cached = self.exact(autocast_models.Repeated(cache=True), cuts=["head"])
        self.assertEqual(self.narrow(cached), again("first", "head"))
        # Of several casts the gradients are float32, and added in it.
        self.assertEqual(self.narrow(self.exact(autocast_models.Repeated(cache=False), cuts=["head"])), again("head"))

    def test_shared_and_unread_parameters(self) -> None:
        model = autocast_models.Tied()
        batch = {"x": torch.randint(0, 11, (4, 6)), "labels": torch.randint(0, 11, (4, 6))}
        folder = self.exact(model, "cross_entropy", batch, cuts=["blocks.*"])
        self.assertEqual(self.narrow(folder), {f"blocks.{i}.{which}" for i in (0, 2) for which in ("weight", "bias")})
        self.assertTrue(load_file(folder / "weights.safetensors")["unread.weight"].equal(model.unread.weight))

    def test_views_of_weights(self) -> None:
        narrow = self.narrow(self.exact(OfWeights(), dtype="autocast", cuts=["head"]))
        self.assertEqual(narrow, {"first", "second", "head.weight", "head.bias"})

    def test_dropped_attention(self) -> None:
        batch = {"x": torch.randn(4, 6, 8), "labels": BATCH["labels"]}
        self.exact(Attention(), "cross_entropy", batch, dtype="autocast", dropout=True)

    def test_losses_that_autocast_casts_within(self) -> None:
        for loss in (lambda result, batch: functional.nll_loss(functional.log_softmax(result, -1), batch["labels"]),
                     lambda result, batch: functional.l1_loss(result[:, 0], batch["labels"].float())):
            self.exact(mlp(), loss, dtype="autocast", cuts=["1", "2"])

    def test_any_length(self) -> None:
        case = make_models.make("bert")
        case.options["sequence_length"] = None
        self.exact(case.model, case.loss, case.batch, dtype="autocast", dynamic={name: 1 for name in case.batch})

    def test_without_memory(self) -> None:
        with without_memory():
            model = mlp()
        folder = self.export(model, "cross_entropy", BATCH, dtype="autocast", cuts=["1", "2"])
        self.assertEqual(len(self.narrow(folder)), 4)

    def test_what_is_refused(self) -> None:
        def region(device: str, dtype: torch.dtype) -> Inside:
            return Inside(lambda: torch.autocast(device, dtype=dtype))

        for reason, model, options in (
                (r"the model \(.*test_autocast.py:\d+\): the model computes under autocast to torch.float16. .*no scaling",
                 region("cpu", torch.float16), {}),
                ("autocast of the device 'cuda'", region("cuda", torch.bfloat16), {}),
                ("the fused loss computes in fp32, and with dtype autocast", mlp(),
                 {"dtype": "autocast", "fused_loss": True}),
                ("keep_fp32 is given, and dtype is 'autocast'", mlp(), {"dtype": "autocast", "keep_fp32": ["1.*"]}),
                ("type torch.bfloat16. .*dtype='bf16'", mlp().bfloat16(), {"dtype": "autocast"}),
                (r"gate \(.*autocast_models.py:\d+\): the model does not run in bfloat16", autocast_models.Block(8),
                 {"dtype": "bf16"})):
            with self.subTest(reason), self.assertRaisesRegex(ExportError, reason):
                batch = {"x": torch.randn(4, 6, 8), "labels": torch.zeros(4, 6, 8)}
                self.export(model, "mse_loss", batch, **options)
        with self.assertRaisesRegex(ExportError, "inside of torch.autocast. .*dtype='autocast'"), (
                torch.autocast("cpu", dtype=torch.bfloat16)):
            self.export(mlp(), "cross_entropy", BATCH)

    def test_command_line(self) -> None:
        import transformers

        transformers.GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=2, n_head=2, bos_token_id=0,
                                eos_token_id=0).save_pretrained(self.dir / "gpt2")
        words = ["hf", str(self.dir / "gpt2"), "--task", "causal-lm", "--dtype", "autocast", "-o", str(self.dir / "out")]
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            self.assertEqual(main(words), 0)
        self.assertIn("to the last bit", output.getvalue())
        types = self.types(self.dir / "out")
        self.assertEqual((types["transformer.wte.weight"], types["transformer.h.0.attn.c_attn.weight"]),
                         ("float32", "bfloat16"))


if __name__ == "__main__":
    unittest.main()
