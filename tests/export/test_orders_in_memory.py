"""Operations whose kernels and whose Python versions, by which models are traced, lay out their results differently."""

from __future__ import annotations

import unittest
from collections.abc import Callable

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

import support

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "softplus": functional.softplus, "elu": functional.elu, "relu6": functional.relu6,
    "hardswish": functional.hardswish, "hardsigmoid": functional.hardsigmoid}
_LOSSES: dict[str, Callable[..., Tensor]] = {
    "mse_loss": functional.mse_loss, "smooth_l1_loss": functional.smooth_l1_loss, "huber_loss": functional.huber_loss}


class Mixer(nn.Module):
    """Its second layer reads what the first makes along another dimension, so that gradients come back in another order."""

    def __init__(self, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.activation = activation
        # No modules of their own, so that both are in one layer: between layers gradients are put in order.
        self.along_features = nn.Parameter(torch.randn(4, 6))
        self.along_rows = nn.Parameter(torch.randn(5, 10))

    def forward(self, x: Tensor) -> Tensor:
        features = self.activation(functional.linear(x, self.along_features))
        return functional.linear(features.transpose(1, 2), self.along_rows)


class OrdersInMemory(support.ExportTest):

    def check(self, model: nn.Module, loss: Callable[[Tensor, dict[str, Tensor]], Tensor], target: Tensor) -> None:
        """Which the export itself compares with eager PyTorch."""
        self.export(nn.Sequential(nn.Linear(6, 6), model), loss, {"x": torch.randn(2, 10, 6), "target": target}, overwrite=True)
        self.assertIn("as eager PyTorch", self.lines[-1])

    def test_gradients_of_activations_are_viewed_as_kernels_lay_them_out(self) -> None:
        for name, activation in _ACTIVATIONS.items():
            with self.subTest(name):
                self.check(Mixer(activation), lambda y, batch: functional.mse_loss(y, batch["target"]),
                           torch.randn(2, 4, 5))

    def test_gradients_of_losses_are_viewed_as_kernels_lay_them_out(self) -> None:
        for name, loss in _LOSSES.items():
            with self.subTest(name):
                self.check(Mixer(functional.relu), lambda y, batch, of=loss: of(y.transpose(1, 2), batch["target"]),
                           torch.randn(2, 5, 4))

    def test_gradients_of_classes_are_viewed_as_kernels_lay_them_out(self) -> None:
        self.check(Mixer(functional.relu), lambda y, batch: functional.cross_entropy(y.transpose(1, 2), batch["target"]),
                   torch.randint(0, 5, (2, 4)))


if __name__ == "__main__":
    unittest.main()
