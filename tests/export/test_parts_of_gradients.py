"""Sums of the gradients of parts of a tensor, and of products, as one operation."""

from __future__ import annotations

import unittest
from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn

import support  # first: it says where harmony_export is

STEPS = 6


class Scan(nn.Module):
    """A recurrence over the steps of what its first layer makes, each of which it reads in a way of its own."""

    def __init__(self, reads: Any, steps: Any = range(STEPS)) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 3)
        self.reads, self.steps = reads, list(steps)

    def forward(self, x: Tensor) -> Tensor:
        made = self.body(x)
        state = torch.zeros_like(made[:, 0])
        for step in self.steps:
            state = torch.tanh(state * 0.5 + self.reads(made, step))
        result: Tensor = self.head(state + made.mean(1))
        return result


def batch() -> dict[str, Tensor]:
    return {"x": torch.randn(4, STEPS, 4), "labels": torch.tensor([0, 2, 1, 1])}


class Parts(support.ExportTest):
    def count(self, model: nn.Module, cuts: Any = ("head",)) -> Counter[str]:
        """How often operators are in the graphs, which are eager PyTorch's to the last bit."""
        torch.manual_seed(3)
        folder = self.export(model, "cross_entropy", batch(), cuts=list(cuts))
        self.assertIn("to the last bit", self.lines[-1])
        self.assertNotIn("within", self.lines[-1])
        return support.count_of_operators(folder)

    def test_steps_that_make_up_the_whole_are_joined(self) -> None:
        def read(made: Tensor, step: int) -> Tensor:
            return made[:, step]

        for steps in (range(STEPS), reversed(range(STEPS)), (3, 0, 5, 1, 2, 4)):
            count = self.count(Scan(read, steps))
            self.assertEqual(count["aten::select_backward"], 0)
            self.assertEqual(count["aten::slice_backward"], 0)

    def test_slices_of_several_steps_are_joined(self) -> None:
        count = self.count(Scan(lambda made, step: made[:, 2 * step:2 * step + 2].sum(1), range(STEPS // 2)))
        self.assertEqual(count["aten::slice_backward"], 0)

    def test_parts_that_overlap_or_leave_something_out_are_added_as_before(self) -> None:
        # Of a step that is read twice, one time is a summand by itself.
        for steps, left in (((0, 1, 2), 3), ((0, 0, 1, 2, 3, 4), 6), ((0, 1, 2, 3, 4, 5, 5), 1)):
            count = self.count(Scan(lambda made, step: made[:, step], steps))
            self.assertEqual(count["aten::select_backward"], left)
        count = self.count(Scan(lambda made, step: made[:, step:step + 2].sum(1), range(STEPS - 1)))
        self.assertEqual(count["aten::slice_backward"], STEPS - 1)

    def test_gradients_of_what_enters_the_layer_are_joined_as_well(self) -> None:
        class Later(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.body, self.scan = nn.Linear(4, 4), nn.Linear(4, 4)
                self.head = nn.Linear(4, 3)

            def forward(self, x: Tensor) -> Tensor:
                made = torch.relu(self.body(x))
                state = torch.zeros_like(made[:, 0])
                for step in range(STEPS):
                    state = torch.tanh(state * 0.5 + made[:, step])
                result: Tensor = self.head(self.scan(state))
                return result

        self.assertEqual(self.count(Later(), ("scan", "head"))["aten::select_backward"], 0)

    def test_weights_of_a_recurrence_are_written_once_where_bits_differ_anyway(self) -> None:
        class Network(nn.Module):
            def __init__(self, kind: type[nn.RNNBase]) -> None:
                super().__init__()
                self.body = kind(4, 5, batch_first=True)
                self.head = nn.Linear(5, 3)

            def forward(self, x: Tensor) -> Tensor:
                result: Tensor = self.head(self.body(x)[0][:, -1])
                return result

        found = {}
        for name, kind, options in (("lstm", nn.LSTM, {}), ("gru", nn.GRU, {}),
                                    ("fast", nn.GRU, {"fast_products": True})):
            folder = self.export(Network(kind), "cross_entropy", batch(), **options)
            count = support.count_of_operators(folder, "backward")
            found[name] = count["aten::mm"] + count["harmony::product"]
        # A product for each step's state, and one for each of the weights; else one of each step.
        self.assertLessEqual(found["lstm"], STEPS + 3)
        self.assertGreater(found["gru"], 2 * STEPS - 2)
        self.assertLessEqual(found["fast"], STEPS + 3)


if __name__ == "__main__":
    unittest.main()
