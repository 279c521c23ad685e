"""Models that compute in bfloat16, and are trained in float32."""

from __future__ import annotations

import contextlib
import io
import json
import unittest
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as functional
from safetensors.torch import load_file
from torch import Tensor, nn

import support  # first: it says where harmony_export is

import make_models
from harmony_export import ExportError, without_memory
from harmony_export.cli import main
from harmony_export.reference import ReferenceModel


def images() -> dict[str, Tensor]:
    """Noise with labels."""
    return {"pixel_values": torch.randn(4, 3, 8, 8), "labels": torch.arange(4)}


class Small(nn.Module):
    """Of everything that a type is decided for something: a norm with statistics and one without, a frozen layer, a buffer,
    and a constant."""

    def __init__(self, constant: torch.dtype | None = None) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.bn = nn.BatchNorm2d(8)
        self.frozen = nn.Conv2d(8, 8, 1).requires_grad_(False)
        self.norm = nn.LayerNorm(8)
        self.register_buffer("scale", torch.rand(8))
        self.head = nn.Linear(8, 5)
        self.constant = constant

    def forward(self, pixel_values: Tensor) -> Tensor:
        x = self.frozen(functional.relu(self.bn(self.conv(pixel_values)))).mean((2, 3))
        return self.head(self.norm(x) * self.scale * torch.ones(8, dtype=self.constant or x.dtype))


def document(folder: Path) -> Any:
    """What model.json says."""
    return json.loads((folder / "model.json").read_text())


def types(folder: Path) -> dict[str, str]:
    """Of the parameters."""
    return {entry["name"]: entry["dtype"] for entry in document(folder)["parameters"]}


class Precision(support.ExportTest):
    def narrow(self, model: nn.Module, loss: Any = "cross_entropy", batch: Any = None, **options: Any) -> Path:
        return self.export(model, loss, batch or images(), dtype="bf16", **options)

    def test_what_is_bfloat16_and_what_is_not(self) -> None:
        folder = self.narrow(Small(), cuts=["bn", "norm"])
        narrow = {name for name, dtype in types(folder).items() if dtype == "bfloat16"}
        self.assertEqual(narrow, {f"{layer}.{which}" for layer in ("conv", "frozen", "norm", "head")
                                  for which in ("weight", "bias")} | {"scale"})
        made = document(folder)
        self.assertEqual({entry["dtype"] for entry in made["values"]}, {"bfloat16"})
        self.assertEqual(made["inputs"][0]["dtype"], "float32")

    def test_the_file_has_what_training_begins_with(self) -> None:
        model = Small()
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        stored = load_file(self.narrow(model) / "weights.safetensors")
        for name, tensor in before.items():
            fixed = name.startswith(("frozen", "scale"))
            self.assertTrue(stored[name].equal(tensor.bfloat16() if fixed else tensor), name)

    def test_the_model_is_left_as_it_was(self) -> None:
        model = Small()
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        model.head.weight.grad = torch.ones(5, 8)
        self.narrow(model)
        for name, tensor in model.state_dict().items():
            self.assertEqual(tensor.dtype, before[name].dtype)
            self.assertTrue(tensor.equal(before[name]), name)
        self.assertTrue(model.head.weight.grad.equal(torch.ones(5, 8)))
        with self.assertRaises(ExportError):
            self.narrow(model, lambda result, batch: functional.cross_entropy(result, batch["labels"]))
        self.assertEqual({p.dtype for p in model.parameters()}, {torch.float32})

    def test_names_that_keep_their_type(self) -> None:
        model = Small(constant=torch.float32)
        folder = self.narrow(model, keep_fp32=["scale", "head.*"])
        self.assertEqual({types(folder)[name] for name in ("scale", "head.weight", "head.bias")}, {"float32"})
        with self.assertRaisesRegex(ExportError, "'sacle' fits no parameter or buffer"):
            self.narrow(model, keep_fp32=["sacle"])
        with self.assertRaisesRegex(ExportError, "keep_fp32 is given, and dtype is 'fp32'"):
            self.export(model, "cross_entropy", images(), keep_fp32=["scale"])

    def test_norms_that_keep_their_type_take_bfloat16(self) -> None:
        layers = [nn.Linear(8, 8), nn.LayerNorm(8), nn.GroupNorm(2, 8), nn.Linear(8, 5)]
        batch = {"x": torch.randn(4, 8), "labels": torch.arange(4)}
        folder = self.narrow(nn.Sequential(*layers), batch=batch, keep_fp32=["1.*", "2.*"], cuts=["1", "2", "3"])
        self.assertEqual({name for name, dtype in types(folder).items() if dtype == "float32"},
                         {"1.weight", "1.bias", "2.weight", "2.bias"})
        self.assertNotIn("within", self.lines[-1])
        with self.assertRaisesRegex(ExportError, "^1: .*keep_fp32, all of a module's"):
            self.narrow(nn.Sequential(*layers), batch=batch, keep_fp32=["1.weight"])

    def test_transformers_keeps_rotary_frequencies(self) -> None:
        case = make_models.make("llama")
        self.assertIn("model.rotary_emb.inv_freq", case.keep_fp32)
        folder = self.export_case(case, dtype="bf16")
        self.assertEqual({name for name, dtype in types(folder).items() if dtype == "float32"},
                         {"model.rotary_emb.inv_freq"})

    def test_models_that_are_narrow_or_have_no_memory(self) -> None:
        self.other_on_gpus = ["aten::_native_batch_norm_legit_functional"]  # whose statistics are bfloat16, too
        folder = self.narrow(Small().to(torch.bfloat16))
        self.assertEqual(load_file(folder / "weights.safetensors")["head.weight"].dtype, torch.bfloat16)
        with without_memory():
            model = Small()
        bare = self.narrow(model)
        self.assertEqual(types(bare)["head.weight"], "bfloat16")
        self.assertEqual(model.head.weight.dtype, torch.float32)

    def test_half_the_bytes_and_the_same_operations(self) -> None:
        layers = [nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 256)]
        batch = {"x": torch.randn(4, 256), "labels": torch.arange(4)}
        wide, narrow = (document(self.export(nn.Sequential(*layers), "cross_entropy", batch, dtype=dtype))["graphs"]
                        for dtype in ("fp32", "bf16"))
        for a, b in zip(wide, narrow):
            self.assertEqual(a["forward_flops"], b["forward_flops"])
        for phase in ("forward", "saving", "backward"):
            most = [max(p * 64 + f for p, f in graphs[1]["workspace"][phase]) for graphs in (wide, narrow)]
            self.assertEqual(most[1], most[0] // 2, phase)

    def test_attention_says_what_it_adds_up_in_on_gpus(self) -> None:
        def sums(key_heads: int, length: int, **options: Any) -> Any:
            config = {**make_models.LLAMA, "max_position_embeddings": length, "num_key_value_heads": key_heads}
            folder = self.export_case(make_models.hf("causal-lm", "LlamaConfig", length, **config), check=False, **options)
            return document(folder)["graphs"][1]["workspace"].get("attention_sums")

        # 130 rows of 16 numbers are filled up to 256 of 64.
        head = 4 * 256 * 64
        self.assertEqual(sums(4, 130, dtype="bf16"), [[4 * head, head]])
        self.assertEqual(sums(2, 130, dtype="bf16"), [[2 * 4 * head, head]], "heads of queries share those of keys")
        self.assertEqual(sums(4, 130), [[4 * head, 0]])
        self.assertIsNone(sums(2, 130))
        self.assertIsNone(sums(4, 127, dtype="bf16"))

    def test_convolutions_have_room_for_what_their_kernels_take(self) -> None:
        folder = self.export_case(make_models.make("convnext"), dtype="bf16", check=False)
        graphs = {entry["graph"]: entry["workspace"]["backward"] for entry in document(folder)["graphs"]}
        digest, = (layer["graph"] for layer in document(folder)["layers"] if layer["name"].endswith("stages.1.layers.1"))
        # Of 32 channels with kernels of 7 x 7, blocks of 16 x 16 for each, as numbers of fp32 and of bf16.
        self.assertGreater(max(fixed for _, fixed in graphs[digest]), 32 * 16 * 16 * 7 * 7 * 6)

    def test_any_length(self) -> None:
        case = make_models.make("bert")
        case.options["sequence_length"] = None
        self.export_case(case, dtype="bf16", dynamic={name: 1 for name in case.batch})
        self.assertIn("to the last bit", self.lines[-1])

    def test_gradients_of_uses_in_several_layers_are_summed_up_in_float32(self) -> None:
        case = make_models.make("gpt2")  # a tied table
        folder = self.export_case(case, dtype="bf16", check=False)
        made = ReferenceModel(folder).run(case.batch)
        self.assertEqual(made.gradients["transformer.wte.weight"].dtype, torch.float32)
        self.assertEqual(made.gradients["transformer.wpe.weight"].dtype, torch.bfloat16)

    def test_what_is_refused(self) -> None:
        def loss(result: Tensor, batch: Any) -> Tensor:
            return functional.cross_entropy(result, batch["labels"])

        for reason, model, options in (
                ("the fused loss computes in fp32", Small(), {"fused_loss": True}),
                (r"head \(.*test_precision.py:\d+\): the model does not run in bfloat16", Small(constant=torch.float32),
                 {}),
                ("trained and has the type torch.float64", Small().double(), {})):
            with self.subTest(reason), self.assertRaisesRegex(ExportError, reason):
                self.narrow(model, **options)
        with self.assertRaisesRegex(ExportError, "dtype is 'fp16'"):
            self.export(Small(), "cross_entropy", images(), dtype="fp16")
        with self.assertRaisesRegex(ExportError, "the loss has the type torch.bfloat16. .* logits.float()"):
            self.narrow(Small(), loss)
        for dtype in ("fp32", "bf16"):
            batch = {**images(), "pixel_values": images()["pixel_values"].bfloat16()}
            with self.assertRaisesRegex(ExportError, "'pixel_values' of the sample batch is bfloat16.*float32"):
                self.export(Small(), "cross_entropy", batch, dtype=dtype)
        with self.assertRaisesRegex(ExportError, "type torch.bfloat16. .*dtype='bf16'"):
            self.export(Small().to(torch.bfloat16), "cross_entropy", images())

    def test_command_line(self) -> None:
        import transformers

        transformers.GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=2, n_head=2, bos_token_id=0,
                                eos_token_id=0).save_pretrained(self.dir / "gpt2")
        words = ["hf", str(self.dir / "gpt2"), "--task", "causal-lm", "--dtype", "bf16", "-o", str(self.dir / "out")]
        output = io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            self.assertEqual(main(words), 0)
            self.assertEqual(main([*words, "--overwrite", "--fused-loss"]), 2)
        self.assertIn("as eager PyTorch", output.getvalue())
        self.assertIn("export in fp32", output.getvalue())
        self.assertEqual(types(self.dir / "out")["transformer.wte.weight"], "bfloat16")


if __name__ == "__main__":
    unittest.main()
