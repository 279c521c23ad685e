"""What cannot be exported exactly is refused by name, with its place and what to change."""

from __future__ import annotations

import contextlib
import io
import unittest
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor, library, nn

import support  # first: it says where harmony_export is

from harmony_export import ExportError
from harmony_export.cli import main


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


class SharedNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3))
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = self.norm(block(x))
        return x


class Refusals(support.ExportTest):
    def refused(self, text: str, model: nn.Module, loss: Any = "cross_entropy", data: Any = None,
                **options: Any) -> ExportError:
        with self.assertRaisesRegex(ExportError, text) as caught:
            self.export(model, loss, batch() if data is None else data, **options)
        self.assertTrue(caught.exception.fix, "it says what to change")
        self.assertEqual(list(self.dir.iterdir()), [], "nothing is left behind")
        return caught.exception

    def test_custom_function(self) -> None:
        error = self.refused("Tripled is a custom autograd.Function", around(lambda _, x: Tripled.apply(x)))
        self.assertEqual(error.where, "1")

    def test_foreign_operator(self) -> None:
        self.refused("example.twice.default is no operator of ATen", around(lambda _, x: x + twice(x.detach())))

    def test_values_decide(self) -> None:
        self.refused("depends on the values of tensors", around(branch))
        self.refused("depends on the values of tensors", around(condition))
        self.refused("size of .* depends on the values of tensors", around(lambda _, x: x[x > 0].sum() * x))

    def test_buffers_that_outputs_read(self) -> None:
        self.refused("buffer 1.mean is written by the forward", around(centred))
        self.refused("norm.running_mean", SharedNorm())

    def test_random_numbers(self) -> None:
        error = self.refused("randn_like.default draws random numbers", around(noisy))
        self.assertIn("1 (", error.where)

    def test_input_that_is_written(self) -> None:
        self.refused("writes to a batch input", nn.Sequential(nn.ReLU(inplace=True), nn.Linear(8, 8), nn.Linear(8, 5)))

    def test_loss(self) -> None:
        layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 5))
        self.refused("rather than a scalar loss", layers, None, {"x": torch.randn(4, 8)})
        self.refused("no mean over the samples", layers,
                     lambda result, data: functional.cross_entropy(result, data["labels"], reduction="sum"))
        self.refused("is not known", layers, "hinge")
        self.refused("has no 'labels'", layers, "mse_loss", {"x": torch.randn(4, 8)})

    def test_parameters(self) -> None:
        layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 5))
        self.refused("0.weight: the parameter is trained and has the type torch.float64", layers.double())

    def test_number_of_samples(self) -> None:
        self.refused("the model fixes the number of samples", around(lambda _, x: x.view(3, 8)))

    def test_cuts(self) -> None:
        self.refused("does not fall into two layers", nn.Linear(8, 5))
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

    def test_command_line(self) -> None:
        stderr = io.StringIO()
        with contextlib.redirect_stderr(stderr):
            code = main(["hf", str(self.dir), "--task", "causal-lm", "-o", str(self.dir / "out")])
        self.assertEqual(code, 2)
        self.assertRegex(stderr.getvalue(), "^harmony-export: .* has no config.json")
        self.assertEqual(stderr.getvalue().count("\n"), 1)


if __name__ == "__main__":
    unittest.main()
