#!/usr/bin/env python3
"""What plain PyTorch does on the same GPU: the yardsticks of the part "fast" of measure.py.

    plain.py rates                 # products of 8192^3 in bf16, attention, copies from and to pinned memory
    plain.py eager --layers 2 8 32 # forward and backward of the llama of fast.py, resident, without an optimizer
    plain.py update                # PyTorch's AdamW on masters that lie in the GPU's memory
    plain.py fsdp --layers 8       # a step of FSDP2 with parameters and AdamW on the host
    plain.py deepspeed --layers 8  # a step of DeepSpeed's ZeRO-3, likewise, if it is installed

With --fake all is small and on the CPU, to try this program out.
"""
import argparse
import importlib.util
import os
import statistics
import sys
import time

import figures
import machine

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # as the worker has it; deterministic algorithms want it
machine.use()
import export_large  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as functional  # noqa: E402
import transformers  # noqa: E402

COPIED = 256 << 20  # bytes of one copy
REPEATS = 7
UPDATED = 200 << 20  # parameters: those of a layer
UPDATE_BYTES = 7 * 4 + 4 + 2  # of a parameter: fp32 master, moments, gradient; the master again, and the weight
WARM_UP = 2


class Device:
    def __init__(self, fake):
        self.fake = fake
        self.name = "cpu" if fake else "cuda"
        self.config = dict(export_large.LLAMA_7B)
        self.length = 32 if fake else 2048
        if fake:
            self.config.update(hidden_size=64, intermediate_size=128, num_attention_heads=4, num_key_value_heads=4,
                               vocab_size=256)

    def wait(self):
        if not self.fake:
            torch.cuda.synchronize()

    def seconds(self, work, repeats=REPEATS):
        """The median; all repeats end before the clock is read."""
        for _ in range(WARM_UP):
            work()
        times = []
        for _ in range(repeats):
            self.wait()
            began = time.perf_counter()
            work()
            self.wait()
            times.append(time.perf_counter() - began)
        return statistics.median(times)


def products(device):
    size = 256 if device.fake else 8192
    for kind in (torch.bfloat16, torch.float32):
        a, b = (torch.randn(size, size, device=device.name, dtype=kind) for _ in range(2))
        seconds = device.seconds(lambda: a @ b)
        figures.note(f"plain.product.{str(kind).removeprefix('torch.')}", 2 * size**3 / seconds / 1e12, "TFLOP/s")


FUSED = {"flash": (torch.bfloat16, torch.nn.attention.SDPBackend.FLASH_ATTENTION),
         "efficient": (torch.float32, torch.nn.attention.SDPBackend.EFFICIENT_ATTENTION)}
AGAIN = 10  # times that the same is computed, to see whether it has the same bits


class Attention:
    """Causal, heads of 128 numbers."""

    def __init__(self, device, samples, heads, kind):
        heads, width = (4, 16) if device.fake else (heads, 128)
        self.inputs = [torch.randn(samples, heads, device.length, width, device=device.name, dtype=kind, requires_grad=True)
                       for _ in range(3)]
        self.gradient = torch.randn_like(self.inputs[0])
        # Of the half that the mask leaves; a backward has five products to a forward's two.
        self.operations = 2 * 2 * samples * heads * device.length**2 * width / 2

    def forward(self):
        return functional.scaled_dot_product_attention(*self.inputs, is_causal=True)

    def both(self):
        output = self.forward()
        return output, *torch.autograd.grad(output, self.inputs, self.gradient)

    def right(self):
        """The same out of products in float64."""
        query, key, value = (tensor.detach().double().requires_grad_() for tensor in self.inputs)
        scores = (query @ key.mT) / query.shape[-1] ** 0.5
        ones = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device)
        output = scores.masked_fill(ones.triu(1), float("-inf")).softmax(-1) @ value
        return output, *torch.autograd.grad(output, (query, key, value), self.gradient.double())


def attention(device):
    """PyTorch's fused kernels, as fast as can be and by the algorithms that are the same each time: how fast, whether they are the
    same each time, and how far from float64."""
    for name, (kind, backend) in FUSED.items():
        if device.fake and name == "efficient":  # which the CPU lacks
            continue
        measured, compared = Attention(device, 4, 32, kind), Attention(device, 1, 4, kind)
        for exact in (False, True):
            # Kernels that have both kinds of algorithms take the other one where they are only warned.
            torch.use_deterministic_algorithms(exact)
            label = f"plain.attention.{name}.{'deterministic' if exact else 'free'}"
            with torch.nn.attention.sdpa_kernel(backend):
                ahead = device.seconds(measured.forward)
                whole = device.seconds(measured.both)
                first, found = measured.both(), compared.both()
                same = all(all(map(torch.equal, first, measured.both())) for _ in range(AGAIN))
            figures.note(f"{label}.forward", ahead, "s", operations_rate=measured.operations / ahead / 1e12)
            figures.note(f"{label}.forward_and_backward", whole, "s", operations_rate=3.5 * measured.operations / whole / 1e12)
            figures.note(f"{label}.same_bits", same)
            torch.use_deterministic_algorithms(False)
            apart = [float((a.detach().double() - b.detach()).abs().max() / b.detach().abs().max())
                     for a, b in zip(found, compared.right(), strict=True)]
            figures.note(f"{label}.from_float64", max(apart), each=apart)


def copies(device):
    host = [torch.randint(0, 255, (COPIED,), dtype=torch.uint8).pin_memory() for _ in range(2)]
    there = [part.to(device.name) for part in host]
    streams = [torch.cuda.Stream() for _ in range(2)]

    def copy(down, up):
        if down:
            with torch.cuda.stream(streams[0]):
                there[0].copy_(host[0], non_blocking=True)
        if up:
            with torch.cuda.stream(streams[1]):
                host[1].copy_(there[1], non_blocking=True)

    for name, down, up in (("to_device", True, False), ("from_device", False, True), ("both_ways_each", True, True)):
        figures.note(f"plain.copies.{name}", COPIED / device.seconds(lambda: copy(down, up)) / 1e9, "GB/s")


def rates(args, failures):
    device = Device(args.fake)
    for name, measure in (("products", products), ("attention", attention), ("copies", copies)):
        if not (args.fake and name == "copies"):  # which need a device
            with figures.attempt(f"plain.{name}", failures):
                measure(device)


def update(args, failures):
    """What a parameter's update takes where master, moments and gradient are resident in fp32, and the weight in bf16."""
    device = Device(args.fake)
    with figures.attempt("plain.update", failures):
        count = UPDATED >> (12 * device.fake)
        master = torch.nn.Parameter(torch.randn(count, device=device.name))
        master.grad = torch.randn_like(master)
        weight = master.detach().bfloat16()
        optimizer = torch.optim.AdamW([master], lr=1e-5, fused=True)

        def step():
            optimizer.step()
            weight.copy_(master.detach())

        seconds = device.seconds(step) / count
        figures.note("plain.update.seconds_of_a_parameter", seconds, "s", bytes_per_second=UPDATE_BYTES / seconds)


def llama(device, layers, kind):
    config = transformers.LlamaConfig(**{**device.config, "num_hidden_layers": layers, "use_cache": False})
    with torch.device(device.name):
        before = torch.get_default_dtype()
        torch.set_default_dtype(kind)
        try:
            return transformers.LlamaForCausalLM(config).train()
        finally:
            torch.set_default_dtype(before)


def eager(args, failures):
    """Largest microbatch of 4, 2 or 1 sequences that fits; of each number of layers."""
    device = Device(args.fake)
    for layers in args.layers:
        with figures.attempt(f"plain.eager.{layers}", failures):
            model = llama(device, layers, torch.bfloat16)
            for samples in (4, 2, 1):
                tokens = torch.randint(0, device.config["vocab_size"], (samples, device.length), device=device.name)
                try:
                    seconds = device.seconds(lambda: model(input_ids=tokens, labels=tokens).loss.backward(), repeats=3)
                except torch.OutOfMemoryError:
                    model.zero_grad(set_to_none=True)
                    torch.cuda.empty_cache()
                    continue
                figures.note(f"plain.eager.{layers}.seconds_of_a_sequence", seconds / samples, "s", samples=samples,
                             peak_bytes=0 if args.fake else torch.cuda.max_memory_allocated())
                break
            else:
                raise RuntimeError("not one sequence fits the device")
            del model
            if not args.fake:
                torch.cuda.empty_cache()


def fsdp(args, failures):
    """PyTorch's own way to train what does not fit, one device: parameters, gradients and AdamW on the host."""
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    device, layers = Device(args.fake), args.layers[0]
    os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517", "RANK": "0", "WORLD_SIZE": "1"})
    with figures.attempt(f"plain.fsdp.{layers}", failures):
        torch.distributed.init_process_group("gloo" if args.fake else "cpu:gloo,cuda:nccl")
        host = Device(True)
        host.config = device.config
        model = llama(host, layers, torch.float32)
        mesh = torch.distributed.device_mesh.init_device_mesh(device.name, (1,))
        options = {"mesh": mesh, "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)}
        if not args.fake:
            options["offload_policy"] = CPUOffloadPolicy()
        for layer in model.model.layers:
            fully_shard(layer, **options)
        fully_shard(model, **options)
        model.model.rotary_emb.to(device.name)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
        tokens = torch.randint(0, device.config["vocab_size"], (4, device.length), device=device.name)

        def step():
            for part in range(4):  # 16 sequences, as fast.py has
                model.set_requires_gradient_sync(part == 3)
                model(input_ids=tokens, labels=tokens).loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        seconds = device.seconds(step, repeats=2)
        figures.note(f"plain.fsdp.{layers}.step", seconds, "s", tokens_per_second=16 * device.length / seconds)


def deepspeed(args, failures):
    """The same by DeepSpeed's ZeRO-3, where it is installed: parameters and AdamW on the host."""
    device, layers = Device(args.fake), args.layers[0]
    if importlib.util.find_spec("deepspeed") is None:
        return figures.note("plain.deepspeed", "not installed")
    os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29519", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1",
                       "DS_ACCELERATOR": device.name})
    import deepspeed as library
    there = {"device": "cpu", "pin_memory": not args.fake}
    config = {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 4, "bf16": {"enabled": True},
              "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "torch_adam": args.fake}},
              "zero_optimization": {"stage": 3, "offload_param": there, "offload_optimizer": there, "overlap_comm": not args.fake},
              "zero_force_ds_cpu_optimizer": not args.fake, "steps_per_print": 1000}
    with figures.attempt(f"plain.deepspeed.{layers}", failures):
        library.init_distributed("gloo" if args.fake else "nccl")
        shape = transformers.LlamaConfig(**{**device.config, "num_hidden_layers": layers, "use_cache": False})
        with library.zero.Init(config_dict_or_path=config):
            model = transformers.LlamaForCausalLM(shape).train()
        engine, *_ = library.initialize(model=model, model_parameters=model.parameters(), config=config)
        tokens = torch.randint(0, device.config["vocab_size"], (4, device.length), device=device.name)

        def step():
            for _ in range(4):  # 16 sequences, as fast.py has
                engine.backward(engine(input_ids=tokens, labels=tokens).loss)
                engine.step()

        seconds = device.seconds(step, repeats=2)
        figures.note(f"plain.deepspeed.{layers}.step", seconds, "s", tokens_per_second=16 * device.length / seconds,
                     version=library.__version__)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    steps = {"rates": rates, "update": update, "eager": eager, "fsdp": fsdp, "deepspeed": deepspeed}
    parser.add_argument("what", choices=steps)
    parser.add_argument("--layers", type=int, nargs="+", default=[2])
    parser.add_argument("--fake", action="store_true", help="small, and on the CPU")
    args = parser.parse_args()
    failures = []
    steps[args.what](args, failures)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
