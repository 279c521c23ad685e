"""What the tests of the export share."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import unittest
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "client" / "export"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
from safetensors.torch import load_file
from torch import Tensor

import eager
import format_rules
import make_models
from harmony_export import export
from harmony_export.reference import ReferenceModel

torch.set_num_threads(1)

has_kernel = torch._C._dispatch_has_computed_kernel_for_dispatch_key


def operators(folder: Path) -> set[str]:
    """The names of all operators in the graphs of a directory, with their overloads."""
    files = [json.loads(path.read_text()) for path in (folder / "graphs").iterdir()]
    phases = [phase for file in files for phase in file["phases"].values()]
    return {op["op"] + ("." if op["overload"] else "") + op["overload"] for phase in phases for op in phase["ops"]}


def count_of_operators(folder: Path, *names: str) -> Counter[str]:
    """How often each is in the graphs of a directory, in all phases or in those of these names; without overloads."""
    files = [json.loads(path.read_text()) for path in (folder / "graphs").iterdir()]
    phases = [phase for file in files for name, phase in file["phases"].items() if not names or name in names]
    return Counter(op["op"] for phase in phases for op in phase["ops"])


class ExportTest(unittest.TestCase):
    """A test with a folder of its own."""

    def setUp(self) -> None:
        self.dir = Path(tempfile.mkdtemp(prefix="harmony-export-test-"))
        self.addCleanup(shutil.rmtree, self.dir)
        self.lines: list[str] = []
        self.only_on_cpu: list[str] = []  # operators that are exported although GPUs have no kernel of them
        self.other_on_gpus: list[str] = []  # those that leave something else there
        torch.manual_seed(0)

    def export(self, model: torch.nn.Module, loss: Any, batch: Mapping[str, Tensor], **options: Any) -> Path:
        """Exports into a folder, which must follow the format; what is reported goes to `lines`."""
        folder = export(model, loss, batch, out=self.dir / "model", report=self.lines.append,
                        **{"overwrite": True, "dropout": False, **options})
        format_rules.check_directory(folder)
        if has_kernel("aten::mm", "CUDA"):  # else this PyTorch cannot tell
            found = [op for op in operators(folder) if op.startswith("aten::") and not has_kernel(op, "CUDA")]
            self.assertEqual(found, self.only_on_cpu)
        lines = [line for line in self.lines if "another form on GPUs" in line]
        self.assertEqual([line.rpartition(" ")[2] for line in lines], self.other_on_gpus)
        return folder

    def assert_bits_of_eager(self) -> None:
        """Of the export's own check, by all numbers of samples."""
        check, = (line for line in self.lines if "as eager PyTorch" in line)
        self.assertEqual(check.count("to the last bit"), 3, check)

    def export_case(self, case: make_models.Case, **options: Any) -> Path:
        """Exports one of the models of make_models.py."""
        return self.export(case.model, case.loss, case.batch,
                           **{**case.options_in(options.get("dtype", "fp32")), **options})


def train(folder: Path, batches: Sequence[Mapping[str, Tensor]], microbatches: int, learning_rate: float
          ) -> tuple[list[float], dict[str, Tensor]]:
    """What eager.train does, with the graphs of a directory. The state has each tensor once, by its first name; trained
    parameters are in float32."""
    model = ReferenceModel(folder)
    # What training begins with: of parameters in bfloat16 the file has more digits.
    masters = load_file(folder / "weights.safetensors")
    losses = []
    for batch in batches:
        gradients: dict[str, Tensor] = {}
        total = 0.0
        divisor = eager.labels_in(model.document, batch) or microbatches
        for part in eager.split(batch, microbatches):
            made = model.run(part, divisor)
            total += float(made.loss) / divisor
            for name, gradient in made.gradients.items():
                gradients[name] = gradients[name] + gradient.float() if name in gradients else gradient.float()
            model.weights.update(made.statistics)
        for name, gradient in gradients.items():
            masters[name] = masters[name] - learning_rate * gradient
            model.weights[name] = masters[name].to(model.weights[name].dtype)
        losses.append(total)
    trained = {entry["name"] for entry in model.document["parameters"] if entry["role"] == "trained"}
    return losses, {name: masters[name] if name in trained else tensor for name, tensor in model.weights.items()}
