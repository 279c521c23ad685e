"""Models that are named as the Hugging Face hub names them, from its local cache."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import unittest
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file

import support  # first of ours: it says where harmony_export is

from harmony_export.cli import main


class Hub(support.ExportTest):
    def cached(self, name: str) -> Path:
        """Puts a model into a cache; returns what HF_HOME is to be."""
        folder = self.dir / "home" / "hub" / f"models--{name.replace('/', '--')}"
        snapshot = folder / "snapshots" / ("0" * 40)
        (folder / "refs").mkdir(parents=True)
        (folder / "refs" / "main").write_text(snapshot.name)
        config = transformers.BertConfig(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8,
                                         vocab_size=32, max_position_embeddings=8)
        transformers.BertForMaskedLM(config).save_pretrained(snapshot)
        return self.dir / "home"

    def test_a_model_in_the_cache(self) -> None:
        home, out = self.cached("someone/tiny-bert"), self.dir / "out"
        # In a process of its own, for the place of the cache is read once.
        done = subprocess.run([sys.executable, "-B", "-m", "harmony_export", "hf", "someone/tiny-bert", "--task",
                               "masked-lm", "--no-check", "-o", out], capture_output=True, text=True,
                              env={**os.environ, "HF_HOME": str(home), "PYTHONPATH": os.pathsep.join(sys.path)})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads((out / "model.json").read_text())["name"], "tiny-bert")
        name = "bert.encoder.layer.0.output.dense.weight"
        before = load_file(next(home.rglob("model.safetensors")))
        self.assertTrue(torch.equal(load_file(out / "weights.safetensors")[name], before[name]))

    def test_a_model_that_is_not_there(self) -> None:
        for name, said in (("nobody/nothing", "nor a model in the local cache .*: hf download nobody/nothing"),
                           ("./nothing", "there is no directory ./nothing"), ("a/b/c", "there is no directory a/b/c")):
            with contextlib.redirect_stderr(io.StringIO()) as printed:
                self.assertEqual(main(["hf", name, "--task", "masked-lm", "-o", str(self.dir / "out")]), 2)
            self.assertRegex(printed.getvalue(), f"^harmony-export: .*{said}")
            self.assertEqual(printed.getvalue().count("\n"), 1)


if __name__ == "__main__":
    unittest.main()
