"""Models whose sequences may have any length: what is written for all of them is what eager PyTorch does at each."""

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
from harmony_export import ExportError
from harmony_export.check import Exactness, check
from harmony_export.dropout import switched_off
from harmony_export.losses import loss_call
from harmony_export.lengths import of_length
from harmony_export.polynomial import Polynomial

BOTH = {"input_ids": 1, "labels": 1}


class Block(nn.Module):
    """Attention and two matrices."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm = nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        samples, length, width = x.shape
        split = (samples, length, self.heads, width // self.heads)
        q, k, v = (part.view(split).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, dim=-1))
        seen = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=self.causal)
        x = x + self.out(seen.transpose(1, 2).reshape(samples, length, width))
        return x + self.dropout(self.down(functional.gelu(self.up(x))))


class Gpt(nn.Module):
    """Positions by a table of 40, and the labels of the next tokens made inside."""

    def __init__(self, longest: int = 40, width: int = 32) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(64, width), nn.Embedding(longest, width)
        self.blocks = nn.ModuleList(Block(width, 4, causal=True) for _ in range(2))
        self.head = nn.Linear(width, 64, bias=False)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        x = self.tokens(input_ids) + self.positions(torch.arange(input_ids.size(1)))
        for block in self.blocks:
            x = block(x)
        scores = self.head(x)[:, :-1]
        return functional.cross_entropy(scores.flatten(0, 1), labels[:, 1:].flatten())


class Bert(nn.Module):
    """A mask for what is padding, and positions by a slice of a buffer."""

    def __init__(self, longest: int = 40, width: int = 32) -> None:
        super().__init__()
        self.tokens = nn.Embedding(64, width)
        self.register_buffer("waves", torch.randn(1, longest, width))
        self.blocks = nn.ModuleList(Block(width, 2, causal=False) for _ in range(2))
        self.head = nn.Linear(width, 64)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.tokens(input_ids) + self.waves[:, :input_ids.shape[1]]
        for block in self.blocks:
            x = block(x, attention_mask.bool()[:, None, None, :])
        return self.head(x).transpose(1, 2)


class Biased(Bert):
    """Without positions, and without a bound for the length."""

    def forward(self, input_ids: Tensor, bias: Tensor) -> Tensor:
        x = self.tokens(input_ids)
        for block in self.blocks:
            x = block(x, bias[:, None])
        return self.head(x).transpose(1, 2)


def ids(length: int, samples: int = 3) -> dict[str, Tensor]:
    return {name: torch.randint(0, 64, (samples, length)) for name in ("input_ids", "labels")}


def document(folder: Path) -> Any:
    return json.loads((folder / "model.json").read_text())


class AnyLength(support.ExportTest):
    def exactness(self, folder: Path, model: nn.Module, loss: Any, batch: dict[str, Tensor]) -> Exactness:
        with switched_off(model):
            return check(folder, model.train(), loss_call(model, loss, batch), [batch], "mean", ())

    def test_gpt(self) -> None:
        model = Gpt()
        folder = self.export(model, None, ids(12), dynamic=BOTH)
        self.assertEqual(document(folder)["sequence_length"], {"least": 3, "most": 40})
        self.assertEqual(document(folder)["loss"]["labels_per_sample"], "s-1")
        for length in (3, 7, 40):
            found = self.exactness(folder, model, None, ids(length))
            self.assertEqual({d.error for d in found.deviations}, {0}, found)
            self.assertEqual({deviation.length for deviation in found.deviations}, {length})

    def test_bert(self) -> None:
        model = Bert()
        batch = {**ids(10), "attention_mask": (torch.rand(3, 10) < 0.8).long()}
        batch["attention_mask"][:, 0] = 1
        dynamic = {**BOTH, "attention_mask": 1}
        folder = self.export(model, "cross_entropy", batch, dynamic=dynamic)
        self.assertEqual(document(folder)["sequence_length"]["most"], 40)
        for length in (5, 31):
            other = of_length(batch, {name: [1] for name in dynamic}, length)
            self.assertLess(max(d.error for d in self.exactness(folder, model, "cross_entropy", other).deviations), 1e-7)

    def test_dropout(self) -> None:
        # The check compares with eager PyTorch at several lengths.
        folder = self.export(Gpt(), None, ids(12), dynamic=BOTH, dropout=True)
        self.assertIn("sample_keys", [entry["name"] for entry in document(folder)["inputs"]])

    def test_amounts_are_those_of_a_fixed_length(self) -> None:
        any_length = document(self.export(Gpt(), None, ids(12), dynamic=BOTH, check=False))
        for length in (6, 23):
            fixed = document(self.export(Gpt(), None, ids(length), sequence_length=length, check=False))
            self.assertEqual([layer["name"] for layer in fixed["layers"]],
                             [layer["name"] for layer in any_length["layers"]])

            def at(amount: Any) -> float:
                return Polynomial.parse(amount).at(length) if isinstance(amount, str) else amount

            for free, one in zip(any_length["graphs"], fixed["graphs"], strict=True):
                self.assertEqual(at(free["forward_flops"]), one["forward_flops"])
                self.assertEqual([[at(e) for e in saved["shape"]] for saved in free["saved"]],
                                 [[at(e) for e in saved["shape"]] for saved in one["saved"]])
                for phase, pairs in one["workspace"].items():
                    # Rounded up without knowledge of the length, so a little more.
                    for samples in (1, 8):
                        exact = max((p * samples + f for p, f in pairs), default=0)
                        bound = max((at(p) * samples + at(f) for p, f in free["workspace"][phase]), default=0)
                        self.assertLessEqual(exact, bound)
                        self.assertLessEqual(bound, exact * 1.02 + 2048)

    def test_labels_at_the_end_are_counted_from_there(self) -> None:
        class Last(Gpt):
            def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
                x = self.tokens(input_ids)
                for block in self.blocks:
                    x = block(x)
                return functional.cross_entropy(self.head(x)[:, -70:].flatten(0, 1), labels[:, -70:].flatten())

        found = document(self.export(Last(), None, ids(90), dynamic=BOTH, longest_sequence=200))
        self.assertEqual(found["sequence_length"]["least"], 70)
        self.assertEqual(found["loss"]["labels_per_sample"], 70)
        self.assertEqual(found["loss"]["counted"]["first"], "s-70")

    def test_two_dimensions_of_one_input(self) -> None:
        folder = self.export(Biased(), "cross_entropy", {**ids(9), "bias": torch.randn(3, 9, 9)},
                             dynamic={**BOTH, "bias": (1, 2)}, longest_sequence=50)
        self.assertEqual(document(folder)["sequence_length"], {"least": 2, "most": 50})
        shapes = {entry["name"]: entry["shape"] for entry in document(folder)["inputs"]}
        self.assertEqual(shapes["bias"], ["n", "s", "s"])

    def test_a_window_does_not_bound_the_length(self) -> None:
        case = make_models.hf("causal-lm", "MistralConfig", 24, **{**make_models.LLAMA, "sliding_window": 16})
        options = {key: value for key, value in case.options.items() if key != "sequence_length"}
        folder = self.export(case.model, case.loss, case.batch, **options, dynamic={key: 1 for key in case.batch})
        self.assertEqual(document(folder)["sequence_length"]["least"], 2)

    def test_models_of_transformers(self) -> None:
        for name, fused in (("gpt2", True), ("bert_masked", False)):
            case = make_models.make(name)
            options = {key: value for key, value in case.options.items() if key != "sequence_length"}
            self.export(case.model, case.loss, case.batch, **options, fused_loss=fused,
                        dynamic={key: 1 for key in case.batch})


class Refused(support.ExportTest):
    def refused(self, message: str, model: nn.Module, batch: dict[str, Tensor], dynamic: Any = None,
                **options: Any) -> None:
        with self.assertRaisesRegex(ExportError, message):
            self.export(model, None if isinstance(model, Gpt) else "cross_entropy", batch, dynamic=dynamic or BOTH,
                        **options)
        self.assertFalse((self.dir / "model").exists())

    def changed(self, function: Any) -> nn.Module:
        class Changed(Bert):
            def forward(self, input_ids: Tensor) -> Tensor:
                return self.head(function(self, self.tokens(input_ids))).transpose(1, 2)

        return Changed()

    def test_a_length_in_the_code(self) -> None:
        self.refused(r"^the model \(.*test_lengths.py:\d+\): .*fixes the length of the sequences.*without dynamic",
                     self.changed(lambda model, x: model.blocks[0](x.reshape(-1, 12, 32))), ids(12))

    def test_a_condition_on_the_length(self) -> None:
        def even(model: Any, x: Tensor) -> Tensor:
            return model.blocks[0](x * 2 if x.shape[1] % 4 == 0 else x)

        for length in (12, 13):
            with self.subTest(length):
                self.refused(r"^the model \(.*test_lengths.py:\d+\): .*depend on the length of the sequences.*s.*does not "
                             "hold for", self.changed(even), ids(length))

    def test_sizes_that_are_no_polynomials(self) -> None:
        def halved(model: Any, x: Tensor) -> Tensor:
            for block in model.blocks:
                x = block(x)
                x = torch.cat((x[:, ::2], x[:, 1::2]), dim=1)[:, :x.shape[1]]
            return x

        self.refused(r"^the model \(.*test_lengths.py:\d+\): .*length of the sequences", self.changed(halved), ids(12))

    def test_another_computation_at_one_length(self) -> None:
        # Scores of 64 classes and 64 tokens look as if classes came last.
        self.refused("does something else for sequences of 64", Biased(), {**ids(9), "bias": torch.randn(3, 9, 9)},
                     {**BOTH, "bias": (1, 2)}, longest_sequence=100)

    def test_wrong_arguments(self) -> None:
        batch = ids(12)
        self.refused("'tokens', which the sample batch does not have", Gpt(), batch, {"tokens": 1})
        self.refused("dynamic says 0 for 'labels'", Gpt(), batch, {"labels": 0})
        self.refused(r"different lengths: \[9, 12\]", Gpt(), {**batch, "labels": ids(9)["labels"]})
        self.refused("sequence_length is given, and dynamic", Gpt(), batch, sequence_length=12)
        self.refused("takes sequences of 3 to 2, so none", Gpt(), batch, longest_sequence=2)


if __name__ == "__main__":
    unittest.main()
