"""Holds a written directory against eager PyTorch: loss, gradients and statistics of one microbatch. Where float32 differs,
float64 says whether that is rounding."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from . import faithful
from .capture import Call
from .dropout import KEYS, Drawing, Place, applied
from .errors import ExportError
from .explain import does_not_run, error_text, graphs_do_not_run, samples_text
from .labels import length_of
from .reference import ReferenceModel
from .rounding import in_float64, is_rounding, widened

SAMPLES = (1, 2, 5)
TOLERANCE = {"fp32": 1e-6, "bf16": 0.03}  # of bfloat16: about eight roundings to its eight bits
_REDUCTION = 1e-3  # of a loss: more than rounding, less than what another reduction makes of it
_FAILURES = (IndexError, RuntimeError, ValueError)  # such as of labels that are no classes, which tracing does not see
_NO_KERNEL = (RuntimeError, TypeError)  # such as of an operation for float64
# The most that rounding of float32 may explain. Float64 does not bound it: where the sign of a number decides, as in ReLU,
# eager PyTorch in float32 may itself be far from it (2.4e-4 for one gradient of T5).
_MOST_ROUNDING = 1e-5


@dataclass(frozen=True)
class Deviation:
    """The largest relative error of any tensor at a number of samples, 0 where all bits are equal. `length` is that of
    the sequences, where it is free, and `of_eager` eager PyTorch's own error, where float64 was asked."""

    samples: int
    length: int
    error: float
    tensor: str
    of_eager: float | None = None

    def __str__(self) -> str:
        exactness = f"within {self.error:.1e}, {self.tensor}" if self.error else "to the last bit"
        if self.of_eager is not None:
            exactness += f", where eager PyTorch is {self.of_eager:.1e} from float64"
        length = f" of {self.length}" if self.length else ""
        return f"{samples_text(self.samples)}{length} {exactness}"


@dataclass(frozen=True)
class Exactness:
    """The result of a check. `is_mean` says whether the loss of a batch is the mean (or sum) of its samples' losses, or
    of their labels' where these are counted."""

    deviations: list[Deviation]
    is_mean: bool

    def __str__(self) -> str:
        return f"as eager PyTorch (loss, gradients, statistics): {'; '.join(map(str, self.deviations))}"


def rows(batch: Mapping[str, Tensor], samples: int) -> dict[str, Tensor]:
    """A batch of so many samples, in turns those that there are."""
    return {name: tensor[torch.arange(samples) % len(tensor)] for name, tensor in batch.items()}


def check(directory: Path, model: nn.Module, call: Call, batches: Sequence[Mapping[str, Tensor]], reduction: str,
          dropouts: Sequence[Place], tolerance: float = TOLERANCE["fp32"]) -> Exactness:
    """Compares, and raises where the relative error of a tensor is above the tolerance and more than rounding: the first
    batch with several numbers of samples, all others (of other lengths) as they are. `dropouts` says where the graphs
    have those that eager PyTorch calls one after the other."""
    call = drawing(call, dropouts)
    first, *others = [_with_keys(batch) for batch in batches]
    reference = ReferenceModel(directory)
    try:
        _check_reduction(model, call, first, reduction)
    except _FAILURES as error:
        raise does_not_run(error, model) from error
    is_mean = _is_mean(model, call, first, reduction, reference, max(tolerance, _REDUCTION))
    deviations = []
    for part in [*(rows(first, samples) for samples in SAMPLES), *others]:
        samples = len(part[KEYS])
        if int(reference.label_counts(part)[0, 1]) == 0:
            continue  # there is no mean of no labels
        try:
            expected = _eager(model, call, part)
        except _FAILURES as error:
            if samples == 1:
                continue  # BatchNorm takes no single value per channel, and squeeze() leaves no dimension of samples
            raise does_not_run(error, model) from error
        length = length_of(reference.document, part)
        try:
            differences = _compare(reference, part, expected)
        except _FAILURES as error:
            raise graphs_do_not_run(error, samples) from error
        worst = max(differences, key=_size)
        faults = [d for d in differences if not d.error <= tolerance]
        del expected, differences  # makes room for float64
        fix = "This is a fault of the export, or the model computes something else each time it runs"
        try:
            of_eager = _of_rounding(model, call, part, faults) if faults else {}
        except _NO_KERNEL as error:
            of_eager = {}
            fix = ("Whether that is rounding is not known, for the model does not run in float64 "
                   f"({error_text(error)}): where it is, give a larger tolerance")
        faults = [d for d in faults if d.tensor not in of_eager]
        worst = max(faults, key=_size) if faults else worst
        deviations.append(Deviation(samples, length, worst.error, worst.tensor, of_eager.get(worst.tensor)))
        if faults:
            if length != deviations[0].length:
                fix = (f"The model does something else for sequences of {length} than for others: allow shorter ones only "
                       "(longest_sequence), or export with a fixed length")
            raise ExportError(f"the exported graphs differ from eager PyTorch: {deviations[-1]}", deviations[-1].tensor,
                              fix)
    if not deviations:
        raise ExportError("nothing was compared with eager PyTorch, for no label of the sample batch counts",
                          fix="Give a sample batch with labels that the loss looks at")
    return Exactness(deviations, is_mean)


def _with_keys(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {**batch, KEYS: torch.arange(1, len(next(iter(batch.values()))) + 1) * 0x9E3779B97F4A7C1}


def drawing(call: Call, dropouts: Sequence[Place]) -> Call:
    """The same program, its dropouts by the keys of the samples."""

    def run(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        with applied(Drawing(batch[KEYS], dropouts)), faithful.without_checkpoints():
            return call(model, {name: tensor for name, tensor in batch.items() if name != KEYS})

    return run


@dataclass
class _Expected:
    loss: Tensor
    gradients: dict[str, Tensor]
    buffers: dict[str, Tensor]


def _eager(model: nn.Module, call: Call, batch: Mapping[str, Tensor]) -> _Expected:
    """One forward and backward of the model, which is left as it was."""
    before = {name: buffer.clone() for name, buffer in model.named_buffers(remove_duplicate=False)}
    kept = {name: parameter.grad for name, parameter in model.named_parameters()}
    try:
        for parameter in model.parameters():
            parameter.grad = None
        with torch.enable_grad():
            loss = call(model, dict(batch))
            loss.backward()  # type: ignore[no-untyped-call]
        gradients = {name: parameter.grad for name, parameter in model.named_parameters(remove_duplicate=False)
                     if parameter.grad is not None}
        after = {name: buffer.clone() for name, buffer in model.named_buffers(remove_duplicate=False)}
        return _Expected(loss.detach(), gradients, after)
    finally:
        with torch.no_grad():
            for name, buffer in model.named_buffers(remove_duplicate=False):
                buffer.copy_(before[name])
        for name, parameter in model.named_parameters():
            parameter.grad = kept[name]


@dataclass
class _Difference:
    """Of one tensor of the graphs from eager PyTorch's, relative to the greatest of its numbers or `floor`."""

    tensor: str
    got: Tensor
    wanted: Tensor
    floor: float = 0.0
    error: float = field(init=False)

    def __post_init__(self) -> None:
        self.error = _relative_error(self.got, self.wanted, self.floor)


def _size(difference: _Difference) -> tuple[bool, float]:
    """Orders differences; what is no number is the largest."""
    return difference.error != difference.error, difference.error


def _compare(reference: ReferenceModel, batch: Mapping[str, Tensor], expected: _Expected) -> list[_Difference]:
    """All tensors that training would read."""
    made = reference.run(batch)
    if made.disagreeing:
        raise ExportError("the phases forward and saving make different outputs", made.disagreeing[0],
                          "This is a fault of the export")
    differences = [_Difference("the loss", made.loss / made.divisor, expected.loss)]
    # What is zero but for rounding has no digits to compare.
    floor = _floor(expected.gradients)
    floor_of_statistics = _floor(made.statistics)
    for entry in reference.document["parameters"]:
        name = entry["name"]
        if entry["role"] == "trained" or name in expected.gradients:
            wanted, got = expected.gradients.get(name), made.gradients.get(name)
            if wanted is None and got is None:
                continue
            wanted = torch.zeros_like(reference.weights[name]) if wanted is None else wanted
            # Of a bfloat16 model a float32 sum of several uses' gradients, where PyTorch has one that is rounded; under
            # autocast a gradient in bfloat16, where PyTorch has it in float32.
            got = torch.zeros_like(wanted) if got is None else got.to(wanted.dtype)
            differences.append(_Difference(_gradient_of(name), got, wanted, floor))
        elif entry["role"] == "fixed" and name in expected.buffers and not torch.equal(
                expected.buffers[name], reference.weights[name]):
            raise ExportError(f"the forward changes the buffer {name}, which the exported graphs do not",
                              fix="Write to buffers by tensor operations, such as add_ and copy_")
        elif entry["role"] == "statistic":
            differences.append(_Difference(name, made.statistics[name], expected.buffers[name], floor_of_statistics))
    return differences


def _gradient_of(name: str) -> str:
    return f"the gradient of {name}"


# ---- Whether it is rounding ----


def _of_rounding(model: nn.Module, call: Call, batch: Mapping[str, Tensor], faults: Sequence[_Difference]
                 ) -> dict[str, float]:
    """Of tensors that differ by more than the tolerance, those of which rounding explains it, with eager PyTorch's own
    distance from float64. Only where something differs is it asked: it takes twice the model's memory, and more time.
    Fails as the model does where that does not run in float64."""
    if any(not d.error <= _MOST_ROUNDING for d in faults):
        return {}
    with in_float64(model):
        exact = _eager(model, call, widened(batch))
    values = {**exact.buffers, **{_gradient_of(name): gradient for name, gradient in exact.gradients.items()},
              "the loss": exact.loss}
    found = {}
    for d in faults:
        if d.tensor in values:
            of_graphs, of_eager = (_relative_error(own, values[d.tensor], d.floor) for own in (d.got, d.wanted))
            if is_rounding(of_graphs, of_eager):
                found[d.tensor] = of_eager
    return found


def _floor(tensors: Mapping[str, Tensor]) -> float:
    return 1e-3 * max((float(tensor.abs().max()) for tensor in tensors.values() if tensor.numel()), default=0.0)


def _relative_error(got: Tensor, wanted: Tensor, floor: float = 0.0) -> float:
    if torch.equal(got, wanted):
        return 0.0
    got, wanted = got.double(), wanted.double()
    scale = max(float(wanted.abs().max()), floor)
    return float((got - wanted).abs().max()) / (scale or 1.0)


# ---- Whether it is a mean ----


def _losses(model: nn.Module, call: Call, batches: Sequence[Mapping[str, Tensor]]) -> list[float]:
    """The losses of batches, of a model that is left as it was."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers(remove_duplicate=False)}
    with torch.no_grad():
        try:
            return [float(call(model, dict(batch)).detach()) for batch in batches]
        finally:
            for name, buffer in model.named_buffers(remove_duplicate=False):
                buffer.copy_(buffers[name])


def _is_mean(model: nn.Module, call: Call, batch: Mapping[str, Tensor], reduction: str, reference: ReferenceModel,
             tolerance: float) -> bool:
    """Whether the loss of two samples is made of that of each, which a mean over what each has another number of (such as
    a mask's ones) is not, nor a loss that compares samples. BatchNorm, which sees the microbatch in any case, does not
    matter here."""
    parts = [{name: tensor[[i, i]] for name, tensor in rows(batch, 2).items()} for i in (0, 1)]
    both = {name: torch.cat([part[name] for part in parts]) for name in batch}
    counts = [float(reference.label_counts(part)[0, 1]) for part in parts]
    if 0 in counts:
        return True  # there is no mean of no labels
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm) and module.training]
    try:
        for norm in norms:
            norm.training = False
        *own, together = _losses(model, call, [*parts, both])
    except _FAILURES:
        return True  # of a sample that stands twice there is no loss
    finally:
        for norm in norms:
            norm.training = True
    made = sum(own) if reduction == "sum" else sum(map(operator.mul, counts, own)) / sum(counts)
    return not abs(together - made) > tolerance * max(map(abs, [*own, together]))


def _check_reduction(model: nn.Module, call: Call, batch: Mapping[str, Tensor], reduction: str) -> None:
    """A batch with every sample twice has the same mean and twice the sum."""
    once, twice = _losses(model, call, [rows(batch, 2), rows(rows(batch, 2), 4)])
    of_mean, of_sum = abs(twice - once), abs(twice - 2 * once)
    wanted, other = (of_mean, of_sum) if reduction == "mean" else (of_sum, of_mean)
    # A loss that compares samples with each other is neither; then it is what a microbatch makes it.
    if wanted > _REDUCTION * abs(twice) and other <= _REDUCTION * abs(twice):
        raise ExportError(f"the loss is {once:.6g}, and {twice:.6g} where every sample is there twice, so it is no "
                          f"{reduction} over the samples",
                          fix="Give reduction='mean' or 'sum' as the loss has it")
