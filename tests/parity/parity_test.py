#!/usr/bin/env python3
"""Harmony's training against transformers + PyTorch, in fp32 or mixed precision.

For each architecture: makes a small checkpoint with every parameter away from its default, trains it
20 steps in transformers and by COMMAND on the same data, and compares each step's loss (1e-5
relative) and the final weights (1e-4), loaded through from_pretrained from output_dir/final.

    .deps/parity-venv/bin/python tests/parity/parity_test.py [--command CMD] [--only NAME] [--keep DIR] [--bf16]

With --bf16 it is `bf16: true` that is compared, by three recipes for each architecture. PyTorch trains in
bf16 from fp32 masters three times: with its fused attention, with the plain one, and by autocast. How far
these are from each other is the spread of the losses; Harmony's must not be further from the first.

CMD gets the job file's path in place of {job}; the default is the plain trainer,
`build/bin/plain_trainer {job}`; for the system: `build/bin/harmony run {job} --devices sim*2:mem=64MiB`.
Exits 1 when a case fails. Needs tests/parity/requirements.txt.
"""
import argparse
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import torch_loader  # noqa: F401  (before torch)
import numpy as np
import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parents[2]
VOCABULARY = 211
STEPS, BATCH, MICROBATCH, TOKENS = 20, 8, 2, 48
JOB = dict(learning_rate=3e-4, weight_decay=0.1, adam_beta1=0.9, adam_beta2=0.95, adam_epsilon=1e-8,
           lr_scheduler_type="constant", warmup_steps=0, max_grad_norm=0)
LLAMA3_SCALING = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                      original_max_position_embeddings=32, rope_theta=10000.0)


def gpt2(**changes):
    return transformers.GPT2Config(**{**dict(
        vocab_size=VOCABULARY, n_positions=64, n_embd=64, n_layer=3, n_head=4, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0), **changes})


def llama_like(config_class, **changes):
    return config_class(**{**dict(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=112, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64, bos_token_id=0,
        eos_token_id=0, pad_token_id=None), **changes})


# name -> (config, changes to the job)
CASES = {
    "gpt2": (lambda: gpt2(), {}),
    "gpt2_untied": (lambda: gpt2(tie_word_embeddings=False, n_inner=96), {}),
    "gpt2_clipped": (lambda: gpt2(), dict(max_grad_norm=0.5, lr_scheduler_type="cosine",
                                          warmup_steps=5)),
    "llama": (lambda: llama_like(transformers.LlamaConfig, tie_word_embeddings=False,
                                 rope_parameters=LLAMA3_SCALING), {}),
    "llama_head_dim": (lambda: llama_like(transformers.LlamaConfig, head_dim=24, rms_norm_eps=1e-5,
                                          tie_word_embeddings=True, attention_bias=True,
                                          mlp_bias=True), {}),
    "llama_linear": (lambda: llama_like(
        transformers.LlamaConfig, num_key_value_heads=4,
        rope_parameters=dict(rope_type="linear", factor=2.0, rope_theta=5e5)), {}),
    "llama_padding": (lambda: llama_like(transformers.LlamaConfig, tie_word_embeddings=True,
                                         pad_token_id=7), {}),
    "mistral": (lambda: llama_like(transformers.MistralConfig, sliding_window=None,
                                   tie_word_embeddings=False), dict(lr_scheduler_type="linear")),
    "qwen2": (lambda: llama_like(transformers.Qwen2Config, tie_word_embeddings=True,
                                 use_sliding_window=False), {}),
    "qwen3": (lambda: llama_like(transformers.Qwen3Config, head_dim=32, tie_word_embeddings=False,
                                 use_sliding_window=False), dict(max_grad_norm=1.0)),
    "qwen3_tied": (lambda: llama_like(transformers.Qwen3Config, head_dim=16,
                                      tie_word_embeddings=True, num_key_value_heads=1,
                                      use_sliding_window=False), {}),
}


# What --bf16 trains each architecture by.
RECIPES = {
    "constant": {},
    "clipped": dict(max_grad_norm=0.5, lr_scheduler_type="cosine", warmup_steps=5),
    "fast": dict(learning_rate=3e-3, weight_decay=0.0, lr_scheduler_type="linear"),
}
BF16_CASES = ("gpt2", "llama", "qwen3")
KERNELS = ("sdpa", "eager", "autocast")


def make_checkpoint(config, directory):
    # Not far from the usual scale: gpt2's key bias has no effect on the loss, so its gradient is
    # rounding noise, which Adam blows up to the size of a step; with larger weights PyTorch differs
    # from itself (another microbatch size) by more than the tolerance there.
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
    model.save_pretrained(directory)


def make_data(path):
    # A noisy walk, so that there is something to learn.
    random = np.random.default_rng(7)
    steps = random.integers(0, 5, size=STEPS * BATCH * TOKENS // 2)
    np.asarray(np.cumsum(steps) % VOCABULARY, dtype=np.uint16).tofile(path)


class Trained:
    """A model with what is trained of it: its own parameters or, where it computes in bf16, fp32 masters."""

    def __init__(self, directory, kernel=None):
        def load(dtype):
            attention = "eager" if kernel == "eager" else "sdpa"
            return transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=dtype,
                                                                     attn_implementation=attention)
        self.autocast = kernel == "autocast"
        self.masters = load(torch.float32)
        self.model = load(torch.bfloat16) if kernel in ("sdpa", "eager") else self.masters
        self.model.train()
        self.round()

    def pairs(self):
        return [] if self.model is self.masters else zip(self.masters.parameters(), self.model.parameters())

    def round(self):
        with torch.no_grad():
            for master, copy in self.pairs():
                copy.copy_(master)

    def logits(self, tokens):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.autocast):
            return self.model(tokens, use_cache=False).logits.float()

    def collect(self):
        """Adds the gradients of a microbatch to the masters'."""
        for master, copy in self.pairs():
            master.grad = copy.grad.float() if master.grad is None else master.grad + copy.grad
            copy.grad = None


def train_reference(directory, data_path, job, kernel=None):
    trained = Trained(directory, kernel)
    model = trained.masters
    decayed = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [dict(params=decayed, weight_decay=job["weight_decay"]), dict(params=others, weight_decay=0.0)],
        lr=job["learning_rate"], betas=(job["adam_beta1"], job["adam_beta2"]),
        eps=job["adam_epsilon"])
    schedule = transformers.get_scheduler(job["lr_scheduler_type"], optimizer,
                                          num_warmup_steps=job["warmup_steps"],
                                          num_training_steps=STEPS)
    data = torch.from_numpy(np.fromfile(data_path, dtype=np.uint16).astype(np.int64))
    sequences = (len(data) - 1) // TOKENS
    losses = []
    for step in range(STEPS):
        total = 0.0
        for first in range(0, BATCH, MICROBATCH):
            rows = [(step * BATCH + first + i) % sequences for i in range(MICROBATCH)]
            tokens = torch.stack([data[k * TOKENS:(k + 1) * TOKENS] for k in rows])
            labels = torch.stack([data[k * TOKENS + 1:(k + 1) * TOKENS + 1] for k in rows])
            logits = trained.logits(tokens)
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(),
                                                     reduction="sum") / (BATCH * TOKENS)
            loss.backward()
            trained.collect()
            total += loss.item()
        if job["max_grad_norm"] > 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), job["max_grad_norm"])
        optimizer.step()
        trained.round()
        schedule.step()
        optimizer.zero_grad()
        losses.append(total)
    return losses, model.state_dict()


def write_job(path, checkpoint, data_path, output, job):
    lines = [f"model_name_or_path: {checkpoint}", "init: pretrained",
             f"data: {{path: {data_path}, format: tokens-u16}}", f"sequence_length: {TOKENS}",
             f"global_batch_size: {BATCH}", f"micro_batch_size: {MICROBATCH}",
             f"max_steps: {STEPS}", "optim: adamw", f"output_dir: {output}"]
    lines += [f"{key}: {value}" for key, value in job.items()]
    path.write_text("\n".join(lines) + "\n")


def losses_of(output):
    metrics = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    if [entry["step"] for entry in metrics] != list(range(1, STEPS + 1)):
        raise AssertionError(f"steps in metrics.jsonl: {[entry['step'] for entry in metrics]}")
    return [entry["loss"] for entry in metrics]


def distance(losses, others):
    """The worst relative difference of a step's loss."""
    return max(abs(other - loss) / abs(loss) for loss, other in zip(losses, others))


def compare(losses, weights, output):
    """The worst relative loss difference and the worst absolute weight difference."""
    worst_loss = distance(losses, losses_of(output))
    exported = transformers.AutoModelForCausalLM.from_pretrained(
        output / "final", dtype=torch.float32).state_dict()
    if set(exported) != set(weights):
        raise AssertionError(f"tensors differ: {set(exported) ^ set(weights)}")
    worst_weight = max((exported[name] - weights[name]).abs().max().item() for name in weights)
    return worst_loss, worst_weight


def prepare(name, folder, recipe=None):
    """Checkpoint and data of a case; the keys of its job."""
    make_config, changes = CASES[name]
    folder.mkdir(parents=True)
    make_checkpoint(make_config(), folder / "model")
    make_data(folder / "data.bin")
    return {**JOB, **changes, **(recipe or {})}


def train(name, command, folder, job):
    """By Harmony, from and into the folders of a case; whether it succeeded."""
    write_job(folder / "job.yaml", folder / "model", folder / "data.bin", folder / "run", job)
    result = subprocess.run(shlex.split(command.format(job=folder / "job.yaml")),
                            capture_output=True, text=True)
    if result.returncode != 0:
        print(f"{name:16} FAILED: exit code {result.returncode}\n{result.stdout[-2000:]}{result.stderr[-2000:]}")
    return result.returncode == 0


def run_bf16_case(name, recipe, command, folder):
    job = prepare(name, folder, RECIPES[recipe])
    references = [train_reference(folder / "model", folder / "data.bin", job, kernel)[0] for kernel in KERNELS]
    spread = max(distance(one, other) for one in references for other in references)
    if not train(name, command, folder, {**job, "bf16": "true"}):
        return False
    ours = distance(references[0], losses_of(folder / "run"))
    good = ours <= spread
    print(f"{name:8} {recipe:10} {'ok' if good else 'FAILED':6} loss {references[0][0]:.4f} -> {references[0][-1]:.4f}, "
          f"spread of PyTorch {spread:.2e}, Harmony from its first {ours:.2e}", flush=True)
    return good


def run_case(name, command, folder):
    job = prepare(name, folder)
    losses, weights = train_reference(folder / "model", folder / "data.bin", job)
    if not train(name, command, folder, job):
        return False
    loss, weight = compare(losses, weights, folder / "run")
    good = loss <= 1e-5 and weight <= 1e-4
    print(f"{name:16} {'ok' if good else 'FAILED':6} loss {losses[0]:.4f} -> {losses[-1]:.4f}, "
          f"worst difference: loss {loss:.2e} (relative), weights {weight:.2e}", flush=True)
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--command", default=f"{ROOT}/build/bin/plain_trainer {{job}}")
    parser.add_argument("--only", choices=sorted(CASES), action="append")
    parser.add_argument("--keep", help="work in this new directory and leave it")
    parser.add_argument("--bf16", action="store_true", help="mixed precision")
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(options.keep or temporary)
        if options.bf16:
            results = [run_bf16_case(name, recipe, options.command, folder / name / recipe)
                       for name in options.only or BF16_CASES for recipe in RECIPES]
        else:
            results = [run_case(name, options.command, folder / name) for name in options.only or CASES]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
