"""Whole models: exported, checked, and trained by their graphs as plain PyTorch trains them."""

from __future__ import annotations

import json
import unittest

import torch

import support  # first: it says where harmony_export is

import make_models

STEPS, MICROBATCHES, SIZE, LEARNING_RATE = 2, 3, 2, 0.1
# make_models.py has more; these are quick, and no two of them are alike.
EXACT = ["mlp", "cnn", "gcn", "mixture", "traps", "repeated", "lora", "upscaler", "gpt2", "bert"]
# In bfloat16: without parameters that are shared, as PyTorch with float32 masters to the last bit.
EXACT_IN_BF16 = ["mlp", "cnn", "gpt_neox", "vit"]
# Under autocast: without layers that share a parameter which is cast, and microbatch by microbatch.
EXACT_UNDER_AUTOCAST = ["mlp", "cnn", "gat", "mixture", "gpt2", "bert"]
CLOSE = {"lstm": "eager PyTorch runs oneDNN's", "t5": "several layers add to the gradient of the encoder's result"}


class Models(support.ExportTest):
    def train_both(self, name: str, dtype: str = "fp32") -> float:
        """Exports a model, trains it in both ways; returns the largest difference of a tensor, relative to its largest
        number."""
        case = make_models.make(name)
        folder = self.export_case(case, name=name, dtype=dtype)
        losses, state = make_models.expect_sgd(case, folder, STEPS, MICROBATCHES, SIZE, LEARNING_RATE, dtype)
        batches = make_models.batches_of(case, STEPS, MICROBATCHES * SIZE)
        found_losses, found = support.train(folder, batches, MICROBATCHES, LEARNING_RATE)
        names = {alias: entry["name"] for entry in json.loads((folder / "model.json").read_text())["parameters"]
                 for alias in (entry["name"], *entry["aliases"]) if entry["exported"]}
        self.assertEqual(set(names), set(state), "the exported names are those of the state dict")
        differences = [abs(a - b) / abs(a) for a, b in zip(losses, found_losses)]
        for key, tensor in state.items():
            if not torch.equal(tensor, found[names[key]]):
                distance = (tensor.double() - found[names[key]].double()).abs().max()
                differences.append(float(distance / max(float(tensor.abs().max()), 1e-3)))
        return max(differences)

    def test_exact(self) -> None:
        for name in EXACT:
            with self.subTest(name):
                self.assertEqual(self.train_both(name), 0)

    def test_exact_in_bfloat16(self) -> None:
        for name in EXACT_IN_BF16:
            with self.subTest(name):
                self.assertEqual(self.train_both(name, "bf16"), 0)

    def test_exact_under_autocast(self) -> None:
        for name in EXACT_UNDER_AUTOCAST:
            with self.subTest(name):
                self.assertEqual(self.train_both(name, "autocast"), 0)

    def test_exact_with_regions_of_autocast_in_the_model(self) -> None:
        for dtype in ("fp32", "autocast"):
            with self.subTest(dtype):
                self.assertEqual(self.train_both("regions", dtype), 0)

    def test_close(self) -> None:
        for name in CLOSE:
            with self.subTest(name):
                self.assertLess(self.train_both(name), 1e-6)

    def test_all_can_be_made(self) -> None:
        self.assertGreaterEqual(len(make_models.MODELS), 25)
        self.assertLessEqual({*EXACT, *CLOSE}, set(make_models.MODELS))


if __name__ == "__main__":
    unittest.main()
