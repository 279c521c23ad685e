"""Two machines of today: Harmony's plan and the models of what people do today (`harmony plan --compare`), beside figures that
others have published.

What is published was measured by those who say so, with kernels, batches and links of their own; ours are models. Where a
machine's speed is not known it is assumed, and the assumption is said in the table.
"""
from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import pathlib
import subprocess
import sys
import time
from typing import Any


@dataclasses.dataclass
class Machine:
    name: str
    gpus: tuple[int, ...]
    device: str  # of the device text, after `sim*N:`
    host_memory: str


@dataclasses.dataclass
class Job:
    machine: Machine
    model: str
    length: int  # tokens of a sample
    batch: int


@dataclasses.dataclass
class Published:
    model: str
    gpus: int
    system: str
    tokens_per_second: float | None  # None: out of memory
    source: str


MODELS = {
    "llama-8b": {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
        "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "hidden_act": "silu",
        "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False},
    "qwen-32b": {
        "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "hidden_size": 5120, "intermediate_size": 25600,
        "num_hidden_layers": 64, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
        "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "hidden_act": "silu",
        "tie_word_embeddings": False, "attention_bias": False},
}

# 24 GB of which a context takes one. 65 TFLOP/s: what we assume elsewhere. 200: with recompute (four forwards' worth of FLOPs
# for a microbatch) these are the 3142 tokens/s that RoundPipe publishes for llama-8B on one GPU, with fp16 sums.
_LINKS = "mem=24GB,context=1GB,h2d=24GB/s,d2h=24GB/s,p2p=24GB/s,host=200GB/s"
SLOW = Machine("RTX 4090, 65 TFLOP/s", (1, 8), f"{_LINKS},flops=65T", "800GB")
FAST = Machine("RTX 4090, 200 TFLOP/s", (1, 8), f"{_LINKS},flops=200T", "800GB")
# PCIe 5; 400 of the 989 TFLOP/s that the data sheet has.
H200 = Machine("H200, 400 TFLOP/s", (1,), "mem=141GB,context=1GB,h2d=50GB/s,d2h=50GB/s,p2p=50GB/s,host=200GB/s,flops=400T",
               "1500GB")
# Batches of the published runs on RTX 4090; of none on the H200.
JOBS = [Job(machine, model, 2048, batch) for machine in (SLOW, FAST) for model, batch in (("llama-8b", 256), ("qwen-32b", 128))]
JOBS += [Job(H200, "llama-8b", 1024, 128), Job(H200, "qwen-32b", 1024, 128)]

# github.com/ITcarrot/RoundPipe-artifact (of arXiv 2604.27085), commit e44270ae, exp/raw-data.csv; samples of 2048 tokens, batches
# by roundpipe/run.sh.
_ARTIFACT = "RoundPipe artifact"
PUBLISHED = [
    Published("llama-8b", 1, "RoundPipe (weights one step old)", 3142.17, _ARTIFACT),
    Published("llama-8b", 8, "RoundPipe (weights one step old)", 24274.54, _ARTIFACT),
    Published("llama-8b", 8, "RoundPipe, synchronous", 18888.43, _ARTIFACT),
    Published("llama-8b", 8, "Megatron-LM, pipeline", 16412.18, _ARTIFACT),
    Published("llama-8b", 8, "Mobius", 11288.46, _ARTIFACT),
    Published("llama-8b", 8, "FSDP", 1923.77, _ARTIFACT),
    Published("llama-8b", 8, "DeepSpeed ZeRO-Infinity", 1843.39, _ARTIFACT),
    Published("llama-8b", 8, "DeepSpeed ZeRO-2", None, _ARTIFACT),
    Published("qwen-32b", 1, "RoundPipe (weights one step old)", 740.46, _ARTIFACT),
    Published("qwen-32b", 8, "RoundPipe (weights one step old)", 5516.22, _ARTIFACT),
    Published("qwen-32b", 8, "RoundPipe, synchronous", 4163.62, _ARTIFACT),
    Published("qwen-32b", 8, "Mobius", 2551.63, _ARTIFACT),
    Published("qwen-32b", 8, "DeepSpeed ZeRO-Infinity", 217.82, _ARTIFACT),
    Published("qwen-32b", 8, "Megatron-LM, pipeline", None, _ARTIFACT),
    Published("qwen-32b", 8, "FSDP", None, _ARTIFACT),
]

# TFLOP/s of all GPUs: (model, GPUs, system, speed, source). MegaTrain counts 6 FLOPs for a parameter and token, and none for
# what is recomputed; what the others count is theirs.
PUBLISHED_ON_LARGE = [
    ("Qwen2.5-7B", "1 x H100", "MegaTrain", "272", "its README, commit 5cf47ac"),
    ("Qwen2.5-7B", "4 x H100", "MegaTrain", "1290", "its README, commit 5cf47ac"),
    ("14B", "1 GPU", "MegaTrain", "1.84 times DeepSpeed ZeRO-3 with offload", "arXiv 2604.05091, abstract"),
    ("GPT-OSS-20B, Qwen3-14B, Phi-4", "1 x GH200", "DeepSpeed SuperOffload", "up to 500, half as much again as ZeRO-Offload",
     "DeepSpeedExamples, training/DeepSpeed-SuperOffload, commit ad2a4bd1"),
    ("10B", "1 x V100", "ZeRO-Offload", "40", "arXiv 2101.06840, abstract"),
]


def write_job(folder: pathlib.Path, model: str, length: int, batch: int) -> pathlib.Path:
    """A job of mixed precision, for plans alone, and what it needs, in `folder`. `model`: of MODELS, or a preset's name."""
    if model in MODELS:
        (folder / model).mkdir(parents=True, exist_ok=True)
        (folder / model / "config.json").write_text(json.dumps(MODELS[model]))
    tokens = folder / "tokens.bin"  # a plan goes by sizes alone
    tokens.write_bytes(bytes(4 * (batch * length + 1)))
    file = folder / f"{model}.yaml"
    file.write_text(json.dumps({
        "model_name_or_path": str(folder / model) if model in MODELS else model,
        "data": {"path": str(tokens), "format": "tokens-u32"}, "sequence_length": length, "global_batch_size": batch,
        "bf16": True, "output_dir": str(folder / "run")}))
    return file


def compare(harmony: pathlib.Path, folder: pathlib.Path, job: Job, gpus: int) -> dict[str, Any]:
    """One case: rows of `harmony plan --compare`. A folder of its own in `folder` gets what the job needs."""
    folder = folder / f"{JOBS.index(job)}-{gpus}"
    file = write_job(folder, job.model, job.length, job.batch)
    devices = f"sim*{gpus}:{job.machine.device}"
    begin = time.monotonic()
    done = subprocess.run([str(harmony), "plan", str(file), "--devices", devices, "--host-memory", job.machine.host_memory,
                           "--compare", "--json"], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"error: {file} on {devices}: {done.stderr.strip()}")
    case = json.loads(done.stdout) | {"machine": job.machine.name, "gpus": gpus, "seconds_taken": time.monotonic() - begin}
    case["model"] = job.model
    print(f"{job.model} on {gpus} x {job.machine.name}: {case['seconds_taken']:.1f} s", flush=True)
    return case


def run(harmony: pathlib.Path, folder: pathlib.Path, pool: concurrent.futures.Executor) -> list[dict[str, Any]]:
    asked = [(harmony, folder, job, gpus) for job in JOBS for gpus in job.machine.gpus]
    return list(pool.map(compare, *zip(*asked)))


def tokens(row: dict[str, Any]) -> str:
    return f"{row['tokens_per_second']:.0f}" if row["fits"] else "does not fit"


def ratio(one: float | None, more: float | None, gpus: int) -> str:
    return f"{more / one / gpus:.2f}" if one and more else "-"


def lines_of(cases: list[dict[str, Any]]) -> list[list[Any]]:
    """Of each machine and model, each system's tokens a second on one GPU and on all, and that over linear."""
    groups: dict[tuple[str, str], dict[int, dict[str, Any]]] = {}
    for case in cases:
        groups.setdefault((case["machine"], case["model"]), {})[case["gpus"]] = case
    lines = []
    for (machine, model), by_gpus in groups.items():
        rows = [{"Harmony" if row["name"].startswith("harmony") else row["name"]: row for row in by_gpus[g]["rows"]}
                for g in sorted(by_gpus)]
        most = max(by_gpus)
        for name in rows[-1]:
            first, last = rows[0].get(name, {"fits": False}), rows[-1][name]
            shown = tokens(last) if most > 1 else "-"
            speed = [row.get("tokens_per_second") for row in (first, last)]
            lines.append([machine, model, name, tokens(first), shown, ratio(*speed, most) if most > 1 else "-",
                          last.get("remark", "") or first.get("remark", "")])
    return lines


def published_lines() -> list[list[Any]]:
    """The same of what is published, where one system's figures belong together."""
    lines: dict[tuple[str, str], list[Any]] = {}
    for figure in PUBLISHED:
        line = lines.setdefault((figure.model, figure.system), [figure.model, figure.system, "-", "-", "-", figure.source])
        line[2 if figure.gpus == 1 else 3] = f"{figure.tokens_per_second:.0f}" if figure.tokens_per_second else "out of memory"
    for figure in PUBLISHED:
        one = next((f.tokens_per_second for f in PUBLISHED
                    if (f.model, f.system, f.gpus) == (figure.model, figure.system, 1)), None)
        if figure.gpus > 1 and one:
            lines[figure.model, figure.system][4] = ratio(one, figure.tokens_per_second, figure.gpus)
    return list(lines.values())
