#!/usr/bin/env python3
"""Exports the models that tests train: make_models.py NAME DIR, or make_models.py --list.

With --expected also writes, beside the exported model, what plain PyTorch training makes of it: DIR/data/NAME.npy
for each batch input, all samples in order, and DIR/expected.safetensors (see eager.py).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "client" / "export"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy
import torch
from torch import Tensor, nn

import autocast_models
import eager
import own_models
from harmony_export import export
from harmony_export.capture import capture
from harmony_export.chain import cut, dropouts_of
from harmony_export.check import drawing, rows
from harmony_export.cuts import find_cuts
from harmony_export.dropout import KEYS, Place, sample_keys, switched_off
from harmony_export.losses import loss_call
from harmony_export.precision import in_bfloat16
from harmony_export.tasks import hugging_face, torchvision


@dataclass
class Case:
    """A model with its loss and a batch."""

    model: nn.Module
    loss: Any
    batch: dict[str, Tensor]
    options: dict[str, Any] = field(default_factory=dict)
    holes: float = 0  # the share of labels that are -100
    keep_fp32: list[str] = field(default_factory=list)

    def options_in(self, dtype: str) -> dict[str, Any]:
        """How it is exported in a type."""
        return {**self.options, "dtype": dtype, "keep_fp32": self.keep_fp32 if dtype == "bf16" else ()}


def images(samples: int, classes: int, size: int = 16, channels: int = 3) -> dict[str, Tensor]:
    """Noise with labels."""
    return {"pixel_values": torch.randn(samples, channels, size, size),
            "labels": torch.randint(0, classes, (samples,))}


def mlp() -> Case:
    layers = [nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(),
              nn.Linear(32, 10)]
    batch = {"x": torch.randn(4, 16), "labels": torch.randint(0, 10, (4,))}
    return Case(nn.Sequential(*layers), "cross_entropy", batch, {"name": "mlp"})


def hf(task: str, kind: str, length: int | None = None, dropout: bool = False, attention_mask: bool = False,
       holes: float = 0, **keys: Any) -> Case:
    """A small model of transformers."""
    import transformers

    config = getattr(transformers, kind)(**keys)
    made = hugging_face(config, task, sequence_length=length, seed=1, dropout=dropout,
                         attention_mask=attention_mask, narrow=True)
    return Case(made.model, made.loss, made.sample_batch, {
        "name": made.name, "values_below": made.values_below, "sequence_length": made.sequence_length,
        "dropout": dropout}, holes, made.keep_fp32)


def vision(name: str, image_size: int = 64) -> Case:
    """A model of torchvision, as published but for small images; not so small that a BatchNorm sees as many numbers as
    there are samples, for of two numbers it makes 1 and -1, and gradients are rounding."""
    made = torchvision(name, "cross_entropy", classes=10, image_size=image_size, seed=1)
    return Case(made.model, made.loss, made.sample_batch, {"name": name, "dropout": False})


def fused(case: Case) -> Case:
    """The same with the loss and the linear layer before it as one operation."""
    return replace(case, options={**case.options, "fused_loss": True})


def fast(case: Case) -> Case:
    """The same with products of matrices by the runtime's own kernel."""
    return replace(case, options={**case.options, "fast_products": True})


def own(model: nn.Module, loss: Any = "cross_entropy", **options: Any) -> Case:
    """A model of images written by hand."""
    return Case(model, loss, images(4, 10), options)


def tokens(samples: int, length: int, vocabulary: int) -> Tensor:
    """Random tokens."""
    return torch.randint(0, vocabulary, (samples, length))


def unet() -> Case:
    return Case(own_models.UNetwork(), "cross_entropy", {
        "pixel_values": torch.randn(2, 3, 16, 16), "labels": torch.randint(0, 4, (2, 16, 16))})


def gcn() -> Case:
    return Case(own_models.GraphNetwork(), "cross_entropy", {
        "x": torch.randn(4, 12, 8), "labels": torch.randint(0, 3, (4, 12))})


def tagger(kind: type[nn.RNNBase]) -> Case:
    return Case(own_models.RecurrentTagger(kind), "cross_entropy", {
        "input_ids": tokens(4, 6, 50), "labels": tokens(4, 6, 5)}, {"sequence_length": 6})


def mixture() -> Case:
    return Case(own_models.Mixture(), None, {"input_ids": tokens(4, 16, 64), "labels": tokens(4, 16, 64)},
                {"sequence_length": 16})


def vectors(model: nn.Module) -> Case:
    return Case(model, "cross_entropy", {"x": torch.randn(4, 8), "labels": torch.randint(0, 5, (4,))})


def translator() -> Case:
    return Case(own_models.Translator(), "cross_entropy", {
        "source": tokens(4, 7, 50), "target": tokens(4, 6, 50), "labels": tokens(4, 6, 50)})


def gat() -> Case:
    adjacency = ((torch.rand(4, 7, 7) < 0.4) | torch.eye(7).bool()).to(torch.uint8)
    return Case(own_models.GraphAttentionNetwork(), "cross_entropy", {
        "x": torch.randn(4, 7, 6), "adjacency": adjacency, "labels": tokens(4, 7, 5)})


def regions() -> Case:
    return Case(autocast_models.Blocks(), "cross_entropy", {
        "x": torch.randn(4, 6, 8), "labels": torch.randint(0, 5, (4,))})


def lora() -> Case:
    return vectors(nn.Sequential(nn.Linear(8, 16), *[own_models.LowRank(16) for _ in range(3)], nn.Linear(16, 5)))


BERT = {"vocab_size": 128, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
        "intermediate_size": 128, "max_position_embeddings": 48}
LLAMA = {"vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "intermediate_size": 128, "max_position_embeddings": 64}
T5 = {"vocab_size": 128, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4}
VIT = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
       "image_size": 32, "patch_size": 8, "num_labels": 10}

MODELS: dict[str, Callable[[], Case]] = {
    "mlp": mlp,
    "cnn": lambda: own(own_models.ResidualNetwork()),
    "vgg": lambda: own(own_models.PlainConvolutions()),
    "mobilenet": lambda: own(own_models.MobileNetwork()),
    "densenet": lambda: own(own_models.DenseNetwork()),
    "unet": unet,
    "gcn": gcn,
    "lstm": lambda: tagger(nn.LSTM),
    "gru": lambda: tagger(nn.GRU),
    "mixture": mixture,
    "traps": lambda: vectors(own_models.Traps()),
    "repeated": lambda: vectors(own_models.Repeated()),
    "lora": lora,
    "translator": translator,
    "upscaler": lambda: Case(own_models.Upscaler(), None, {"pixel_values": torch.randn(4, 3, 16, 16)}),
    "mixer": lambda: own(own_models.Mixer()),
    "gat": gat,
    "gpt2": lambda: hf("causal-lm", "GPT2Config", 32, vocab_size=256, n_positions=32, n_embd=64, n_layer=2, n_head=4,
                       bos_token_id=0, eos_token_id=0),
    "llama": lambda: hf("causal-lm", "LlamaConfig", 32, **LLAMA),
    "llama_fast": lambda: fast(hf("causal-lm", "LlamaConfig", 32, **LLAMA)),
    "mixtral": lambda: hf("causal-lm", "MixtralConfig", 16, **LLAMA, num_local_experts=4, num_experts_per_tok=2),
    "opt": lambda: hf("causal-lm", "OPTConfig", 32, vocab_size=128, hidden_size=64, num_hidden_layers=2, ffn_dim=128,
                      num_attention_heads=4, max_position_embeddings=64, word_embed_proj_dim=64, layerdrop=0.1),
    "gpt_neox": lambda: hf("causal-lm", "GPTNeoXConfig", 32, **BERT),
    "qwen3": lambda: hf("causal-lm", "Qwen3Config", 32, **LLAMA, head_dim=16),
    "gemma2": lambda: hf("causal-lm", "Gemma2Config", 24, **LLAMA, head_dim=16, sliding_window=8),
    "mamba": lambda: hf("causal-lm", "MambaConfig", 8, vocab_size=128, hidden_size=32, num_hidden_layers=2,
                        state_size=4),
    "bert": lambda: hf("masked-lm", "BertConfig", 24, **BERT),
    "bert_masked": lambda: hf("masked-lm", "BertConfig", 24, **BERT, dropout=True, attention_mask=True, holes=0.8),
    "bert_fused": lambda: fused(hf("masked-lm", "BertConfig", 24, **BERT, dropout=True, attention_mask=True,
                                   holes=0.8)),
    "roberta": lambda: hf("masked-lm", "RobertaConfig", 24, **BERT),
    "albert": lambda: hf("masked-lm", "AlbertConfig", 24, **BERT, embedding_size=32),
    "distilbert": lambda: hf("masked-lm", "DistilBertConfig", 24, vocab_size=128, dim=64, n_layers=2, n_heads=4,
                             hidden_dim=128, max_position_embeddings=48),
    "deberta": lambda: hf("masked-lm", "DebertaV2Config", 24, **BERT, relative_attention=True,
                          pos_att_type=["p2c", "c2p"]),
    "t5": lambda: hf("seq2seq", "T5Config", 20, **T5),
    "bart": lambda: hf("seq2seq", "BartConfig", 20, vocab_size=128, d_model=64, encoder_layers=2, decoder_layers=2,
                       encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=128,
                       decoder_ffn_dim=128, max_position_embeddings=48),
    "vit": lambda: hf("image-classification", "ViTConfig", **VIT),
    "swin": lambda: hf("image-classification", "SwinConfig", image_size=32, patch_size=2, embed_dim=16, depths=[2, 2],
                       num_heads=[2, 4], window_size=4, num_labels=10),
    "convnext": lambda: hf("image-classification", "ConvNextConfig", image_size=32, hidden_sizes=[16, 32],
                           depths=[2, 2], num_stages=2, patch_size=4, num_labels=10),
    "resnet": lambda: hf("image-classification", "ResNetConfig", embedding_size=8, hidden_sizes=[16, 32],
                         depths=[2, 2], layer_type="bottleneck", image_size=32, num_labels=10),
    "shufflenet": lambda: vision("shufflenet_v2_x0_5"),
    "efficientnet": lambda: vision("efficientnet_b0"),
    "regions": regions,
}


def make(name: str) -> Case:
    """A model with its weights, the same each time."""
    torch.manual_seed(0)
    return MODELS[name]()


def sample(case: Case, samples: int) -> dict[str, Tensor]:
    """Random samples like those of the case's batch; graphs as they are."""
    torch.manual_seed(7)
    batch = {}
    for name, tensor in case.batch.items():
        if name == "adjacency":
            batch[name] = tensor[torch.arange(samples) % len(tensor)]
        elif tensor.is_floating_point():
            batch[name] = torch.randn(samples, *tensor.shape[1:])
        else:
            batch[name] = torch.randint(0, int(tensor.max()) + 1, (samples, *tensor.shape[1:]))
    if case.holes:
        batch["labels"] = batch["labels"].masked_fill(torch.rand(batch["labels"].shape) < case.holes, -100)
    return batch


def places_of(case: Case, dtype: str) -> list[Place]:
    """Where its dropouts stand in the chain."""
    call = loss_call(case.model, case.loss, case.batch, dtype)
    with switched_off(case.model, everything=False):
        captured = capture(case.model, call, rows(case.batch, 3))
        return dropouts_of(cut(captured, case.model, find_cuts(case.model, "auto")))


def batches_of(case: Case, steps: int, size: int) -> list[dict[str, Tensor]]:
    """What `sample` makes, a batch of so many samples for each step."""
    data = sample(case, steps * size)
    return [{key: tensor.chunk(steps)[i] for key, tensor in data.items()} for i in range(steps)]


def expect(case: Case, folder: Path, steps: int, microbatches: int, size: int, optimizer: eager.Optimizer,
           dtype: str = "fp32") -> tuple[list[float], dict[str, Tensor]]:
    """What plain PyTorch makes of a model that was exported to a folder: the steps' losses, and the state dict at the
    end. With the dtype "bf16" the model is in bfloat16 already."""
    batches = batches_of(case, steps, microbatches * size)
    call = loss_call(case.model, case.loss, case.batch, dtype)
    dropout = case.options.get("dropout", False)
    if dropout:
        call = drawing(call, places_of(case, dtype))
        batches = [{**part, KEYS: sample_keys(0, step, microbatches * size)} for step, part in enumerate(batches)]
    document = json.loads((folder / "model.json").read_text())
    with switched_off(case.model, everything=not dropout):
        return eager.train(case.model, call, batches, microbatches, optimizer, document)


def expect_sgd(case: Case, folder: Path, steps: int, microbatches: int, size: int, learning_rate: float, dtype: str
               ) -> tuple[list[float], dict[str, Tensor]]:
    """The same by SGD of a model that was exported with that dtype; trained parameters are in float32 at the end."""
    if dtype != "bf16":
        return expect(case, folder, steps, microbatches, size, eager.Sgd(case.model, learning_rate), dtype)
    with in_bfloat16(case.model, case.keep_fp32) as masters:
        optimizer = eager.MixedSgd(case.model, masters, learning_rate)
        losses, _ = expect(case, folder, steps, microbatches, size, optimizer, dtype)
    return losses, {name: tensor.detach().clone() for name, tensor in case.model.state_dict().items()}


def write_expected(name: str, folder: Path, steps: int, microbatches: int, size: int, learning_rate: float,
                   dtype: str = "fp32") -> None:
    """Trains a model in plain PyTorch by SGD and writes its data and results."""
    case = make(name)
    (folder / "data").mkdir(exist_ok=True)
    for key, tensor in sample(case, steps * microbatches * size).items():
        numpy.save(folder / "data" / f"{key}.npy", tensor.numpy())
    losses, state = expect_sgd(case, folder, steps, microbatches, size, learning_rate, dtype)
    eager.write_expected(folder / "expected.safetensors", losses, state)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("name", nargs="?", choices=sorted(MODELS))
    parser.add_argument("directory", nargs="?", type=Path)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--expected", action="store_true")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--microbatches", type=int, default=3)
    parser.add_argument("--size", type=int, default=2, help="samples of a microbatch")
    parser.add_argument("--learning-rate", type=float, default=0.1)
    args = parser.parse_args()
    if args.list:
        print("\n".join(MODELS))
        return
    if args.name is None or args.directory is None:
        parser.error("give the name of a model and a directory")
    torch.set_num_threads(1)
    case = make(args.name)
    export(case.model, case.loss, case.batch, out=args.directory, overwrite=True,
           **{"name": args.name, "dropout": False, **case.options})
    if args.expected:
        write_expected(args.name, args.directory, args.steps, args.microbatches, args.size, args.learning_rate)


if __name__ == "__main__":
    main()
