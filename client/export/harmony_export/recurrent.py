"""Recurrent networks as ATen's RNN.cpp computes them, in the same order and with the same layouts.

Tracing has versions of its own with other bits, one of which holds for CPUs only. Eager PyTorch runs an LSTM by oneDNN
on a CPU, which no graph that is to run elsewhere can follow to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor, fx

aten = torch.ops.aten

Hidden = tuple[Tensor, ...]  # one tensor, or for an LSTM two
Weights = Sequence[Tensor | None]  # of input and hidden, their biases, and a projection
Cell = Callable[[Tensor, Hidden, Weights], Hidden]


def _lstm_cell(x: Tensor, hidden: Hidden, weights: Weights) -> Hidden:
    gates = _linear(hidden[0], weights[1], weights[3]) + x
    into, forget, cell, out = gates.unsafe_chunk(4, 1)
    into, forget, cell, out = into.sigmoid(), forget.sigmoid(), cell.tanh(), out.sigmoid()
    state = forget * hidden[1] + into * cell
    output = out * state.tanh()
    return output if weights[4] is None else _linear(output, weights[4], None), state


def _gru_cell(x: Tensor, hidden: Hidden, weights: Weights) -> Hidden:
    of_hidden = _linear(hidden[0], weights[1], weights[3])
    size = hidden[0].shape[1]
    # Both gates are parts of one tensor, as they are where ATen computes them in place: the last digits of a sigmoid
    # depend on how its argument lies in memory.
    gates = of_hidden.narrow(1, 0, 2 * size) + x.narrow(1, 0, 2 * size)
    reset, update = (gate.sigmoid() for gate in gates.unsafe_chunk(2, 1))
    new = (x.narrow(1, 2 * size, size) + of_hidden.narrow(1, 2 * size, size) * reset).tanh()
    return ((hidden[0] - new) * update + new,)


def _simple_cell(activation: Callable[[Tensor], Tensor]) -> Cell:
    def run(x: Tensor, hidden: Hidden, weights: Weights) -> Hidden:
        return (activation(_linear(hidden[0], weights[1], weights[3]) + x),)

    return run


def _linear(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    assert weight is not None
    return functional.linear(x, weight, bias)


def _direction(cell: Cell, x: Tensor, hidden: Hidden, weights: Weights, backwards: bool) -> tuple[Tensor, Hidden]:
    """One pass over the sequence, which is dimension 0."""
    steps = list(_linear(x, weights[0], weights[2]).unbind(0))
    outputs = []
    for step in reversed(steps) if backwards else steps:
        hidden = cell(step, hidden, weights)
        outputs.append(hidden[0])
    return torch.stack(outputs[::-1] if backwards else outputs, 0), hidden


def _network(cell: Cell, x: Tensor, hidden: Sequence[Tensor], parameters: Sequence[Tensor], has_biases: bool,
             layers: int, dropout: float, train: bool, bidirectional: bool, batch_first: bool) -> tuple[Tensor, ...]:
    """All layers. `hidden` are the states of all layers and directions, stacked."""
    x = x.transpose(0, 1) if batch_first else x
    states = list(zip(*(h.unbind(0) for h in hidden)))
    directions = 2 if bidirectional else 1
    weights = _grouped(parameters, has_biases, len(states))
    last: list[Hidden] = []
    for layer in range(layers):
        made = []
        for direction in range(directions):
            index = layer * directions + direction
            output, state = _direction(cell, x, states[index], weights[index], backwards=direction == 1)
            made.append(output)
            last.append(state)
        x = torch.cat(made, made[0].dim() - 1) if bidirectional else made[0]
        if dropout != 0 and train and layer + 1 < layers:
            x = functional.dropout(x, dropout)
    x = x.transpose(0, 1) if batch_first else x
    return x, *(torch.stack(list(state), 0) for state in zip(*last))


def _grouped(parameters: Sequence[Tensor], has_biases: bool, count: int) -> list[Weights]:
    size = len(parameters) // count
    groups: list[Weights] = []
    for start in range(0, len(parameters), size):
        given = list(parameters[start:start + size])
        biases: list[Tensor | None] = [given[2], given[3]] if has_biases else [None, None]
        rest = given[4:] if has_biases else given[2:]
        groups.append([given[0], given[1], *biases, rest[0] if rest else None])
    return groups


def has_lstm(module: fx.GraphModule) -> bool:
    """Whether an LSTM is among the operations."""
    return any(node.target in (aten.lstm.input, aten.lstm.data) for node in module.graph.nodes)


def _operator(cell: Cell) -> Callable[..., Any]:
    def run(x: Tensor, hidden: Tensor | Sequence[Tensor], *rest: Any) -> tuple[Tensor, ...]:
        return _network(cell, x, [hidden] if isinstance(hidden, Tensor) else hidden, *rest)

    return run


# By the name of the operator; all take their arguments as `_network` does.
OPERATORS: dict[str, Callable[..., Any]] = {
    "lstm": _operator(_lstm_cell),
    "gru": _operator(_gru_cell),
    "rnn_tanh": _operator(_simple_cell(torch.tanh)),
    "rnn_relu": _operator(_simple_cell(torch.relu)),
}
