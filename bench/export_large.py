#!/usr/bin/env python3
"""Time and memory of exporting a model that this machine's memory does not hold: llama of 6.7 billion parameters (or
--layers N of them), without weights.

    .deps/export-venv/bin/python bench/export_large.py [--layers N]

The whole of `harmony-export hf DIR --task causal-lm --no-weights` as a process of its own; the yardsticks are the
weights' bytes in fp32, which nothing holds, and the bars of 60 s and 2 GB.
"""
import argparse
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
LLAMA_7B = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008,
            "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32, "vocab_size": 32000,
            "max_position_embeddings": 4096, "rms_norm_eps": 1e-05, "hidden_act": "silu", "tie_word_embeddings": False}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=LLAMA_7B["num_hidden_layers"])
    layers = parser.parse_args().layers
    with tempfile.TemporaryDirectory() as folder:
        source, out = pathlib.Path(folder, "llama"), pathlib.Path(folder, "exported")
        source.mkdir()
        (source / "config.json").write_text(json.dumps({**LLAMA_7B, "num_hidden_layers": layers}))
        began = time.monotonic()
        subprocess.run([sys.executable, "-m", "harmony_export", "hf", source, "--task", "causal-lm", "--sequence-length",
                        "2048", "--no-weights", "-o", out], check=True, stdout=subprocess.DEVNULL,
                       env={**os.environ, "PYTHONPATH": str(ROOT / "client" / "export")})
        seconds = time.monotonic() - began
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024  # of KiB
        described = json.loads((out / "model.json").read_text())
    numbers = 0
    for parameter in described["parameters"]:
        size = 1
        for extent in parameter["shape"]:
            size *= extent
        numbers += size
    print(f"{numbers / 1e9:.2f} billion parameters ({4 * numbers / 2**30:.1f} GiB in fp32), {len(described['layers'])} layers, "
          f"{len(described['graphs'])} graphs: {seconds:.1f} s, {peak:.0f} MiB at most")


if __name__ == "__main__":
    main()
