"""From a model, its loss and a batch to a directory that Harmony trains."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensor

from . import autocast
from .capture import Captured, capture, is_view
from .chain import cut, dropouts_of
from .check import TOLERANCE, rows
from .check import check as check_directory
from .cuts import Cuts, find_cuts
from .devices import only_on_cpu
from .directory import Assembler, Description, LayerSummary, Loss, new_directory, write
from .dropout import KEYS, switched_off
from .errors import ExportError
from .labels import COUNTS, make_sum
from .lengths import Dynamic, Lengths, dimensions, find_lengths, length_in, of_length, special_lengths
from .losses import LossFunction, loss_call
from .memory import has_memory
from .polynomial import Polynomial, number
from .precision import Masters, check_runs, check_types, in_bfloat16
from .symbols import expression

_MOST_CHECKED = 512  # of lengths that nobody asked for: attention takes their square

aten = torch.ops.aten


def export(model: nn.Module, loss: str | LossFunction | None, sample_batch: Mapping[str, Tensor], *,
           out: str | Path, cuts: Cuts = "auto", name: str | None = None, reduction: str = "mean",
           labels_per_sample: int | None = None, values_below: Mapping[str, int] | None = None,
           sequence_length: int | None = None, dynamic: Dynamic | None = None, longest_sequence: int | None = None,
           dropout: bool = True, fused_loss: bool = False, fast_products: bool = False, dtype: str = "fp32",
           keep_fp32: Sequence[str] = (), weights: bool = True, check: bool = True, tolerance: float | None = None, overwrite: bool = False,
           copies: Sequence[str | Path] = (), report: Callable[[str], None] = print) -> Path:
    """Exports a model for training, and returns the directory.

    model             any nn.Module whose operations are PyTorch's own
    loss              None: the model returns the loss itself. "cross_entropy" or "mse_loss": of the model's result and
                      the batch's `labels`. Or a function of the model's result and the batch
    sample_batch      tensors by name, the samples along dimension 0. The model is called with those that its forward
                      has parameters for (where no name fits, with the first one); `labels` go to the loss, where one is
                      given
    cuts              "auto": at repeated blocks; or patterns of module paths at which layers begin
    name              the class of the model where none is given
    reduction         whether the loss is the "mean" or the "sum" over the labels
    labels_per_sample by the batch's `labels` where it is not given
    values_below      bounds of integer inputs; those of embeddings and cross entropies are found
    sequence_length   of models that read sequences, for the job file; not with `dynamic`
    dynamic           by batch input, the dimension (or dimensions) that is the sequence: its length is then free, and
                      chosen by each job. The sample batch's says nothing but what the check compares
    longest_sequence  with `dynamic`, the longest that may be trained on, where the model does not say so itself
    dropout           False: nothing is dropped in training. Otherwise what the model says: zeros by nn.Dropout, its
                      functions and attention; other kinds of noise are switched off, and named
    fused_loss        the cross entropy and the linear layer before it become one operation that takes rows in
                      chunks: far less memory where there are many classes, and the last bits of a sum in another
                      order. Refused where the model does not end so
    fast_products     products of fp32 matrices by the runtime's own kernel, which on processors with AVX-512 that are
                      not Intel's takes half the time, and gives the last bits of a sum in another order. The check
                      computes as eager PyTorch does, and does not show that
    dtype             "bf16": parameters and buffers that layers read, and what crosses between layers, are bfloat16, as
                      model.to(torch.bfloat16) makes them; inputs are rounded where the model is called. Parameters are
                      trained in fp32, from the values that they have now. Norms with running statistics stay in fp32.
                      "autocast": as a training loop that calls model and loss under torch.autocast to bfloat16;
                      parameters that all are cast become bfloat16 copies of what is trained. "fp32": as the model is;
                      regions of torch.autocast in its code count with every dtype
    keep_fp32         with dtype "bf16", patterns of names of further parameters and buffers that keep their types
    weights           False: writes no weights. Those of models made `without_memory()` cannot be written
    check             compares microbatches with eager PyTorch
    tolerance         the relative error that the check allows where bits are not equal; 1e-6 where it is not given, 0.03
                      of what computes in bfloat16
    overwrite         may take the place of a directory exported before
    copies            files that go along, such as config.json
    report            is told what is cut and checked, line by line
    """
    if reduction not in ("mean", "sum"):
        raise ExportError(f"reduction is '{reduction}'", fix="Give 'mean' or 'sum'")
    autocast.refuse_around()
    _check_batch(sample_batch)
    check_types(model, dtype, keep_fp32, fused_loss, fast_products)
    call = loss_call(model, loss, sample_batch, dtype)
    _check_devices(model)
    with_weights = weights and has_memory(model)
    places = dimensions(dynamic or {}, sample_batch)
    if places and sequence_length is not None:
        raise ExportError("sequence_length is given, and dynamic leaves it free", fix="Give one of the two")
    labels = _labels_per_sample(sample_batch, places) if labels_per_sample is None else number(labels_per_sample)
    with (new_directory(Path(out), overwrite) as folder, switched_off(model, everything=not dropout) as zero,
          _training(model), _contiguous(model),
          in_bfloat16(model, keep_fp32) if dtype == "bf16" else contextlib.nullcontext(Masters()) as masters):
        if zero:
            report(f"not applied: {', '.join(zero)}")
        if dtype != "fp32" and has_memory(model):
            check_runs(model, call, sample_batch, dtype)
        captured = capture(model, call, _batch_to_trace(model, sample_batch, places), places, sample_batch)
        if _has_empty_cache(captured):
            report("keys and values are copied behind those of an empty cache, of which training makes no use: "
                   "config.use_cache = False leaves it out")
        for entry in captured.state.entries:
            if entry.master is None:
                entry.master = masters.of(entry.tensor)
        lengths = find_lengths(captured, longest_sequence) if places else None
        counted, reason = make_sum(captured, lengths) if reduction == "mean" else (None, "")
        if reason:
            report(f"labels are not counted, each microbatch weighs the same: {reason}")
        described_loss = Loss(reduction, labels, fused=fused_loss) if counted is None else (
            Loss("sum", counted.per_sample, counted, fused_loss))
        chain = cut(captured, model, find_cuts(model, cuts))
        bounds = {**_found_bounds(captured), **(values_below or {})}
        description = Description(name or type(model).__name__, bounds, described_loss, lengths or sequence_length,
                                  fast_products)
        written = Assembler(chain, description).assemble()
        write(written, folder, with_weights, [Path(path) for path in copies])
        for line in _table(written.summaries):
            report(line)
        for name in only_on_cpu(written.graphs.values()):
            report(f"only runs on CPU devices: {name}")
        for name in written.other_on_gpus:
            report(f"only runs on CPU devices, for what it leaves for its backward has another form on GPUs: {name}")
        if not with_weights:
            report("no weights are written, and nothing is checked against eager PyTorch")
        elif check:
            batches = [sample_batch]
            if lengths is not None:
                batches += _of_other_lengths(sample_batch, places, captured, lengths, report)
            report(str(check_directory(folder, model, call, batches, reduction, dropouts_of(chain),
                                       _tolerance(dtype, captured) if tolerance is None else tolerance)))
    return Path(out)


def _has_empty_cache(captured: Captured) -> bool:
    """Whether tensors are put behind empty ones, as language models of transformers do while they train."""
    joined = [node for node in captured.graph.nodes if node.target is torch.ops.aten.cat.default]
    return any(expression(part.meta["val"].numel()) == 0 for node in joined for part in node.args[0])


def _tolerance(dtype: str, captured: Captured) -> float:
    return TOLERANCE["bf16" if dtype == "bf16" or captured.under_autocast else "fp32"]


def _of_other_lengths(batch: Mapping[str, Tensor], places: Mapping[str, Sequence[int]], captured: Captured,
                      lengths: Lengths, report: Callable[[str], None]) -> list[dict[str, Tensor]]:
    """Batches for the check, of two samples, with the lengths at which a program might do something else."""
    given = length_in(batch, places)
    most = max(2 * given, _MOST_CHECKED)
    special = special_lengths(captured, lengths)
    longer = [str(length) for length in special if length > most]
    if longer:
        report(f"not compared with eager PyTorch: sequences of {', '.join(longer)}, which the model compares with "
               "something; if it computes something else for that length, give a smaller longest_sequence")
    tried = {lengths.least, *(length for length in special if length <= most)} - {given}
    return [rows(of_length(batch, places, length), 2) for length in sorted(tried)]


# ---- What is given ----


def _check_batch(batch: Mapping[str, Tensor]) -> None:
    if not batch:
        raise ExportError("the sample batch is empty", fix="Give tensors by name")
    for name in {KEYS, COUNTS}.intersection(batch):
        raise ExportError(f"the sample batch has '{name}', a name that exported models use themselves",
                          fix="Give it another name")
    for name in [name for name, tensor in batch.items() if tensor.dtype == torch.bfloat16]:
        raise ExportError(f"'{name}' of the sample batch is bfloat16, a type that arrays of data cannot have",
                          fix="Give it in float32; dtype='bf16' (--dtype bf16) rounds it where the model is called")
    sizes = {name: tensor.shape[0] if tensor.dim() else 0 for name, tensor in batch.items()}
    if len(set(sizes.values())) != 1 or 0 in sizes.values():
        raise ExportError(f"the tensors of the sample batch have different numbers of samples: {sizes}",
                          fix="Dimension 0 of each is the sample")


def _check_devices(model: nn.Module) -> None:
    for name, tensor in model.state_dict(keep_vars=True).items():
        if isinstance(tensor, Tensor) and tensor.device.type != "cpu":
            raise ExportError(f"the tensor lies on the device '{tensor.device}'", name,
                              "Call model.cpu(); make models without memory inside harmony_export.without_memory()")


@contextlib.contextmanager
def _training(model: nn.Module) -> Iterator[None]:
    """Sets a model that is not in training to it; in one that is, single modules may have been taken out."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        if not model.training:
            model.train()
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextlib.contextmanager
def _contiguous(model: nn.Module) -> Iterator[None]:
    """Parameters lie as Harmony keeps them, so that the comparison is with what it trains."""
    changed = [(tensor, tensor.data) for tensor in [*model.parameters(), *model.buffers()]
               if not isinstance(tensor, FakeTensor) and not tensor.is_contiguous()]
    try:
        for tensor, _ in changed:
            tensor.data = tensor.data.contiguous()
        yield
    finally:
        for tensor, data in changed:
            tensor.data = data


def _batch_to_trace(model: nn.Module, batch: Mapping[str, Tensor], places: Mapping[str, Sequence[int]]
                    ) -> dict[str, Tensor]:
    """A batch with a number of samples, and sequences of a length, that no size of the model's is taken for."""
    fixed = [size for name, tensor in batch.items() for i, size in enumerate(tensor.shape) if i not in places.get(name, ())]
    sizes = {*fixed, *(size for tensor in [*model.parameters(), *model.buffers()] for size in tensor.shape)}
    samples = next(n for n in (3, 5, 7, 11, 13, 17, 19, 23, 29) if n not in sizes or n == 29)
    if places:
        longest = length_in(batch, places)
        length = next((s for s in range(longest, 3, -1) if s not in sizes | {samples}), longest)
        batch = of_length(batch, places, length)
    return rows(batch, samples)


def _labels_per_sample(batch: Mapping[str, Tensor], places: Mapping[str, Sequence[int]]) -> Polynomial:
    """The elements of a sample of `labels`."""
    if "labels" not in batch:
        return number(1)
    free = places.get("labels", ())
    fixed = [size for i, size in enumerate(batch["labels"].shape) if i > 0 and i not in free]
    return Polynomial.by_power({len(free): math.prod(fixed)})


# ---- What integers may be ----


def _found_bounds(captured: Captured) -> dict[str, int]:
    """Bounds of the inputs that are looked up in embeddings or are classes of a cross entropy."""
    bounds: dict[str, int] = {}
    for node, source in captured.sources.items():
        if source.kind == "input" and not node.meta["val"].is_floating_point():
            found = _bounds_by_use(node)
            if found:
                bounds[captured.input_names[source.index]] = min(found)
    return bounds


def _bounds_by_use(node: fx.Node) -> list[int]:
    found: list[int] = []
    for user in node.users:
        if user.target is aten.embedding.default and user.args[1] is node:
            found.append(int(_tensor(user.args[0]).shape[0]))
        elif user.target in (aten.cross_entropy_loss.default, aten.nll_loss_nd.default) and user.args[1] is node:
            scores = _tensor(user.args[0])
            found.append(int(scores.shape[min(1, scores.dim() - 1)]))
        elif user.op == "call_function" and is_view(user) and user.args[0] is node:
            found += _bounds_by_use(user)
    return found


def _tensor(node: Any) -> Tensor:
    value = node.meta["val"]
    assert isinstance(value, Tensor)
    return value


def _table(summaries: list[LayerSummary]) -> Iterator[str]:
    width = max(len(summary.name) for summary in summaries)
    yield f"{'layer':{width}}  {'parameters':>12}  {'hands on, bytes/sample':>22}  graph"
    for summary in summaries:
        yield f"{summary.name:{width}}  {summary.parameters:12,}  {summary.boundary_bytes:22,}  {summary.graph[:12]}"
    graphs = len({summary.graph for summary in summaries})
    yield f"{len(summaries)} layers, {graphs} different graphs"
