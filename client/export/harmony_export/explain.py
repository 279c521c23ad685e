"""Why a model cannot be traced, in our words: what torch.export says, what it assumed before, and what eager PyTorch
does with the same model."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import sympy
import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import PreDispatchTorchFunctionMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.overrides import _get_current_function_mode_stack

from . import places
from .errors import ExportError
from .memory import has_memory
from .polynomial import LENGTH, SAMPLES
from .symbols import grows, named

aten = torch.ops.aten

_SOME_LENGTHS = (*range(2, 18), 61, 64, 2**17)  # at which assumptions of the length may not hold
_RESHAPES = (aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten.unflatten.int)
_FIX_SAMPLES = ("Take the batch size from the inputs (x.size(0)) and write no number in its place; what makes a number "
                "of it, such as range, int() or a loop over samples, fixes it as well")
_FIX_LENGTH = ("Take the length from the inputs (x.size(1)) and write no number in its place, or export with a fixed "
               "length: without dynamic=... (--any-sequence-length)")


def run_eagerly(model: nn.Module, call: Callable[..., Tensor], batch: Mapping[str, Tensor]) -> None:
    """Runs model and loss once, and leaves buffers, those that are assigned too, and random numbers as they were."""
    buffers = [(module, name, buffer, buffer.clone()) for module in model.modules()
               for name, buffer in module._buffers.items() if buffer is not None]
    try:
        with torch.enable_grad(), torch.random.fork_rng(devices=[]):
            call(model, dict(batch))
    finally:
        with torch.no_grad():
            for module, name, buffer, value in buffers:
                module._buffers[name] = buffer
                buffer.copy_(value)


def does_not_run(error: Exception, model: nn.Module) -> ExportError:
    """What is said of a model that eager PyTorch does not run on the batch that the user gave."""
    return ExportError(f"the model does not run on the sample batch in eager PyTorch ({error_text(error)})",
                       places.of_exception(error, model), "Give a batch of which model(...) and the loss can be computed")


def graphs_do_not_run(error: Exception, samples: int) -> ExportError:
    """What is said of exported graphs that fail where eager PyTorch does not."""
    return ExportError(f"the exported graphs do not run with {samples_text(samples)} ({error_text(error)})",
                       fix="Eager PyTorch runs the model on them, so this is a fault of the export")


def samples_text(samples: int) -> str:
    """As in '1 sample'."""
    return f"{samples} sample{'s' if samples > 1 else ''}"


class Assumptions:
    """Where in the code tracing came to assume something of the number of samples or of the sequences' length."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._of_samples = ""
        self.of_lengths: dict[Any, str] = {}  # by guard of the length of sequences, the place that made it
        self._graph: fx.Graph | None = None

    @contextlib.contextmanager
    def recorded(self) -> Iterator[None]:
        """Inside the block assumptions are looked at as they are made."""
        original = ShapeEnv._log_guard

        def log(env: ShapeEnv, prefix: str, guard: Any, *more: Any, **options: Any) -> None:
            self._look_at(guard, named(env, guard))
            original(env, prefix, guard, *more, **options)

        setattr(ShapeEnv, "_log_guard", log)
        try:
            yield
        finally:
            setattr(ShapeEnv, "_log_guard", original)

    def begin(self) -> None:
        """Called where the program begins: what is traced from here on can be looked at after a failure."""
        for mode in _get_current_function_mode_stack():  # type: ignore[no-untyped-call]
            if isinstance(mode, PreDispatchTorchFunctionMode):
                self._graph = mode.tracer.graph
                # Functions that are called in a forward are places as well.
                mode.tracer._record_forward_stack_traces_only = False

    def of_samples(self) -> str:
        """The place that fixed the number of samples; empty where none is known."""
        return self._of_samples or self._reshape_of_samples()

    def of_length(self) -> str:
        """The place that fixed the length of the sequences; empty where none is known."""
        equal = [place for guard, place in self.of_lengths.items() if isinstance(guard, sympy.Eq)]
        return next(iter(equal or self.of_lengths.values()), "")

    def _look_at(self, guard: Any, of_ours: Any) -> None:
        symbols = of_ours.free_symbols
        if symbols == {SAMPLES} and not self._of_samples and not all(_holds(of_ours, SAMPLES, n) for n in range(2, 65)):
            self._of_samples = places.of_running(self._model)
        if symbols == {LENGTH} and not all(_holds(of_ours, LENGTH, s) for s in _SOME_LENGTHS):
            self.of_lengths.setdefault(guard, places.of_running(self._model))

    def _reshape_of_samples(self) -> str:
        """Of x.view(2, -1), which is no error by itself, but makes the samples part of another dimension."""
        for node in self._graph.nodes if self._graph is not None else ():
            if node.target in _RESHAPES and grows(_first_size(node.args[0])) and not grows(_first_size(node)):
                return places.of_node(node)
        return ""


def _holds(guard: Any, symbol: Any, value: int) -> bool:
    return bool(guard.subs({symbol: value}))


def _first_size(node: Any) -> Any:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return value.shape[0] if isinstance(value, Tensor) and value.dim() else None


def explained(error: Exception, model: nn.Module, assumptions: Assumptions, call: Callable[..., Tensor],
              given: Mapping[str, Tensor]) -> ExportError:
    """What torch.export has to say of a model and its loss, which were given that batch."""
    for cause in places.causes(error):
        if isinstance(cause, ExportError):
            place = places.of_exception(error, model)
            return cause if cause.where or not _has_line(place) else ExportError(cause.what, place, cause.fix)
    where = places.of_exception(error, model)
    kinds = " ".join(kind.__name__ for kind in type(error).__mro__)
    text = str(error).strip()
    line = text.split("\n", maxsplit=1)[0]
    first = re.sub(r"\bs\d+\b", "n", line)
    by_values = ("DataDependent", "DynamicOutputShape")
    if any(kind in kinds for kind in by_values) or "data-dependent" in text.lower() or "unbacked" in text.lower():
        return ExportError(f"control flow or a size depends on the values of tensors{_unless_placed(where, first)}", where,
                           "Use torch.where, masks, or loops of a fixed length")
    failure = _eager_failure(model, call, given)
    if failure is not None:
        return does_not_run(failure, model)
    violated = "Constraint" in kinds or "constraints violated" in text.lower()
    if violated or first != line:
        reason = next((line.strip() for line in text.split("\n") if "dynamic_shapes" in line or "- " in line), first)
        if re.search(r"size\(\)\[[1-9]", reason):
            where = assumptions.of_length() or where
            return ExportError(f"the model fixes the length of the sequences{_unless_placed(where, reason)}", where,
                               _FIX_LENGTH)
        where = assumptions.of_samples() or where
        # What a kernel's shape function says names sizes; what torch.export says of constraints does not.
        said = _unless_placed(where, reason) if violated else f", n ({first.rstrip('.)')})"
        return ExportError(f"the model fixes the number of samples{said}", where, _FIX_SAMPLES)
    return ExportError(f"torch.export cannot trace the model ({error_text(error)})", where,
                       "Write it with PyTorch's own tensor operations")


def _unless_placed(where: str, reason: str) -> str:
    """What torch.export says helps where the code is not known."""
    return "" if _has_line(where) else f" ({reason})"


def _has_line(where: str) -> bool:
    return where.endswith(")")


def error_text(error: BaseException) -> str:
    """What an error is, and says, in a message of ours."""
    return f"{type(error).__name__}: {str(error).strip()[:1500].rstrip('.')}"


def _eager_failure(model: nn.Module, call: Callable[..., Tensor], given: Mapping[str, Tensor]) -> Exception | None:
    if not has_memory(model):
        return None
    try:
        run_eagerly(model, call, given)
    except Exception as error:
        return error
    return None
