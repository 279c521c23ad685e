"""What PyTorch makes of a checkpoint of transformers, in fp32 or mixed precision."""
import contextlib
import warnings
from typing import NamedTuple

import torch_loader  # noqa: F401  (before torch)
import torch
import transformers

STEPS, BATCH, MICROBATCH, TOKENS = 20, 8, 2, 48
NO_LABEL = -100
warnings.filterwarnings("ignore", message="TF32 acceleration")  # of GPUs, when oneDNN is switched off


class Kernels(NamedTuple):
    """What PyTorch computes the same model with, in the same types: the operations are rounded in other places."""
    attention: str = "sdpa"  # or "eager"
    onednn: bool = True      # products by oneDNN, else by PyTorch's own loops
    compiled: bool = False   # torch.compile: element-wise operations are fused, with fp32 between them

    def chosen(self):
        return contextlib.nullcontext() if self.onednn else torch.backends.mkldnn.flags(enabled=False)


# The first is what most people run.
ALL_KERNELS = [Kernels(attention, **more) for more in ({}, {"onednn": False}, {"compiled": True})
               for attention in ("sdpa", "eager")]


class Trained:
    """A model with what is trained of it: its own parameters or, where it computes in bf16, fp32 masters."""

    def __init__(self, build, directory, dtype, kernels):
        def load(dtype):
            model = build.from_pretrained(directory, dtype=dtype, attn_implementation=kernels.attention)
            model.config.use_cache = False
            return model
        self.masters = load(torch.float32)
        self.model = self.masters if dtype == torch.float32 else load(dtype)
        self.model.train()
        self.run = self.model
        if kernels.compiled:
            torch._dynamo.reset()  # another model of the same code: nothing of the last one is tried
            self.run = torch.compile(self.model)
        self.round()

    def pairs(self):
        return [] if self.model is self.masters else zip(self.masters.parameters(), self.model.parameters())

    def round(self):
        with torch.no_grad():
            for master, copy in self.pairs():
                copy.copy_(master)

    def logits(self, tokens):
        return self.run(tokens).logits.float()

    def collect(self):
        """Adds the gradients of a microbatch to the masters'; a parameter that the model does not use has none."""
        for master, copy in self.pairs():
            if copy.grad is not None:
                master.grad = copy.grad.float() if master.grad is None else master.grad + copy.grad
            copy.grad = None


def optimizer_of(model, job):
    decayed = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [dict(params=decayed, weight_decay=job["weight_decay"]), dict(params=others, weight_decay=0.0)],
        lr=job["learning_rate"], betas=(job["adam_beta1"], job["adam_beta2"]), eps=job["adam_epsilon"])
    schedule = transformers.get_scheduler(job["lr_scheduler_type"], optimizer,
                                          num_warmup_steps=job["warmup_steps"], num_training_steps=STEPS)
    return optimizer, schedule


def train_reference(build, directory, data, job, dtype=torch.float32, kernels=Kernels()):
    """The steps' losses and the weights at the end. `build` is transformers' class of such models, `data` the tokens
    and the labels of all sequences, `dtype` what is computed in."""
    with kernels.chosen():
        return train(Trained(build, directory, dtype, kernels), data, job)


def train(trained, data, job):
    model = trained.masters
    optimizer, schedule = optimizer_of(model, job)
    inputs, labels = data
    losses = []
    for step in range(STEPS):
        rows = [(step * BATCH + i) % len(inputs) for i in range(BATCH)]
        count = (labels[rows] != NO_LABEL).sum().item()
        total = 0.0
        for first in range(0, BATCH, MICROBATCH):
            microbatch = rows[first:first + MICROBATCH]
            loss = torch.nn.functional.cross_entropy(trained.logits(inputs[microbatch]).flatten(0, 1),
                                                     labels[microbatch].flatten(), reduction="sum") / count
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
