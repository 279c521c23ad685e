#!/usr/bin/env python3
"""Predictions against runs: models, batches, devices, links and memory on paced sim devices.

Before a run the coordinator simulates the stored plan (summary.json, "predicted"); the run is then
measured: seconds of the median step (the first three and the last left out), bytes of a step by
class, the peak memory of each device, the memory of the shared segment, and the share of the cores'
time that all processes took (modelled speeds are chosen so that half is enough). Runs that were not
as modelled (over 1% of paced tasks overran by over 2%) do not count.

    python3 bench/prediction.py [--cases NAME ...] [--steps 10] [--json FILE]

Bars: step time within 1% in the median and 5% at worst, bytes equal, peaks at most the predicted
and within 2%, at least 12 runs that count. Exit code 1 when one is missed.
"""
import argparse
import dataclasses
import json
import os
import pathlib
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]

MODELS = {
    # Hidden size, layers, heads; byte-level vocabulary.
    "gpt2": {
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 256, "n_positions": 256,
        "n_embd": 256, "n_layer": 6, "n_head": 4, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new",
        "tie_word_embeddings": True, "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0,
        "bos_token_id": 0, "eos_token_id": 0},
    "gpt2-mini": {  # the preset
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 256, "n_positions": 256,
        "n_embd": 192, "n_layer": 12, "n_head": 6, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new",
        "tie_word_embeddings": True, "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0,
        "bos_token_id": 0, "eos_token_id": 0},
    "gpt2-124m": {
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 50257, "n_positions": 1024,
        "n_embd": 768, "n_layer": 12, "n_head": 12, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new",
        "tie_word_embeddings": True, "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0,
        "bos_token_id": 0, "eos_token_id": 0},
    "llama": {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 256, "hidden_size": 256,
        "intermediate_size": 704, "num_hidden_layers": 8, "num_attention_heads": 4, "num_key_value_heads": 4,
        "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "hidden_act": "silu", "rope_theta": 10000.0,
        "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 0},
    "qwen3": {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 256, "hidden_size": 192,
        "intermediate_size": 512, "num_hidden_layers": 10, "num_attention_heads": 6, "num_key_value_heads": 2,
        "head_dim": 32, "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "hidden_act": "silu",
        "rope_theta": 10000.0, "tie_word_embeddings": True, "attention_bias": False, "use_sliding_window": False,
        "bos_token_id": 0, "eos_token_id": 0},
}
FAST, SLOW, ASYMMETRIC = (400, 400, 400), (40, 40, 40), (60, 200, 100)  # h2d, d2h, p2p in MB/s


@dataclasses.dataclass
class Case:
    name: str
    model: str
    devices: int
    memory: float  # of the footprint, all devices together
    batch: int
    microbatch: int
    tokens: int = 32
    gflops: float = 12
    links: tuple = FAST
    settings: tuple = ()
    root: str = ""  # all devices share their link to the host


CASES = [
    Case("gpt2-1-resident", "gpt2", 1, 1.2, 16, 4),
    Case("gpt2-1-half", "gpt2", 1, 0.5, 16, 4),
    Case("gpt2-1-slow", "gpt2", 1, 0.25, 24, 4, links=SLOW),
    Case("gpt2-2-tight", "gpt2", 2, 0.25, 32, 8, gflops=8),
    Case("gpt2-2-slow", "gpt2", 2, 0.5, 24, 4, gflops=8, links=SLOW),
    Case("gpt2-3-clip", "gpt2", 3, 0.6, 24, 4, gflops=7, settings=("max_grad_norm=1",)),
    Case("gpt2-4", "gpt2", 4, 0.8, 32, 4, gflops=6),
    Case("gpt2-4-root", "gpt2", 4, 0.5, 32, 4, gflops=6, root="a"),
    Case("gpt2-4-data", "gpt2", 4, 1.0, 32, 4, gflops=6, settings=("mode=harmony-dp",)),
    Case("llama-1-tenth", "llama", 1, 0.1, 16, 4),
    Case("llama-2", "llama", 2, 0.6, 16, 4, gflops=8, links=ASYMMETRIC),
    Case("llama-3-slow", "llama", 3, 0.5, 24, 4, gflops=7, links=SLOW),
    Case("llama-4-large-batch", "llama", 4, 0.4, 48, 4, gflops=6),
    Case("llama-4-deferred", "llama", 4, 1.0, 32, 8, gflops=6, settings=("update=deferred",)),
    Case("qwen3-1", "qwen3", 1, 0.3, 16, 4),
    Case("qwen3-2-slow", "qwen3", 2, 0.4, 32, 8, gflops=8, links=SLOW),
    Case("qwen3-4-sgd", "qwen3", 4, 0.7, 32, 4, gflops=6, settings=("optim=sgd",)),
]


def harmony(*args):
    return [str(ROOT / "build" / "bin" / "harmony"), *map(str, args)]


def segment_bytes(pid):
    """Memory of the shared segment that a process holds."""
    for link in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        try:
            if "memfd:harmony-segment" in os.readlink(link):
                return os.stat(link).st_blocks * 512
        except FileNotFoundError:
            continue
    return 0


def coordinator_pid(runtime):
    try:
        listed = json.loads((runtime / "processes.json").read_text())["processes"]
    except (FileNotFoundError, ValueError):
        return None
    return next((p["pid"] for p in listed if p["role"] == "coordinator"), None)


def cpu_seconds():
    """Of all processes that have been waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def write_job(case, steps, folder):
    model = folder / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(MODELS[case.model]))
    data = folder / "data.txt"
    data.write_text("".join(f"{i} the quick brown fox jumps over the lazy dog {i * i % 97}\n" for i in range(4000)))
    job = {"model_name_or_path": str(model), "data": {"path": str(data), "format": "text-bytes"},
           "sequence_length": case.tokens, "global_batch_size": case.batch, "micro_batch_size": case.microbatch,
           "max_steps": steps, "output_dir": str(folder / "out")}
    path = folder / "job.yaml"
    path.write_text(json.dumps(job))
    return path, [argument for setting in case.settings for argument in ("--set", setting)]


def devices_of(case, memory):
    h2d, d2h, p2p = case.links
    root = f",root={case.root}" if case.root else ""
    return f"sim*{case.devices}:mem={memory},flops={case.gflops}G,h2d={h2d}MB/s,d2h={d2h}MB/s,p2p={p2p}MB/s{root}"


def run_case(case, steps, folder):
    job, settings = write_job(case, steps, folder)
    plan = json.loads(subprocess.run(harmony("plan", job, *settings, "--devices", devices_of(case, "1GiB"), "--json"),
                                     capture_output=True, text=True, check=True).stdout)
    footprint = plan["footprint"]["total"]
    memory = int(footprint * case.memory / case.devices) // 4096 * 4096
    runtime = folder / "run"
    begin, used = time.monotonic(), cpu_seconds()
    with open(folder / "log", "w") as log:
        process = subprocess.Popen(
            harmony("run", job, *settings, "--devices", devices_of(case, memory), "--runtime-dir", runtime,
                    "--trace", folder / "trace.json"), stdout=log, stderr=subprocess.STDOUT)
        segment = 0
        while process.poll() is None:
            if pid := coordinator_pid(runtime):
                try:
                    segment = max(segment, segment_bytes(pid))
                except FileNotFoundError:
                    pass
            time.sleep(0.1)
    if process.returncode != 0:
        sys.exit(f"{case.name}: exit {process.returncode}\n{(folder / 'log').read_text()[-3000:]}")
    share = (cpu_seconds() - used) / (time.monotonic() - begin) / len(os.sched_getaffinity(0))
    return footprint, segment, share


def result_of(case, footprint, segment, share, folder):
    summary = json.loads((folder / "out" / "summary.json").read_text())
    lines = [json.loads(line) for line in (folder / "out" / "metrics.jsonl").read_text().splitlines()]
    predicted = summary["predicted"]
    seconds = statistics.median(line["seconds"] for line in lines[3:-1])
    peaks = [device["peak_bytes"] / p for device, p in zip(summary["devices"], predicted["peak_device_bytes"])]
    return {
        "case": case.name, "memory": f"{case.memory:.0%}", "devices": case.devices, "footprint": footprint,
        "measured": seconds, "predicted": predicted["seconds_per_step"],
        "error": seconds / predicted["seconds_per_step"] - 1,
        "swap_equal": all(line["swap_bytes"] == predicted["swap_bytes_per_step"] for line in lines[3:-1]),
        "swap": [lines[3]["swap_bytes"], predicted["swap_bytes_per_step"]],
        "peak_least": min(peaks), "peak_most": max(peaks), "host": segment / predicted["host_bytes"],
        "cores": share, "overruns": summary["paced_overruns"] / summary["paced"], "counts": summary["as_modelled"],
    }


def report(results):
    print(f"{'case':20} {'devices':>7} {'memory':>6} {'measured':>9} {'predicted':>9} {'error':>7} {'swap':>6} "
          f"{'device peak / predicted':>24} {'host':>6} {'cores':>6} {'overran':>8}")
    for r in results:
        print(f"{r['case']:20} {r['devices']:7} {r['memory']:>6} {r['measured']:7.3f} s {r['predicted']:7.3f} s "
              f"{100 * r['error']:+6.1f}% {'equal' if r['swap_equal'] else 'DIFFER':>6} "
              f"{r['peak_least']:15.3f} to {r['peak_most']:.3f} {r['host']:6.3f} {100 * r['cores']:5.0f}% {100 * r['overruns']:7.2f}%"
              f"{'' if r['counts'] else '  not as modelled'}")
    counted = [r for r in results if r["counts"]]
    if not counted:
        print("no run counts")
        return False
    errors = [abs(r["error"]) for r in counted]
    peaks = [r["peak_least"] for r in counted] + [r["host"] for r in counted]
    most = max(max(r["peak_most"], r["host"]) for r in counted)
    print(f"{len(counted)} of {len(results)} runs count (bar 12): step time off by {100 * statistics.median(errors):.1f}% "
          f"in the median (bar 1%), {100 * max(errors):.1f}% at most (bar 5%); bytes "
          f"{'equal' if all(r['swap_equal'] for r in counted) else 'differ'}; peaks {min(peaks):.3f} to {most:.3f} "
          f"of the predicted (bar 0.98 to 1)")
    return (len(counted) >= 12 and statistics.median(errors) <= 0.01 and max(errors) <= 0.05 and
            all(r["swap_equal"] for r in counted) and min(peaks) >= 0.98 and most <= 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=[case.name for case in CASES], metavar="NAME")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--json", help="file for the figures")
    parser.add_argument("--keep", help="folder for traces and logs of all runs")
    args = parser.parse_args()
    results = []
    for case in CASES:
        if args.cases and case.name not in args.cases:
            continue
        with tempfile.TemporaryDirectory(prefix="hm-") as scratch:
            folder = pathlib.Path(scratch)
            results.append(result_of(case, *run_case(case, args.steps, folder), folder))
            r = results[-1]
            print(f"{case.name}: {r['measured']:.3f} s, predicted {r['predicted']:.3f} s", flush=True)
            if args.keep:
                shutil.copytree(folder, pathlib.Path(args.keep) / case.name, dirs_exist_ok=True,
                                ignore=lambda at, names: [n for n in names if n in ("run", "final") or
                                                          n.startswith("checkpoint")])
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(results, indent=1) + "\n")
    sys.exit(0 if report(results) else 1)


if __name__ == "__main__":
    main()
