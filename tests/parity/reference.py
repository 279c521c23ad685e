"""What PyTorch makes of a checkpoint of transformers, in fp32 or mixed precision."""
import torch_loader  # noqa: F401  (before torch)
import torch
import transformers

STEPS, BATCH, MICROBATCH, TOKENS = 20, 8, 2, 48
# How PyTorch trains in bf16: from copies of fp32 masters, by two kernels of attention; and by autocast.
KERNELS = ("sdpa", "eager", "autocast")
NO_LABEL = -100


class Trained:
    """A model with what is trained of it: its own parameters or, where it computes in bf16, fp32 masters."""

    def __init__(self, build, directory, kernel=None):
        def load(dtype):
            attention = "eager" if kernel == "eager" else "sdpa"
            model = build.from_pretrained(directory, dtype=dtype, attn_implementation=attention)
            model.config.use_cache = False
            return model
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
            return self.model(tokens).logits.float()

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


def train_reference(build, directory, data, job, kernel=None):
    """The steps' losses and the weights at the end. `build` is transformers' class of such models, `data` the tokens
    and the labels of all sequences."""
    trained = Trained(build, directory, kernel)
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
