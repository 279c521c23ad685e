"""What cannot be exported exactly is refused by name, with its place and what to change."""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import random
import re
import unittest
from collections.abc import Callable
from typing import Any

import numpy
import torch
import torch.nn.functional as functional
import transformers
from torch import Tensor, library, nn

import support  # first: it says where harmony_export is

from harmony_export import ExportError
from harmony_export.cli import main
from harmony_export.tasks import hugging_face


def lines_of(function: Callable[..., Any]) -> range:
    """The lines of this file that a function is written on."""
    lines, first = inspect.getsourcelines(function)
    return range(first, first + len(lines))


class Tripled(torch.autograd.Function):
    """Its backward is not that of its forward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 3


@library.custom_op("example::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    return x * 2


@twice.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


class Middle(nn.Module):
    """Calls a function between two matrices."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def around(function: Any) -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), Middle(function), nn.Linear(8, 5))


def branch(module: nn.Module, x: Tensor) -> Tensor:
    return x * 2 if x.sum() > 0 else x


def condition(module: nn.Module, x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda y: y * 2, lambda y: y * 3, (x,))


def centred(module: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        module.mean.mul_(0.9).add_(0.1 * x.mean(0))
    return x - module.mean


def noisy(module: nn.Module, x: Tensor) -> Tensor:
    return x + torch.randn_like(x)


def batch() -> dict[str, Tensor]:
    return {"x": torch.randn(4, 8), "labels": torch.randint(0, 5, (4,))}


class Pair(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x


class Named(nn.Module):
    """Takes what it does not name, and passes it on to nobody."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 5))

    def forward(self, x: Tensor, **more: Tensor) -> Tensor:
        return self.layers(x)


class SharedNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3))
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = self.norm(block(x))
        return x


def fixed(module: nn.Module, x: Tensor) -> Tensor:
    return x.view(4, 8)


def fixed_by_halves(module: nn.Module, x: Tensor) -> Tensor:
    return x.view(2, -1)


def fixed_by_a_loop(module: nn.Module, x: Tensor) -> Tensor:
    return torch.stack([x[i] for i in range(len(x))])


def fixed_by_a_branch(module: nn.Module, x: Tensor) -> Tensor:
    return x * 2 if x.shape[0] > 4 else x


def number(module: nn.Module, x: Tensor) -> Tensor:
    return x * x.sum().item()


def list_of_numbers(module: nn.Module, x: Tensor) -> Tensor:
    return x * sum(x.sum(0).tolist())


def broken(module: nn.Module, x: Tensor) -> Tensor:
    return x @ torch.ones(9, 8)


def loss_by_a_number(result: Tensor, data: Any) -> Tensor:
    counted = (data["labels"] != -100).sum().item()
    return functional.cross_entropy(result, data["labels"], reduction="sum") / counted


def frozen(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers).requires_grad_(False)


class Refusals(support.ExportTest):
    def refused(self, text: str, model: nn.Module, loss: Any = "cross_entropy", data: Any = None,
                **options: Any) -> ExportError:
        with self.assertRaisesRegex(ExportError, text) as caught:
            self.export(model, loss, batch() if data is None else data, **options)
        self.assertTrue(caught.exception.fix, "it says what to change")
        self.assertEqual(list(self.dir.iterdir()), [], "nothing is left behind")
        return caught.exception

    def refused_at(self, module: str, function: Callable[..., Any], error: ExportError) -> None:
        """The place is that module, and a line of that function."""
        found = re.fullmatch(rf"{module} \((.*):(\d+)\)", error.where)
        self.assertTrue(found and found[1] == __file__ and int(found[2]) in lines_of(function), error.where)

    def test_custom_function(self) -> None:
        apply = lambda _, x: Tripled.apply(x)
        self.refused_at("1", apply, self.refused("Tripled is a custom autograd.Function", around(apply)))

    def test_foreign_operator(self) -> None:
        self.refused("example.twice.default is no operator of ATen", around(lambda _, x: x + twice(x.detach())))

    def test_values_decide(self) -> None:
        self.refused_at("1", branch, self.refused("depends on the values of tensors", around(branch)))
        self.refused("depends on the values of tensors", around(condition))
        self.refused("size of .* depends on the values of tensors", around(lambda _, x: x[x > 0].sum() * x))
        for function in (number, list_of_numbers):
            self.refused_at("1", function, self.refused(r"a number is read .* without \.item\(\)", around(function)))
        layers = around(lambda _, x: x)
        self.refused_at("the loss", loss_by_a_number, self.refused("a number is read", layers, loss_by_a_number))

    def test_buffers_that_outputs_read(self) -> None:
        self.refused("buffer 1.mean is written by the forward", around(centred))
        self.refused("norm.running_mean", SharedNorm())

    def test_random_numbers(self) -> None:
        self.refused_at("1", noisy, self.refused("randn_like.default draws random numbers", around(noisy)))

    def test_random_numbers_of_others(self) -> None:
        for draw, name in ((random.random, "Python's random"), (numpy.random.rand, "numpy.random")):
            with self.subTest(name):
                self.refused(f"draws random numbers by {name}", around(lambda _, x: x * (2 if draw() > 0.5 else 3)))

    def test_tensors_that_no_directory_can_have(self) -> None:
        self.refused("0.weight: .*no shape before the model has run", nn.Sequential(nn.LazyLinear(8), nn.Linear(8, 5)))
        sparse = around(lambda _, x: x)
        sparse.register_buffer("graph", torch.eye(4).to_sparse())
        self.refused("graph: the tensor has the layout torch.sparse_coo", sparse)
        with torch.inference_mode():
            inside = around(lambda _, x: x)
            self.refused("called under torch.inference_mode", inside)
        self.refused("made under torch.inference_mode", inside)

    def test_tensors_that_are_written_and_are_no_buffers(self) -> None:
        seen = torch.zeros(8)

        def written(module: nn.Module, x: Tensor) -> Tensor:
            seen.add_(x.detach().mean(0))
            return x

        error = self.refused("add_.* writes to a tensor that is neither a parameter nor a buffer", around(written))
        self.refused_at("1", written, error)

    def test_batch(self) -> None:
        layers = around(lambda _, x: x)
        self.refused("'labels' of the sample batch is a list.*as_tensor", layers, data={**batch(), "labels": [0, 1, 2, 3]})
        self.refused("'x' of the sample batch is a ndarray", layers, data={**batch(), "x": numpy.zeros((4, 8))})
        self.refused("the sample batch is a tuple", layers, data=(torch.zeros(4, 8), torch.zeros(4)))
        extra = {**batch(), "mask": torch.ones(4, 8)}
        self.refused(r"neither the model nor the loss reads mask .*\(x, \*\*more\)", Named(), data=extra)
        none = {**batch(), "labels": torch.full((4,), -100)}
        self.refused("no label of the sample batch counts", layers, data=none)

    def test_classes_that_may_be_in_two_dimensions(self) -> None:
        columns = nn.Sequential(nn.Conv1d(3, 8, 1), nn.ReLU(), nn.Conv1d(8, 6, 1))
        data = {"x": torch.randn(4, 3, 6), "labels": torch.randint(0, 6, (4, 6))}
        self.refused(r"shape \[n, 6, 6\].*dimension 1 may count the classes", columns, data=data)
        self.export(columns, "cross_entropy", {"x": torch.randn(4, 3, 7), "labels": torch.randint(0, 6, (4, 7))})

    def test_sparse_gradients(self) -> None:
        self.refused("gradients of this embedding are sparse.*sparse=False", nn.Sequential(
            nn.Embedding(7, 4, sparse=True), nn.Flatten(), nn.Linear(16, 5)), data={"x": torch.zeros(4, 4).long(), "labels": batch()["labels"]})

    def test_input_that_is_written(self) -> None:
        self.refused("writes to a batch input", nn.Sequential(nn.ReLU(inplace=True), nn.Linear(8, 8), nn.Linear(8, 5)))

    def test_loss(self) -> None:
        layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 5))
        self.refused(r"returns no loss but a tensor of shape \[n, 5\].*Give loss=", layers, None, {"x": torch.randn(4, 8)})
        self.refused("neither a tensor nor something with .logits", around(lambda _, x: x).append(Pair()))
        for returned, said in ((None, "None"), (1.0, "a float"), ((torch.ones(()), torch.ones(())), "a tuple of 2"),
                               (torch.ones(3), r"a tensor of shape \[3\] and type torch.float32")):
            function = lambda result, data: returned
            error = self.refused(f"the loss function returns {said} rather than one number", layers, function)
            self.refused_at("the loss", function, error)
        self.refused("no mean over the samples", layers,
                     lambda result, data: functional.cross_entropy(result, data["labels"], reduction="sum"))
        self.refused("is not known", layers, "hinge")
        self.refused("has no 'labels'", layers, "mse_loss", {"x": torch.randn(4, 8)})

    def test_loss_of_transformers(self) -> None:
        config = transformers.GPT2Config(n_layer=2, n_embd=8, n_head=2, vocab_size=11, n_positions=8, bos_token_id=0,
                                         eos_token_id=0)
        model = transformers.GPT2LMHeadModel(config)
        self.refused("no loss but a CausalLMOutput.* add 'labels'", model, None,
                     {"input_ids": torch.randint(0, 11, (2, 8))})

    def test_parameters(self) -> None:
        layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 5))
        self.refused("0.weight: the parameter is trained and has the type torch.float64", layers.double())

    def test_number_of_samples(self) -> None:
        for function in (fixed, fixed_by_a_loop, fixed_by_a_branch):
            self.refused_at("1", function, self.refused(r"the model fixes the number of samples", around(function)))
        two = {name: tensor[:2] for name, tensor in batch().items()}
        error = self.refused(r"fixes the number of samples.*x\.size\(0\)", around(fixed_by_halves), data=two)
        self.refused_at("1", fixed_by_halves, error)

    def test_what_does_not_run_in_eager_pytorch(self) -> None:
        self.refused_at("1", broken, self.refused("does not run on the sample batch in eager PyTorch", around(broken)))
        layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 5))
        self.refused("does not run .*Target 7 is out of bounds", layers, data={**batch(), "labels": torch.full((4,), 7)})

    def test_cuts(self) -> None:
        error = self.refused("only the forward of the model itself reads trained", nn.Linear(8, 5))
        self.assertNotIn("cuts=", error.fix)
        body = frozen(*(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(3)))
        error = self.refused("'1' alone reads trained parameters", nn.Sequential(body, nn.Linear(8, 5)))
        self.assertNotIn("cuts=", error.fix)
        self.refused("depends on no trained parameter.*requires_grad_", frozen(body, nn.Linear(8, 5)))
        head = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 5))
        self.refused(r"cuts=\['1.0', '1.1'\]", nn.Sequential(body, head), cuts=["0"])
        layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 5))
        self.refused("matches no module", layers, cuts=["blocks.*"])

    def test_directory(self) -> None:
        layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 5))
        self.export(layers, "cross_entropy", batch())
        with self.assertRaisesRegex(ExportError, "not empty"):
            self.export(layers, "cross_entropy", batch(), overwrite=False)
        (self.dir / "model" / "model.json").write_text("{}")
        with self.assertRaisesRegex(ExportError, "something else than an exported model"):
            self.export(layers, "cross_entropy", batch())

    def test_an_export_replaces_what_one_wrote_and_nothing_else(self) -> None:
        layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 5))
        folder = self.export(layers, "cross_entropy", batch())
        (folder / "data").mkdir()
        (folder / "data" / "tokens.bin").write_bytes(b"mine")
        (folder / "notes.txt").write_text("mine")
        (folder / "tokenizer.json").write_text("of another model")
        self.export(layers, "cross_entropy", batch(), weights=False)
        self.assertEqual(sorted(path.name for path in folder.iterdir()), ["data", "graphs", "model.json", "notes.txt"])
        self.assertEqual((folder / "data" / "tokens.bin").read_bytes(), b"mine")
        self.assertEqual(list(folder.parent.glob(".model.*")), [])

    def test_a_model_that_transformers_cannot_make(self) -> None:
        cases = ({"model_type": "no-such-model"}, {"model_type": "bert", "hidden_size": "wide"}, {"model_type": "bert"})
        for config in cases:
            with self.subTest(config):
                (self.dir / "config.json").write_text(json.dumps(config))
                stderr = io.StringIO()
                with contextlib.redirect_stderr(stderr):
                    code = main(["hf", str(self.dir), "--task", "image-classification", "--no-weights", "-o",
                                 str(self.dir / "out")])
                self.assertEqual(code, 2, stderr.getvalue())
                self.assertRegex(stderr.getvalue(), f"^harmony-export: {self.dir}.*: ")
                self.assertEqual(stderr.getvalue().count("\n"), 1)
        with self.assertRaisesRegex(ExportError, "sequence length is 0. Give 1 or more"):
            hugging_face(self.dir, "masked-lm", sequence_length=0)

    def test_command_line(self) -> None:
        stderr = io.StringIO()
        with contextlib.redirect_stderr(stderr):
            code = main(["hf", str(self.dir), "--task", "causal-lm", "-o", str(self.dir / "out")])
        self.assertEqual(code, 2)
        self.assertRegex(stderr.getvalue(), "^harmony-export: .* has no config.json")
        self.assertEqual(stderr.getvalue().count("\n"), 1)


if __name__ == "__main__":
    unittest.main()
