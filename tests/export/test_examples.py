"""What deploy/models exports is what the jobs of deploy/jobs train."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import unittest
from pathlib import Path

import support  # first: it says where harmony_export is

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "deploy" / "models"))

import deep
import examples


class Examples(support.ExportTest):
    def test_each_has_a_job(self) -> None:
        for name in (*examples.EXAMPLES, *deep.MODELS):
            with self.subTest(name):
                job = (ROOT / "deploy" / "jobs" / f"{name}.yaml").read_text()
                self.assertIn(f"model_name_or_path: ../../build/models/{name}\n", job)

    def test_an_example_is_exported_with_the_data_of_its_job(self) -> None:
        out = self.dir / "graph"
        subprocess.run([sys.executable, "-B", examples.__file__, "graph", "--tiny", "--out", out], check=True,
                       stdout=subprocess.DEVNULL)
        inputs = [entry["name"] for entry in json.loads((out / "model.json").read_text())["inputs"]
                  if "derived" not in entry]
        files = re.findall(r"build/models/graph/(data/\S+)", (ROOT / "deploy" / "jobs" / "graph.yaml").read_text())
        self.assertEqual(sorted(files), sorted(f"data/{name}.npy" for name in inputs))
        for file in files:
            self.assertTrue((out / file).is_file(), file)


if __name__ == "__main__":
    unittest.main()
