"""From a model, its loss and a batch to a directory that Harmony trains."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.parameter import is_lazy
from torch._subclasses.fake_tensor import FakeTensor

from . import autocast
from .analysis import Analysis, is_size
from .capture import Call, Captured, capture, is_view, quiet
from .chain import cut, dropouts_of
from .check import TOLERANCE, rows
from .check import check as check_directory
from .cuts import Cuts, find_cuts
from .devices import only_on_cpu
from .directory import Assembler, Description, LayerSummary, Loss, new_directory, write
from .dropout import KEYS, switched_off
from .errors import ExportError
from .explain import run_eagerly
from .labels import COUNTS, Counted, make_sum
from .lengths import Dynamic, Lengths, dimensions, find_lengths, length_in, of_length, special_lengths
from .losses import LossFunction, loss_call
from .memory import has_memory
from .polynomial import Polynomial, number
from .precision import Masters, check_runs, check_types, in_bfloat16
from .state import named_tensors, overlapping
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
    reduction         whether the loss is the "mean" or the "sum" over the labels; what is trained is the mean over
                      those of a batch, of a sum that by all labels
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
    if torch.is_inference_mode_enabled():
        raise ExportError("the export is called under torch.inference_mode()", fix="Call it outside: it needs gradients")
    _check_batch(sample_batch)
    check_types(model, dtype, keep_fp32, fused_loss, fast_products)
    call = loss_call(model, loss, sample_batch, dtype)
    _check_tensors(model)
    with_weights = weights and has_memory(model)
    places = dimensions(dynamic or {}, sample_batch)
    if places and sequence_length is not None:
        raise ExportError("sequence_length is given, and dynamic leaves it free", fix="Give one of the two")
    in_one_place = overlapping(named_tensors(model))
    for path, module in model.named_modules():
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse:
            raise ExportError("the gradients of this embedding are sparse", path, "Build it with sparse=False, which trains the same")
    labels = _labels_per_sample(sample_batch, places) if labels_per_sample is None else number(labels_per_sample)
    with (torch.enable_grad(), new_directory(Path(out), overwrite) as folder,
          switched_off(model, everything=not dropout) as zero, _training(model), _contiguous(model),
          in_bfloat16(model, keep_fp32) if dtype == "bf16" else contextlib.nullcontext(Masters()) as masters):
        if zero:
            report(f"not applied: {', '.join(zero)}")
        if has_memory(model):
            _run_once(model, call, sample_batch, dtype)
        captured = capture(model, call, _batch_to_trace(model, sample_batch, places), places, sample_batch)
        if _has_empty_cache(captured):
            report("keys and values are copied behind those of an empty cache, of which training makes no use: "
                   "config.use_cache = False leaves it out")
        frozen = Analysis(captured).frozen
        if frozen:
            report(f"not trained, for no gradient reaches them: {_listed(frozen)}")
        captured.state.refuse_untied(in_one_place)
        for entry in captured.state.entries:
            if entry.master is None:
                entry.master = masters.of(entry.tensor)
        lengths = find_lengths(captured, longest_sequence) if places else None
        counted, reason = make_sum(captured, lengths) if reduction == "mean" else (None, "")
        if reduction == "sum":
            report(f"of a loss that is a sum the mean is trained: the sum over a batch by its samples and their labels, "
                   f"{labels.text()} each, those that do not count (-100) among them")
        if reason:
            report(f"labels are not counted, each microbatch weighs the same: {reason}")
        described_loss = Loss(reduction, labels, fused=fused_loss) if counted is None else (
            Loss("sum", counted.per_sample, counted, fused_loss))
        chain = cut(captured, model, find_cuts(model, cuts, frozen))
        bounds = {**_found_bounds(captured, counted), **(values_below or {})}
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
            found = check_directory(folder, model, call, batches, reduction, dropouts_of(chain),
                                    _tolerance(dtype, captured) if tolerance is None else tolerance)
            if not found.is_mean:
                report(f"the loss of a batch is not the {reduction} of its samples' losses: each microbatch weighs the "
                       "same, and micro_batch_size is part of the result: give it in the job")
            report(str(found))
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
    if not isinstance(batch, Mapping) or not batch:
        what = "is empty" if isinstance(batch, Mapping) else f"is a {type(batch).__name__}"
        raise ExportError(f"the sample batch {what}", fix="Give tensors by name")
    for name, tensor in batch.items():
        if not isinstance(tensor, Tensor):
            raise ExportError(f"'{name}' of the sample batch is a {type(tensor).__name__}",
                              fix=f"Give a tensor: torch.as_tensor(batch['{name}'])")
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


def _check_tensors(model: nn.Module) -> None:
    for name, tensor in named_tensors(model):
        if is_lazy(tensor):
            raise ExportError("the parameter or buffer has no shape before the model has run", name, "Call the model once "
                              "before the export, with the inputs of the sample batch")
        if tensor.layout != torch.strided:
            raise ExportError(f"the tensor has the layout {tensor.layout}", name, "Make it a dense one: tensor.to_dense()")
        if tensor.is_inference():
            raise ExportError("the tensor was made under torch.inference_mode()", name, "Make the model outside of it")
        if tensor.device.type != "cpu":
            raise ExportError(f"the tensor lies on the device '{tensor.device}'", name,
                              "Call model.cpu(); make models without memory inside harmony_export.without_memory()")


def _run_once(model: nn.Module, call: Call, batch: Mapping[str, Tensor], dtype: str) -> None:
    """Lets a model make what it makes in its first forward and keeps, such as tables in a cache, which tracing would
    leave without numbers. Whether the model runs at all in fp32 is seen later, with more to say of it."""
    if dtype != "fp32":
        check_runs(model, call, batch, dtype)
        return
    with contextlib.suppress(Exception), quiet():
        run_eagerly(model, call, rows(batch, 2))


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


def _found_bounds(captured: Captured, counted: Counted | None) -> dict[str, int]:
    """Bounds of the inputs that are looked up in embeddings or are classes of a cross entropy. Of labels that are not
    counted, or that more than the loss reads, those that do not count (-100) would be out of bounds in a job."""
    bounds: dict[str, int] = {}
    for node, source in captured.sources.items():
        if source.kind == "input" and not node.meta["val"].is_floating_point():
            readers = list(_readers(node))
            found = [int(_tensor(reader.args[0]).shape[0]) for reader, read in readers
                     if reader.target is aten.embedding.default and reader.args[1] is read]
            if counted is not None and counted.input == source.index and [reader for reader, _ in readers] == [captured.loss]:
                scores = _tensor(captured.loss.args[0])
                found.append(int(scores.shape[min(1, scores.dim() - 1)]))
            if found:
                bounds[captured.input_names[source.index]] = min(found)
    return bounds


def _readers(node: fx.Node) -> Iterator[tuple[fx.Node, fx.Node]]:
    """What reads the numbers of a node, and which view of it."""
    for user in node.users:
        if user.op == "call_function" and is_view(user) and user.args[0] is node:
            yield from _readers(user)
        elif not is_size(user):
            yield user, node


def _tensor(node: Any) -> Tensor:
    value = node.meta["val"]
    assert isinstance(value, Tensor)
    return value


def _listed(names: Sequence[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _table(summaries: list[LayerSummary]) -> Iterator[str]:
    width = max(len(summary.name) for summary in summaries)
    yield f"{'layer':{width}}  {'parameters':>12}  {'hands on, bytes/sample':>22}  graph"
    for summary in summaries:
        yield f"{summary.name:{width}}  {summary.parameters:12,}  {summary.boundary_bytes:22,}  {summary.graph[:12]}"
    graphs = len({summary.graph for summary in summaries})
    yield f"{len(summaries)} layers, {graphs} different graphs"
