"""Models of the built-in families, trained from their own directories; data are a file of tokens."""
import torch_loader  # noqa: F401  (before torch)
import numpy as np
import torch
import transformers
from reference import BATCH, STEPS, TOKENS

BUILD = transformers.AutoModelForCausalLM
COMMAND = "plain_trainer {job}"
THREADS = torch.get_num_threads()
VOCABULARY = 211
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


def make_data(folder):
    """A noisy walk, so that there is something to learn."""
    steps = np.random.default_rng(7).integers(0, 5, size=STEPS * BATCH * TOKENS // 2)
    np.asarray(np.cumsum(steps) % VOCABULARY, dtype=np.uint16).tofile(folder / "data.bin")


def read_data(folder):
    """The tokens and the labels of all sequences."""
    data = torch.from_numpy(np.fromfile(folder / "data.bin", dtype=np.uint16).astype(np.int64))
    end = (len(data) - 1) // TOKENS * TOKENS
    return data[:end].view(-1, TOKENS), data[1:end + 1].view(-1, TOKENS)


def prepare(folder):
    """Makes of the checkpoint in folder/model what Harmony trains."""


def keys(folder):
    """What a job says of the model and its data."""
    return {"model_name_or_path": folder / "model", "data": f"{{path: {folder / 'data.bin'}, format: tokens-u16}}"}
