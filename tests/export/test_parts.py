"""Single parts: cuts, boundaries, what is saved, sizes, files."""

from __future__ import annotations

import contextlib
import io
import json
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import sympy
import torch
import torch.nn.functional as functional
from torch import Tensor, nn

import support  # first: it says where harmony_export is

import make_models
import own_models
from harmony_export import ExportError
from harmony_export.cli import main
from harmony_export.costs import undominated
from harmony_export.cuts import find_cuts
from harmony_export.polynomial import LENGTH, SAMPLES, Polynomial, number
from harmony_export.symbols import by_samples
from harmony_export.tasks import torchvision


def document(folder: Path) -> Any:
    return json.loads((folder / "model.json").read_text())


def graph_of(folder: Path, digest: str) -> Any:
    return json.loads((folder / "graphs" / f"{digest}.json").read_text())


def vectors(samples: int = 4) -> dict[str, Tensor]:
    return {"x": torch.randn(samples, 8), "labels": torch.randint(0, 5, (samples,))}


class Cuts(support.ExportTest):
    def cuts(self, model: nn.Module) -> list[str]:
        return list(find_cuts(model, "auto"))

    def test_blocks(self) -> None:
        self.assertEqual(self.cuts(own_models.ResidualNetwork()), ["layer1.0", "layer1.1", "layer2.0", "layer2.1"])
        self.assertEqual(self.cuts(own_models.Mixture()), ["layers.0", "layers.1"])
        self.assertEqual(self.cuts(own_models.Translator()), [
            f"transformer.{part}.layers.{i}" for part in ("encoder", "decoder") for i in (0, 1)])

    def test_blocks_in_stages(self) -> None:
        class Stage(nn.Module):
            def __init__(self, inside: int, outside: int) -> None:
                super().__init__()
                self.blocks = nn.ModuleList([own_models.ResidualBlock(inside, outside, 1),
                                             own_models.ResidualBlock(outside, outside, 1)])

        model = nn.Module()
        model.stages = nn.ModuleList([Stage(4, 8), Stage(8, 16)])
        self.assertEqual(self.cuts(model), [f"stages.{i}.blocks.{j}" for i in (0, 1) for j in (0, 1)])

    def test_single_operations(self) -> None:
        cuts = find_cuts(own_models.PlainConvolutions(), "auto")
        self.assertEqual(cuts["features.1"], "features.0", "a norm joins its convolution")
        self.assertEqual(cuts["features.3"], "features.0", "a pool joins what comes before it")
        self.assertEqual(set(cuts.values()), {"features.0", "features.4", "features.7", "classifier.0", "classifier.3",
                                              "classifier.6"})

    def test_children_where_nothing_repeats(self) -> None:
        self.assertEqual(self.cuts(own_models.GraphNetwork()), ["conv1", "conv2", "conv3"])

    def test_patterns(self) -> None:
        folder = self.export(own_models.ResidualNetwork(), "cross_entropy", make_models.images(2, 10), check=False,
                             cuts=["layer*", "fc"])
        names = [layer["name"] for layer in document(folder)["layers"]]
        self.assertEqual(names, ["conv1", "layer1", "layer2", "fc"])


class Graphs(support.ExportTest):
    def test_equal_layers_have_one_graph(self) -> None:
        folder = self.export_case(make_models.make("mixer"), check=False)
        layers = document(folder)["layers"]
        self.assertEqual(len({layer["graph"] for layer in layers[1:-1]}), 1)
        first = {path.name: path.read_bytes() for path in (folder / "graphs").iterdir()}
        again = self.export_case(make_models.make("mixer"), check=False)
        self.assertEqual(first, {path.name: path.read_bytes() for path in (again / "graphs").iterdir()})

    def test_shapes_keep_graphs_apart(self) -> None:
        layers = [nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 5)]
        folder = self.export(nn.Sequential(*layers), "cross_entropy", vectors())
        self.assertEqual(len(document(folder)["graphs"]), 3)

    def test_saved_is_what_autograd_keeps(self) -> None:
        class Gelu(nn.Sequential):
            pass

        blocks = [Gelu(nn.Linear(8, 8), nn.GELU()) for _ in range(2)]
        folder = self.export(nn.Sequential(*blocks, nn.Linear(8, 5)), "cross_entropy", vectors())
        graph = document(folder)["graphs"][0]
        # The input of GELU. The layer's input and weights are slots, and transposed weights are made again.
        self.assertEqual(graph["saved"], [{"dtype": "float32", "shape": ["n", 8]}])

    def test_what_only_the_backward_needs_is_made_there(self) -> None:
        class Square(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.weight = nn.Parameter(torch.ones(8))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)

        folder = self.export(nn.Sequential(Square(), Square(), nn.Linear(8, 5)), "cross_entropy", vectors())
        entry = document(folder)["graphs"][0]
        # Of the first the root and the result, of the second the product by the weight and the root: not twice what was
        # squared, nor the cubes of the roots, which derivatives take.
        self.assertEqual([saved["shape"] for saved in entry["saved"]], [["n", 1], ["n", 8], ["n", 8], ["n", 1]])

    def test_backward_reads_no_statistics(self) -> None:
        folder = self.export_case(make_models.make("cnn"), check=False)
        for layer in document(folder)["layers"][:-1]:
            phases = graph_of(folder, layer["graph"])["phases"]
            statistics = {i for i, slot in enumerate(layer["slots"]) if slot[0] == "parameter"
                          and document(folder)["parameters"][slot[1]]["role"] == "statistic"}
            self.assertTrue(statistics)
            for name in ("forward", "backward"):
                read = {entry["index"] for entry in phases[name]["inputs"] if entry["kind"] == "slot"}
                self.assertTrue(statistics.isdisjoint(read), name)
            updated = {entry["index"] for entry in phases["saving"]["outputs"] if entry["kind"] == "update"}
            self.assertEqual(updated, statistics)

    def test_flops(self) -> None:
        folder = self.export(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 5)), "cross_entropy", vectors())
        self.assertEqual([graph["forward_flops"] for graph in document(folder)["graphs"]], [2 * 8 * 16, 2 * 16 * 5])

    def test_workspace_of_convolutions(self) -> None:
        """A convolution brings its kernel and its image into another order."""
        model = nn.Sequential(nn.Conv2d(2, 4, 1, bias=False), nn.Conv2d(4, 8, 3, padding=1, bias=False),
                              nn.Flatten(), nn.Linear(8 * 16, 5))
        batch = {"pixel_values": torch.randn(2, 2, 4, 4), "labels": torch.tensor([1, 4])}
        folder = self.export(model, "cross_entropy", batch)
        forward = document(folder)["graphs"][1]["workspace"]["forward"]
        self.assertEqual(forward, [[(4 + 8) * 16 * 4, 8 * 4 * 9 * 4]])

    def test_workspace(self) -> None:
        folder = self.export(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 5)), "cross_entropy", vectors())
        workspace = document(folder)["graphs"][0]["workspace"]
        self.assertEqual(workspace["forward"], [[128, 0]], "the matrix product and its activation, 16 floats each")
        self.assertEqual(workspace["saving"], [[128, 0]])
        # The saved activation counts in one of them; then the gradient behind it, and the gradients of 8 times 16
        # weights and 16 biases.
        self.assertEqual(workspace["backward"], [[64, 576], [128, 0]])
        self.assertEqual(workspace["kept_backward"], [[64, 576]])


class Boundaries(support.ExportTest):
    def values(self, forward: Callable[..., Tensor]) -> Any:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.a = nn.Linear(8, 8)
                self.b = nn.Linear(8, 8)
                self.c = nn.Linear(8, 5)

            def forward(self, x: Tensor) -> Tensor:
                return forward(self, x)

        return document(self.export(Model(), "cross_entropy", vectors()))

    def test_value_that_skips_a_layer(self) -> None:
        def forward(model: Any, x: Tensor) -> Tensor:
            x = model.a(x)
            return model.c(model.b(x) + x)

        made = self.values(forward)
        # The sum stands between the last two layers, in the part that ends with the second.
        self.assertEqual([layer["slots"][0] for layer in made["layers"]], [["input", 0], ["value", 0], ["value", 1]])

    def test_what_needs_no_gradient_is_computed_again(self) -> None:
        def forward(model: Any, x: Tensor) -> Tensor:
            mask = (x.sum(-1, keepdim=True) > 0).float()
            return model.c(model.b(model.a(x) * mask) * mask)

        made = self.values(forward)
        self.assertEqual(len(made["values"]), 2)
        self.assertEqual(sum(["input", 0] in layer["slots"] for layer in made["layers"]), 2)

    def test_value_that_does_not_grow_with_the_samples(self) -> None:
        def forward(model: Any, x: Tensor) -> Tensor:
            x = model.a(x)
            centre = x.mean(0)
            return model.c(model.b(x)) + centre[:5]

        self.assertIn(["n", 8], [value["shape"] for value in self.values(forward)["values"]])

    def test_layout_crosses(self) -> None:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.a = nn.Conv2d(3, 4, 3)
                self.norm = nn.LayerNorm(4)
                self.b = nn.Conv2d(4, 5, 3)

            def forward(self, x: Tensor) -> Tensor:
                x = self.norm(self.a(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
                return self.b(x).mean((2, 3))

        made = document(self.export(Model(), "cross_entropy", {"x": torch.randn(4, 3, 8, 8),
                                                               "labels": torch.randint(0, 5, (4,))}))
        self.assertIn(["n", 6, 6, 4], [value["shape"] for value in made["values"]], "as it lies in memory")
        self.assertIn("5 samples to the last bit", self.lines[-1])


class Roles(support.ExportTest):
    def test_roles(self) -> None:
        folder = self.export_case(make_models.make("traps"), check=False)
        roles = {entry["name"]: (entry["role"], entry["weight_decay"], entry["exported"])
                 for entry in document(folder)["parameters"]}
        self.assertEqual(roles["stem.weight"], ("trained", True, True))
        self.assertEqual(roles["stem.bias"], ("trained", False, True))
        self.assertEqual(roles["frozen.weight"], ("fixed", False, True))
        self.assertEqual(roles["unused.weight"], ("fixed", False, True))
        self.assertEqual(roles["scale"], ("fixed", False, False))
        self.assertEqual(roles["calls"], ("statistic", False, True))

    def test_tied_names_and_bounds_are_found(self) -> None:
        folder = self.export_case(make_models.make("mixture"), check=False)
        parameters = document(folder)["parameters"]
        self.assertEqual([entry["aliases"] for entry in parameters if entry["name"] == "embed.weight"],
                         [["lm_head.weight"]])
        self.assertEqual([entry["values_below"] for entry in document(folder)["inputs"]], [64, 0])

    def test_len_is_the_number_of_samples(self) -> None:
        class Means(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 5)

            def forward(self, x: Tensor) -> Tensor:
                y = self.body(x).view(len(x), 2, -1)
                result: Tensor = self.head(y.reshape(len(y), 8) - y.flatten(1).sum(0) / len(x))
                return result

        def loss(result: Tensor, data: dict[str, Tensor]) -> Tensor:
            return functional.mse_loss(result, data["wanted"], reduction="sum") / len(data["wanted"])

        self.export(Means(), loss, {"x": torch.randn(4, 8), "wanted": torch.randn(4, 5)})
        self.assertIn("to the last bit", self.lines[-1])
        self.assertEqual(len(torch.zeros(3)), 3)

    def test_model_is_left_as_it_was(self) -> None:
        model = own_models.PlainConvolutions().eval()
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        self.export(model, "cross_entropy", make_models.images(2, 10))
        self.assertIn("not applied: Dropout.p", self.lines)
        self.assertFalse(model.training)
        self.assertEqual([m.p for m in model.modules() if isinstance(m, nn.Dropout)], [0.5, 0.5])
        for name, tensor in model.state_dict().items():
            self.assertTrue(torch.equal(tensor, before[name]), name)

    def test_check_finds_a_wrong_graph(self) -> None:
        def wrong(path: Path, data: bytes) -> int:
            return write_bytes(path, data.replace(b"aten::relu", b"aten::tanh"))

        write_bytes = Path.write_bytes
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 5))
        with mock.patch.object(Path, "write_bytes", wrong):
            with self.assertRaisesRegex(ExportError, "differ from eager PyTorch"):
                self.export(model, "cross_entropy", vectors())


class Sizes(unittest.TestCase):
    def test_by_samples(self) -> None:
        n, s = SAMPLES, LENGTH
        self.assertEqual(by_samples(sympy.Integer(7)), (number(0), number(7)))
        self.assertEqual(by_samples(3 * n + 2 * (n - 1)), (number(5), number(-2)))
        self.assertEqual(by_samples(n * (s - 1) * s + s), (Polynomial((0, -1, 1)), Polynomial((0, 1))))
        for other in (n * n, n / 2, n * s / 2, n // s, sympy.Max(s, 3), n * s * s * s * s * s):
            self.assertIsNone(by_samples(other), other)

    def test_polynomials(self) -> None:
        made = Polynomial((-3, 0, 2))
        self.assertEqual((made.text(), made.text(times_n=True), made.at(4)), ("2*s*s-3", "2*n*s*s-3*n", 29))
        self.assertEqual([number(0).text(), number(5).text(), number(1).text(True)], [0, 5, "n"])
        for text in ("2*s*s-3", "s", "4*s+1", 7, 0):
            self.assertEqual(Polynomial.parse(text).text(), text)
        self.assertEqual(Polynomial.parse("2*n*s-n").at(5), 9)
        self.assertTrue(made.never_falls(2))
        self.assertFalse(made.never_falls(1))
        self.assertEqual(made - made, number(0))
        self.assertEqual(made + Polynomial((3, 1, -2)), Polynomial((0, 1)))

    def test_undominated(self) -> None:
        def of(pairs: list[tuple[int, int]]) -> list[tuple[Polynomial, Polynomial]]:
            return [(number(p), number(f)) for p, f in pairs]

        self.assertEqual(undominated(of([(1, 10), (2, 5), (1, 3), (0, 12), (0, 2)])), of([(0, 12), (1, 10), (2, 5)]))
        self.assertEqual(undominated(of([(4, 8), (3, 9), (2, 1)])), of([(4, 8)]))
        self.assertEqual(undominated([]), of([(0, 0)]))
        s, squared = Polynomial((0, 1)), Polynomial((0, 0, 1))
        self.assertEqual(undominated([(s, s), (squared, s), (number(9), number(1))]),
                         [(number(9), number(1)), (squared, s)])


class Programs(support.ExportTest):
    def config(self) -> Path:
        folder = self.dir / "tiny-llama"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "intermediate_size": 64,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 96,
            "max_position_embeddings": 64}))
        (folder / "tokenizer.json").write_text("{}")
        return folder

    def test_hf(self) -> None:
        out = self.dir / "out"
        arguments = ["hf", str(self.config()), "--task", "causal-lm", "--sequence-length", "16", "-o", str(out)]
        with contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(main(arguments), 0)
        support.format_rules.check_directory(out)
        made = document(out)
        self.assertEqual((made["name"], made["sequence_length"]), ("tiny-llama", 16))
        self.assertEqual(made["loss"], {"reduction": "sum", "labels_per_sample": 16,
                                        "counted": {"input": 1, "first": 0, "ignored": -100}})
        self.assertEqual(made["inputs"][:2], [{"name": name, "dtype": "int64", "shape": ["n", 16], "values_below": 96}
                                          for name in ("input_ids", "labels")])
        self.assertTrue((out / "config.json").is_file() and (out / "tokenizer.json").is_file())

    def test_hf_of_any_length(self) -> None:
        out = self.dir / "out"
        arguments = ["hf", str(self.config()), "--task", "causal-lm", "--sequence-length", "16", "--any-sequence-length",
                     "-o", str(out)]
        with contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(main(arguments), 0)
        support.format_rules.check_directory(out)
        made = document(out)
        self.assertEqual(made["sequence_length"], {"least": 2, "most": 64})
        self.assertEqual((made["inputs"][0]["shape"], made["loss"]["labels_per_sample"]), (["n", "s"], "s"))
        with contextlib.redirect_stderr(io.StringIO()) as printed:
            self.assertEqual(main([*arguments[:3], "image-classification", *arguments[4:]]), 2)
        self.assertIn("images have no sequence length", printed.getvalue())

    def test_without_weights(self) -> None:
        out = self.dir / "out"
        arguments = ["hf", str(self.config()), "--task", "causal-lm", "-o", str(out), "--no-weights"]
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            self.assertEqual(main(arguments), 0)
        support.format_rules.check_directory(out)
        self.assertFalse((out / "weights.safetensors").exists())
        self.assertIn("no weights are written", printed.getvalue())

    def test_torchvision(self) -> None:
        out = self.dir / "out"
        arguments = ["torchvision", "resnet18", "--loss", "cross_entropy", "--classes", "10", "--image-size", "32",
                     "-o", str(out)]
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            self.assertEqual(main(arguments), 0)
        support.format_rules.check_directory(out)
        self.assertIn("to the last bit", printed.getvalue())
        with self.assertRaisesRegex(ExportError, "has no model 'resnet19'"):
            torchvision("resnet19", "cross_entropy")

    def test_torchvision_is_asked_for(self) -> None:
        with mock.patch.dict("sys.modules", {"torchvision": None}):
            with self.assertRaisesRegex(ExportError, "torchvision is not installed"):
                torchvision("resnet18", "cross_entropy")


if __name__ == "__main__":
    unittest.main()
