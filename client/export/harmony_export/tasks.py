"""Models of transformers and torchvision with the loss of a task."""

from __future__ import annotations

import contextlib
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from .directory import COPIED
from .dropout import names_of, set_to_zero
from .errors import ExportError
from .memory import without_memory

TASKS = ("causal-lm", "masked-lm", "seq2seq", "image-classification")
_MOST_SEQUENCE = 1024
_MASK = "attention_mask"
_HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")


@dataclass
class Task:
    """A model and what `export` needs to know of it."""

    model: nn.Module
    loss: Callable[[Any, Mapping[str, Tensor]], Tensor]
    sample_batch: dict[str, Tensor]
    name: str
    values_below: dict[str, int] = field(default_factory=dict)
    sequence_length: int | None = None
    dynamic: dict[str, int] | None = None
    longest_sequence: int | None = None
    keep_fp32: list[str] = field(default_factory=list)
    copies: list[Path] = field(default_factory=list)


def hugging_face(source: str | Path | Any, task: str, *, sequence_length: int | None = None, seed: int = 0,
                 pretrained: bool = False, fake: bool = False, attention: str | None = None,
                 attention_mask: bool = False, dropout: bool = True, any_length: bool = False,
                 narrow: bool = False, report: Callable[[str], None] = print) -> Task:
    """A model of transformers: `source` is a local directory, a name of the Hugging Face hub whose files are in the local
    cache, or a configuration. Without `pretrained` its weights
    are drawn anew from the seed; with `fake` they take no memory and are not written. `attention` is transformers'
    implementation of it, such as "sdpa" or "eager"; with `attention_mask` it is told which tokens are there. Without
    `dropout` nothing is dropped. With `any_length` the length of sequences is free, up to the model's longest.
    `narrow` says that it will be exported in bf16: what transformers keeps in fp32 then is named. `report` is told what
    the configuration asks for and no export applies, such as stochastic depth."""
    transformers = _import("transformers", "Install transformers to export its models")
    if task not in TASKS:
        raise ExportError(f"the task '{task}' is not known", fix=f"Give one of {', '.join(TASKS)}")
    if any_length and task == "image-classification":
        raise ExportError("images have no sequence length to leave free", fix="Leave out --any-sequence-length")
    folder = local_directory(source) if isinstance(source, (str, Path)) else None
    if folder is not None and not (folder / "config.json").is_file():
        raise ExportError(f"{folder} has no config.json", fix="Give a local directory of a Hugging Face model")
    if sequence_length is not None and sequence_length < 1:
        raise ExportError(f"the sequence length is {sequence_length}", fix="Give 1 or more")
    if folder is None and pretrained:
        raise ExportError("a configuration has no weights", fix="Give the directory of the pretrained model")
    config: Any = source
    if folder is not None:
        with _faults_of(f"{folder / 'config.json'}", "Give the directory of a model that this version of transformers knows"):
            config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    parts = [part for part in (config, *vars(config).values()) if isinstance(part, transformers.PretrainedConfig)]
    zero = names_of([change for part in parts for change in set_to_zero(part, everything=not dropout)])
    if zero and dropout:
        report(f"not applied: {', '.join(zero)}")
    for part in parts:
        if getattr(part, "output_router_logits", False):
            report(f"not applied: the loss that balances experts ({type(part).__name__}.output_router_logits)")
    problem = getattr(config, "problem_type", None)
    if task == "image-classification" and problem not in (None, "single_label_classification"):
        raise ExportError(f"the configuration has problem_type {problem}, and this task trains one class of each image",
                          fix="Export the model by harmony_export.export with loss=None")
    config.use_cache = False
    if attention is not None:
        config._attn_implementation = attention
    build = getattr(transformers, {
        "causal-lm": "AutoModelForCausalLM",
        "masked-lm": "AutoModelForMaskedLM",
        "seq2seq": "AutoModelForSeq2SeqLM",
        "image-classification": "AutoModelForImageClassification",
    }[task])
    classes = build._model_mapping.get(type(config), None)
    if isinstance(classes, (tuple, list)) and not config.architectures:
        config.architectures = [classes[0].__name__]
    torch.manual_seed(seed)
    with (_faults_of(str(folder or type(config).__name__), f"Give a model that has a form for {task}, with weights of its own shapes"),
          without_memory() if fake else contextlib.nullcontext()):
        if pretrained and not fake:
            model = build.from_pretrained(folder, config=config, local_files_only=True, dtype=torch.float32)
        else:
            model = build.from_config(config, dtype=torch.float32)
    keep = _kept_in_float32(build, config) if narrow else []
    name = _name_of(source, folder) if folder else config.model_type
    copies = _files_to_copy(folder) if folder else []
    if task == "image-classification":
        return Task(model.train(), _cross_entropy, _image_batch(config), name, keep_fp32=keep, copies=copies)
    length = min(_MOST_SEQUENCE, _longest_sequence(config)) if sequence_length is None else sequence_length
    batch = _text_batch(config, task, length, attention_mask)
    made = Task(model.train(), _cross_entropy, batch, name, _text_bounds(config, task, attention_mask), keep_fp32=keep,
                copies=copies)
    if any_length:
        made.dynamic = {name: 1 for name in batch}
        made.longest_sequence = _longest_sequence(config, otherwise=None)
    else:
        made.sequence_length = length
    return made


def local_directory(source: str | Path) -> Path:
    """A directory of a model of transformers; of a name of the hub, that which the local cache has. Nothing is
    downloaded."""
    if Path(source).is_dir():
        return Path(source)
    name = str(source)
    if not _HUB_NAME.fullmatch(name):
        raise ExportError(f"there is no directory {name}", fix="Give a local directory of a Hugging Face model, or a name "
                          "of the hub such as bert-base-uncased")
    hub = _import("huggingface_hub", "Install transformers to export its models")
    try:
        return Path(hub.snapshot_download(name, local_files_only=True))
    except (OSError, ValueError) as error:  # of its own errors, all are one of these
        raise ExportError(f"{name} is no directory, nor a model in the local cache of the Hugging Face hub "
                          f"({hub.constants.HF_HUB_CACHE})", fix=f"Download it before: hf download {name}") from error


def has_weights(folder: Path) -> bool:
    """Whether a directory of a model of transformers has weights."""
    return any(next(folder.glob(pattern), None) for pattern in ("*.safetensors", "pytorch_model*.bin"))


def _name_of(source: Any, folder: Path) -> str:
    """The cache's own directories have other names than their models."""
    return folder.resolve().name if Path(source).is_dir() else str(source).rpartition("/")[2]


def _kept_in_float32(build: Any, config: Any) -> list[str]:
    """Parameters and buffers that transformers makes in float32 where it makes a model in bfloat16, such as the
    frequencies of rotary embeddings."""
    with without_memory(), torch.random.fork_rng(devices=[]):
        model = build.from_config(config, dtype=torch.bfloat16)
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return [name for name, tensor in tensors if tensor.dtype == torch.float32]


def torchvision(name: str, loss: str, *, classes: int = 1000, image_size: int = 224, seed: int = 0,
                fake: bool = False) -> Task:
    """A model of torchvision with weights drawn from the seed."""
    models = _import("torchvision", "Install torchvision to export its models").models
    if name not in models.list_models():
        raise ExportError(f"torchvision has no model '{name}'", fix="torchvision.models.list_models() names them")
    if loss != "cross_entropy":
        raise ExportError(f"the loss '{loss}' is not known", fix="Give cross_entropy")
    torch.manual_seed(seed)
    with without_memory() if fake else contextlib.nullcontext():
        model = models.get_model(name, weights=None, num_classes=classes)
    batch = {"pixel_values": torch.randn(2, 3, image_size, image_size), "labels": torch.arange(2) % classes}
    return Task(model.train(), _cross_entropy, batch, name)


@contextlib.contextmanager
def _faults_of(where: str, fix: str) -> Iterator[None]:
    """What transformers says of a model that it cannot make, in a line."""
    try:
        yield
    except Exception as error:  # of any type that a library of it has
        raise ExportError(textwrap.shorten(str(error), 400, placeholder=" ...").rstrip("."), where, fix) from error


def _import(name: str, fix: str) -> Any:
    try:
        return __import__(name)
    except ImportError as error:
        raise ExportError(f"{name} is not installed", fix=fix) from error


def _cross_entropy(result: Any, batch: Mapping[str, Tensor]) -> Tensor:
    """The mean over all labels; classes are the last dimension."""
    logits = result if isinstance(result, Tensor) else result.logits
    return functional.cross_entropy(logits.flatten(0, -2).float(), batch["labels"].flatten())


# ---- Sample batches ----


def _text_config(config: Any) -> Any:
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def _longest_sequence(config: Any, otherwise: int | None = _MOST_SEQUENCE) -> Any:
    text = _text_config(config)
    for key in ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"):
        value = getattr(text, key, None)
        if isinstance(value, int) and value > 0:
            # Some count positions from behind the padding token.
            offset = (text.pad_token_id or 0) + 1 if text.model_type in ("roberta", "xlm-roberta", "camembert") else 0
            return value - offset
    return otherwise


def _text_batch(config: Any, task: str, length: int, attention_mask: bool) -> dict[str, Tensor]:
    vocabulary = _text_config(config).vocab_size

    def tokens() -> Tensor:
        return torch.randint(0, vocabulary, (2, length))

    names = ["input_ids", "decoder_input_ids", "labels"] if task == "seq2seq" else ["input_ids", "labels"]
    batch = {name: tokens() for name in names}
    if attention_mask:
        # Padding at the beginning of the second sample, where causal models look at nothing.
        batch[_MASK] = (torch.arange(length) >= torch.tensor([[0], [length // 3]])).long()
    return batch


def _text_bounds(config: Any, task: str, attention_mask: bool) -> dict[str, int]:
    names = _text_batch(config, task, 1, attention_mask)
    return {name: 2 if name == _MASK else _text_config(config).vocab_size for name in names}


def _image_batch(config: Any) -> dict[str, Tensor]:
    size = getattr(config, "image_size", None) or 224
    height, width = (size, size) if isinstance(size, int) else size
    pixels = torch.randn(2, getattr(config, "num_channels", 3), height, width)
    return {"pixel_values": pixels, "labels": torch.arange(2) % config.num_labels}


def _files_to_copy(folder: Path) -> list[Path]:
    return sorted({path for pattern in COPIED for path in folder.glob(pattern) if path.is_file()})
