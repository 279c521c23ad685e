"""Dropout by counter-based numbers, and labels of which not all count."""

from __future__ import annotations

import json
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as functional
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import support  # first: it says where harmony_export is

import eager
import make_models
from harmony_export.dropout import Drawing, Place, _attention, applied, draw, sample_keys, switched_off
from harmony_export.errors import ExportError
from harmony_export.losses import loss_call


def document(folder: Path) -> Any:
    """What model.json says."""
    return json.loads((folder / "model.json").read_text())


def vectors(samples: int = 4) -> dict[str, Tensor]:
    """Noise with labels."""
    return {"x": torch.randn(samples, 8), "labels": torch.arange(samples) % 5}


def masks_of(folder: Path) -> list[list[tuple[int, float]]]:
    """By layer, the numbers and probabilities of the dropouts in its forward."""
    found = []
    for layer in document(folder)["layers"]:
        phases = json.loads((folder / "graphs" / f"{layer['graph']}.json").read_text())["phases"]
        ops = phases["fused" if "fused" in phases else "forward"]["ops"]
        masks = [op["arguments"] for op in ops if op["op"] == "harmony::dropout_mask"]
        found.append([(arguments[2], float(arguments[5]["float"])) for arguments in masks])
    return found


class Attention(nn.Module):
    """Attention of PyTorch's own, which drops weights, with a feed-forward network."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.25, batch_first=batch_first)
        self.batch_first = batch_first

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x) if self.batch_first else self.block(x.transpose(0, 1)).transpose(0, 1)


class Skipping(nn.Module):
    """Skips layers at random, and drops values itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(2))
        self.head = nn.Linear(8, 5)
        self.layerdrop = 0.5

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            probability = torch.rand([])
            if self.training and probability < self.layerdrop:
                continue
            x = functional.dropout(layer(x), 0.25, self.training)
        to_drop = torch.rand([]) > self.layerdrop
        return self.head(functional.dropout(x, 0.5, self.training) if to_drop else x)


class Dropout(support.ExportTest):
    def test_the_numbers_are_philox_and_the_right_share_is_kept(self) -> None:
        keys = torch.tensor([0x0123456789ABCDEF, -3, 0])
        mask = draw(keys, 7, 2, [3, 40, 50], 0, 0.3)
        self.assertAlmostEqual(float(mask.float().mean()), 0.7, delta=0.02)
        # The numbers that worker_graphs_test has, too.
        self.assertEqual("".join(str(int(kept)) for kept in mask[0].flatten()[:32]), "11111001101111101011111011110110")
        self.assertEqual("".join(str(int(kept)) for kept in mask[1].flatten()[:32]), "11101110101010101010101110011011")
        alone = draw(keys[1:2], 7, 2, [1, 40, 50], 0, 0.3)
        self.assertTrue(torch.equal(alone[0], mask[1]), "a sample's mask does not depend on the others")
        turned = draw(keys, 7, 2, [40, 3, 50], 1, 0.3)
        self.assertTrue(torch.equal(turned, mask.transpose(0, 1)))
        self.assertFalse(torch.equal(draw(keys, 8, 2, [3, 40, 50], 0, 0.3), mask))
        self.assertFalse(torch.equal(draw(keys, 7, 1, [3, 40, 50], 0, 0.3), mask))

    def test_the_keys_are_those_of_the_workers(self) -> None:
        # derived_inputs_test.cc has the same.
        self.assertEqual(int(sample_keys(42, 7, 6)[5]) % 2**64, 0xB7ACA4C152ACF572)

    def test_it_is_eager_pytorchs_with_those_numbers(self) -> None:
        blocks = [nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Dropout(0.25), nn.Dropout(0.5, inplace=True))
                  for _ in range(3)]
        folder = self.export(nn.Sequential(*blocks, nn.Linear(8, 5)), "cross_entropy", vectors(), dropout=True)
        self.assertEqual(masks_of(folder), [[(0, 0.25), (1, 0.5)]] * 3 + [[]])
        made = document(folder)
        self.assertEqual(len(made["graphs"]), 3, "layers that drop alike share a graph")
        self.assertIn("to the last bit; 2 samples to the last bit", self.lines[-1])
        self.assertEqual([entry["name"] for entry in made["inputs"] if entry.get("derived") == "sample_keys"],
                         ["sample_keys"])
        slots = [["input", 2] in layer["slots"] for layer in made["layers"]]
        self.assertEqual(slots, [True, True, True, False])

    def test_attention_drops_weights_whichever_dimension_has_the_samples(self) -> None:
        for batch_first in (True, False):
            with self.subTest(batch_first=batch_first):
                model = nn.Sequential(*[Attention(batch_first) for _ in range(2)], nn.Flatten(), nn.Linear(48, 5))
                folder = self.export(model, "cross_entropy", {"x": torch.randn(4, 6, 8), "labels": torch.arange(4)},
                                     dropout=True)
                self.assertEqual([len(masks) for masks in masks_of(folder)], [4, 4, 0])

    def test_channels_are_dropped_as_a_whole(self) -> None:
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Dropout2d(0.5), nn.Conv2d(4, 4, 3), nn.Flatten(),
                              nn.Linear(64, 5))
        folder = self.export(model, "cross_entropy", {"x": torch.randn(4, 3, 8, 8), "labels": torch.arange(4)},
                             dropout=True)
        self.assertEqual(sum(masks_of(folder), []), [(0, 0.5)])

    def test_models_of_transformers_drop_as_their_configurations_say(self) -> None:
        from harmony_export.tasks import hugging_face

        try:
            import transformers
        except ImportError:
            self.skipTest("transformers is not installed")
        config = transformers.BertConfig(**make_models.BERT, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.2)
        task = hugging_face(config, "masked-lm", sequence_length=12, attention_mask=True)
        folder = self.export(task.model, task.loss, task.sample_batch, values_below=task.values_below, dropout=True)
        self.assertEqual(masks_of(folder)[1], [(0, 0.2), (1, 0.1), (2, 0.1)])

    def test_attention_that_drops_is_that_of_pytorch(self) -> None:
        torch.manual_seed(2)
        q, k, v = (torch.randn(2, 3, 5, 4) for _ in range(3))
        mask = torch.rand(2, 1, 5, 5) < 0.6
        mask[1, :, 2] = False  # looks at nothing
        drawing = Drawing(torch.arange(2), [Place(0, 0, 0)] * 2)
        with mock.patch.object(drawing, "mask", lambda shape, p: torch.ones(shape)):
            ours = _attention(drawing)
            with applied(drawing):
                for given in ({"attn_mask": mask}, {"is_causal": True}, {"attn_mask": mask.float() - 1, "scale": 0.3}):
                    found = ours(q, k, v, dropout_p=0.5, **given)
                    expected = functional.scaled_dot_product_attention(q, k, 2 * v, **given)
                    self.assertLess(float((found - expected).abs().max()), 1e-6)

    def test_padding_that_looks_at_nothing(self) -> None:
        from harmony_export.tasks import hugging_face

        try:
            import transformers
        except ImportError:
            self.skipTest("transformers is not installed")
        config = transformers.GPT2Config(vocab_size=64, n_positions=12, n_embd=16, n_layer=2, n_head=2)
        task = hugging_face(config, "causal-lm", sequence_length=12, attention_mask=True)
        self.export(task.model, task.loss, task.sample_batch, values_below=task.values_below, dropout=True)
        self.assertNotIn("nan", self.lines[-1])

    def test_an_input_that_is_dropped_once_is_the_same_for_all_layers(self) -> None:
        class Dense(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.blocks = nn.ModuleList(nn.Linear(8 * (1 + (i > 0)), 8) for i in range(3))
                self.head = nn.Linear(8, 5)

            def forward(self, x: Tensor) -> Tensor:
                x = functional.dropout(x, 0.5, self.training)
                y = self.blocks[0](x)
                for block in self.blocks[1:]:
                    y = block(torch.cat([y, x], 1))
                return self.head(y)

        folder = self.export(Dense(), "cross_entropy", vectors(), dropout=True)
        self.assertEqual(len(sum(masks_of(folder), [])), 1)

    def test_with_checkpoints_of_ones_own(self) -> None:
        class Checkpointed(nn.Module):
            def __init__(self, reentrant: bool) -> None:
                super().__init__()
                self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)) for _ in range(2))
                self.head = nn.Linear(8, 5)
                self.reentrant = reentrant

            def forward(self, x: Tensor) -> Tensor:
                for block in self.blocks:
                    x = checkpoint(block, x, use_reentrant=self.reentrant)
                return self.head(x)

        for reentrant in (True, False):
            with self.subTest(reentrant=reentrant):
                self.export(Checkpointed(reentrant), "cross_entropy", vectors(), dropout=True)

    def test_what_cannot_be_drawn_so_is_switched_off_and_named(self) -> None:
        model = nn.Sequential(nn.Linear(8, 8), nn.AlphaDropout(0.5), nn.Linear(8, 5))
        folder = self.export(model, "cross_entropy", vectors(), dropout=True)
        self.assertEqual(self.lines[0], "not applied: AlphaDropout.p")
        self.assertEqual(sum(masks_of(folder), []), [])
        self.assertEqual(model[1].p, 0.5)

    def test_layers_that_would_skip_themselves_are_always_there_and_drop_as_before(self) -> None:
        model = Skipping()
        folder = self.export(model, "cross_entropy", vectors(), dropout=True)
        self.assertEqual(self.lines[0], "not applied: Skipping.layerdrop")
        self.assertEqual(sorted(p for _, p in sum(masks_of(folder), [])), [0.25, 0.25, 0.5])
        self.assertEqual((model.layerdrop, type(model.layerdrop), model.training), (0.5, float, True))

    def test_of_a_configuration_is_named_what_is_not_applied(self) -> None:
        try:
            import transformers
        except ImportError:
            self.skipTest("transformers is not installed")
        from harmony_export.tasks import hugging_face

        small = {"image_size": 16, "patch_size": 2, "embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2], "window_size": 2}
        for dropout in (True, False):
            config = transformers.SwinConfig(**small, drop_path_rate=0.3, hidden_dropout_prob=0.1)
            hugging_face(config, "image-classification", dropout=dropout, report=self.lines.append)
        self.assertEqual(self.lines, ["not applied: SwinConfig.drop_path_rate"])
        config = transformers.SwinConfig(**small, drop_path_rate=0.0, problem_type="multi_label_classification")
        with self.assertRaisesRegex(ExportError, "problem_type multi_label_classification, and this task trains one class"):
            hugging_face(config, "image-classification", report=self.lines.append)
        experts = transformers.MixtralConfig(vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
                                             num_attention_heads=2, num_key_value_heads=2, num_local_experts=2,
                                             output_router_logits=True)
        hugging_face(experts, "causal-lm", sequence_length=4, fake=True, report=self.lines.append)
        self.assertEqual(self.lines.pop(),
                         "not applied: the loss that balances experts (MixtralConfig.output_router_logits)")
        config = transformers.BartConfig(vocab_size=50, d_model=16, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=32,
                                         decoder_ffn_dim=32, encoder_attention_heads=2, decoder_attention_heads=2,
                                         max_position_embeddings=16, dropout=0.1, encoder_layerdrop=0.1)
        model = hugging_face(config, "seq2seq", sequence_length=6, report=self.lines.append).model
        self.assertEqual(self.lines[1:], ["not applied: BartConfig.encoder_layerdrop"])
        with switched_off(model, everything=False):
            self.assertTrue(all(module.training for module in model.modules()))
            self.assertIs(torch.rand([]) < model.model.encoder.layerdrop, False)

    def test_values_that_belong_to_no_sample_are_refused(self) -> None:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 5)

            def forward(self, x: Tensor) -> Tensor:
                return self.last(functional.linear(x, functional.dropout(self.first.weight)))

        with self.assertRaisesRegex(Exception, "no dimension counts the samples"):
            self.export(Model(), "cross_entropy", vectors(), dropout=True)


class Shifted(nn.Module):
    """A language model with a loss of its own: the labels are the tokens after each one."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.head = nn.Linear(8, 20)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        x = self.embed(input_ids)
        for block in self.blocks:
            x = torch.relu(block(x))
        logits = self.head(x)[:, :-1]
        return functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-1)


class Labels(support.ExportTest):
    def test_labels_that_do_not_count_are_left_out_of_the_mean_of_the_whole_batch(self) -> None:
        torch.manual_seed(3)
        ids = torch.randint(0, 20, (6, 7))
        labels = ids.masked_fill(torch.rand(6, 7) < 0.5, -1)
        labels[0:2, 1:] = -1  # a microbatch without any
        batch = {"input_ids": ids, "labels": labels}
        model = Shifted()
        folder = self.export(model, None, {"input_ids": ids, "labels": ids})
        loss = document(folder)["loss"]
        self.assertEqual(loss, {"reduction": "sum", "labels_per_sample": 6,
                                "counted": {"input": 1, "first": 1, "ignored": -1}})
        call = loss_call(model, None, batch)
        whole = float(call(model, batch).detach())
        losses, state = eager.train(model, call, [batch], 3, eager.Sgd(model, 0.5), document(folder))
        found_losses, found = support.train(folder, [batch], 3, 0.5)
        self.assertEqual(losses, found_losses)
        self.assertAlmostEqual(losses[0], whole, places=5)
        for name, tensor in state.items():
            self.assertTrue(torch.equal(tensor, found[name]), name)

    def test_all_labels_of_a_classifier_are_looked_at(self) -> None:
        layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 5))
        self.assertEqual(document(self.export(layers, "cross_entropy", vectors()))["loss"],
                         {"reduction": "sum", "labels_per_sample": 1,
                          "counted": {"input": 1, "first": 0, "ignored": -100}})

    def test_labels_of_any_kind_are_counted_as_the_loss_counts_them(self) -> None:
        layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 300))
        one = {"first": 0, "input": 1}
        cases = {
            "none of class 0": (lambda r, b: functional.cross_entropy(r, b["labels"], ignore_index=0), 0),
            "small": (lambda r, b: functional.cross_entropy(r, b["labels"].long(), ignore_index=-1), -1),
        }
        for name, (loss, ignored) in cases.items():
            with self.subTest(name):
                batch = vectors() | {"labels": torch.arange(4, dtype=torch.int8 if name == "small" else torch.int64)}
                self.assertEqual(document(self.export(layers, loss, batch))["loss"]["counted"],
                                 {**one, "ignored": ignored})

    def test_labels_that_are_changed_on_their_way_are_not_counted(self) -> None:
        def masked_in_place(result: Tensor, batch: Any) -> Tensor:
            labels = batch["labels"].clone()
            labels[:1] = -100
            return functional.cross_entropy(result, labels)

        layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 300))
        losses = {
            "by value": lambda r, b: functional.cross_entropy(r, b["labels"].masked_fill(b["labels"] == 150, -100)),
            "clamped": lambda r, b: functional.cross_entropy(r, b["labels"].clamp(min=0)),
            "shifted": lambda r, b: functional.cross_entropy(r, b["labels"] + 1),
            "in place": masked_in_place,
        }
        for name, loss in losses.items():
            with self.subTest(name):
                made = document(self.export(layers, loss, vectors(), check=name != "in place"))
                self.assertEqual(made["loss"], {"reduction": "mean", "labels_per_sample": 1})
                self.assertIn("labels are not counted", "".join(self.lines))

    def test_other_losses_are_means_over_what_there_is(self) -> None:
        layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 5))
        weight = torch.tensor([1.0, 2, 3, 4, 5])
        losses = {
            "weighted": lambda result, batch: functional.cross_entropy(result, batch["labels"], weight),
            "scaled": lambda result, batch: functional.cross_entropy(result, batch["labels"]) * 2,
            "made": lambda result, batch: functional.cross_entropy(result, torch.where(
                batch["labels"] > 1, result.argmax(1), batch["labels"])),
        }
        for name, loss in losses.items():
            with self.subTest(name):
                made = document(self.export(layers, loss, vectors()))
                self.assertEqual(made["loss"], {"reduction": "mean", "labels_per_sample": 1})
                self.assertEqual([entry["name"] for entry in made["inputs"]], ["x", "labels"])

    def test_labels_are_bounded_where_those_that_do_not_count_are_known(self) -> None:
        class Both(Shifted):
            """Its labels are inputs as well, as those of a decoder are."""

            def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
                return super().forward(input_ids + labels.clamp(min=0) % 2, labels)

        def bounds(model: nn.Module, loss: Any, batch: dict[str, Tensor]) -> list[int]:
            made = document(self.export(model, loss, batch, check=False))
            return [entry["values_below"] for entry in made["inputs"] if entry["name"] in batch]

        layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 5))
        ids = torch.randint(0, 19, (4, 7))
        self.assertEqual(bounds(layers, "cross_entropy", vectors()), [0, 5])
        self.assertEqual(bounds(Shifted(), None, {"input_ids": ids, "labels": ids}), [20, 20])
        self.assertEqual(bounds(Both(), None, {"input_ids": ids, "labels": ids}), [0, 0])
        losses = {"weighted": lambda r, b: functional.cross_entropy(r, b["labels"], torch.arange(1.0, 6.0)),
                  "of two terms": lambda r, b: functional.cross_entropy(r, b["labels"]) + 0.1 * r.square().mean()}
        for name, loss in losses.items():
            with self.subTest(name):
                self.assertEqual(bounds(layers, loss, vectors()), [0, 0])

    def test_labels_may_be_probabilities(self) -> None:
        layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 5))
        batch = {"x": torch.randn(4, 8), "labels": torch.softmax(torch.randn(4, 5), 1)}
        smooth = nn.CrossEntropyLoss(torch.arange(1.0, 6.0), label_smoothing=0.1)
        for loss in ("cross_entropy", lambda result, batch: smooth(result, batch["labels"])):
            self.lines.clear()
            self.export(layers, loss, batch)
            self.assert_bits_of_eager()

    def test_of_a_loss_that_is_no_mean_over_samples_it_is_said(self) -> None:
        def masked(result: Tensor, batch: Any) -> Tensor:
            return ((result - batch["target"]).square() * batch["mask"]).sum() / batch["mask"].sum()

        def contrasted(result: Tensor, batch: Any) -> Tensor:
            return functional.mse_loss(result - result.mean(0), batch["target"])

        def paired(result: Tensor, batch: Any) -> Tensor:
            products, own = result @ batch["target"].t(), torch.arange(len(result))
            return (functional.cross_entropy(products, own) + functional.cross_entropy(products.t(), own)) / 2

        batch = {"x": torch.randn(4, 8), "target": torch.randn(4, 5), "mask": torch.ones(4, 5)}
        batch["mask"][0, 1:] = 0
        images = {"x": torch.randn(4, 8), "labels": torch.tensor([1, -100, 2, 3])}
        layers = [nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 5)]
        norm = [nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 5)]
        without = {name: batch[name] for name in ("x", "target")}
        sequences = {"x": torch.randn(4, 3, 8), "labels": torch.randint(0, 5, (4, 3))}
        sequences["labels"][0, :2] = -100
        squares = lambda r, b: functional.mse_loss(r, b["target"])
        cases = [("masked", layers, masked, batch, True), ("contrasted", layers, contrasted, without, True),
                 ("paired", layers, paired, without, True),
                 ("masked, with BatchNorm", norm, masked, batch, True), ("with BatchNorm", norm, squares, without, False),
                 ("a mean", layers, squares, without, False), ("labels", layers, "cross_entropy", sequences, False),
                 ("no labels", layers, "cross_entropy", images, False)]
        for name, modules, loss, data, is_said in cases:
            with self.subTest(name):
                self.lines.clear()
                self.export(nn.Sequential(*modules), loss, data)
                self.assertEqual(any("is not the mean of its samples' losses" in line for line in self.lines), is_said)


if __name__ == "__main__":
    unittest.main()
