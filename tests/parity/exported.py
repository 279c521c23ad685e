"""Masked language models, which Harmony trains from what `harmony-export --dtype bf16` makes of them; data are arrays.

Their layers are graphs of the operations that eager PyTorch runs. So where nothing is tied the losses are PyTorch's to
1e-7, until a last bit of the update in fp32 makes a weight round the other way. Of a tied table PyTorch rounds the sum
of both uses' gradients to bf16, Harmony each of the two: the losses differ from the second or third step on.
"""
import contextlib
import io
import pathlib
import sys

import torch_loader  # noqa: F401  (before torch)
import numpy as np
import torch
import transformers
from reference import BATCH, NO_LABEL, STEPS, TOKENS

BUILD = transformers.AutoModelForMaskedLM
COMMAND = "harmony run {job} --devices sim:mem=64MiB --no-calibrate"
THREADS = 1  # as in the job, compute_threads: more of them form sums in another order
VOCABULARY = 212
# So few that the model learns in 20 steps which there are, if not what stands behind the mask.
WORDS, MASK, MASKED = 32, 211, 0.15


def bert(**changes):
    return transformers.BertConfig(**{**dict(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=112, num_hidden_layers=3, num_attention_heads=4,
        max_position_embeddings=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0), **changes})


# As in built_in.py.
CASES = {
    "bert": (lambda: bert(), {}),
    "bert_untied": (lambda: bert(tie_word_embeddings=False), {}),
}


def make_data(folder):
    """A noisy walk, of which some words are masked."""
    random = np.random.default_rng(7)
    words = np.cumsum(random.integers(0, 5, size=STEPS * BATCH * TOKENS // 2)).reshape(-1, TOKENS) % WORDS
    masked = random.random(words.shape) < MASKED
    np.save(folder / "input_ids.npy", np.where(masked, MASK, words))
    np.save(folder / "labels.npy", np.where(masked, words, NO_LABEL))


def read_data(folder):
    """The tokens and the labels of all sequences."""
    return tuple(torch.from_numpy(np.load(folder / f"{name}.npy")) for name in ("input_ids", "labels"))


def prepare(folder):
    """Makes of the checkpoint in folder/model what Harmony trains."""
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "client" / "export"))
    from harmony_export import cli  # here, so that comparisons in fp32 do without
    with contextlib.redirect_stdout(io.StringIO()):
        code = cli.main(["hf", str(folder / "model"), "--task", "masked-lm", "--sequence-length", str(TOKENS),
                         "--dtype", "bf16", "--no-dropout", "-o", str(folder / "exported")])
    if code != 0:
        raise AssertionError(f"harmony-export ends with exit code {code}")


def keys(folder):
    """What a job says of the model and its data."""
    return {"model_name_or_path": folder / "exported",
            "data": f"{{inputs: {{input_ids: {folder / 'input_ids.npy'}, labels: {folder / 'labels.npy'}}}}}"}
