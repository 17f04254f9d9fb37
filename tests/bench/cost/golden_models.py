"""Transformers of known size as training steps, and their counts in closed form.

Weights are not initialised: only their shapes are asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import transformers


@dataclass
class Step:
    """A training step as `--arch module:callable` takes it."""

    model: torch.nn.Module
    seq_len: int
    sample = "sequence"

    @property
    def tokens_per_sample(self):
        return self.seq_len

    def batch(self, n):
        tokens = torch.randint(1000, (n, self.seq_len))
        return {"input_ids": tokens, "labels": tokens}

    def loss(self, output, batch):
        return output.loss


def _step(architecture: str, config: Any, seq_len: int) -> Step:
    with torch.device("meta"):
        model = getattr(transformers, architecture)(config)
    model.to_empty(device="cpu").tie_weights()
    return Step(model, seq_len)


def _gpt2(seq_len):
    return _step("GPT2LMHeadModel", transformers.GPT2Config(), seq_len)


def _bert(seq_len):
    return _step("BertForMaskedLM", transformers.BertConfig(), seq_len)


def _llama(seq_len):
    config = transformers.LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        tie_word_embeddings=True,
    )
    return _step("LlamaForCausalLM", config, seq_len)


gpt2_128, gpt2_1024 = partial(_gpt2, 128), partial(_gpt2, 1024)
bert_128, bert_512 = partial(_bert, 128), partial(_bert, 512)
llama_128, llama_2048 = partial(_llama, 128), partial(_llama, 2048)


# Closed forms: parameters, and forward MAC per sample. The letters: S tokens, D width, L layers,
# V words, P positions, F width of the hidden layer. A block has products of S x D with D x 4D
# numbers (attention 4 D^2, MLP 8 D^2), and two of S x S with D; 12 D^2 weights, 9 D biases and two
# norms of 2 D.


def gpt2(S, D=768, L=12, V=50257, P=1024):  # noqa: N803
    """Embeddings of words and positions, blocks, a norm; the words' embedding gives the logits."""
    parameters = (V + P) * D + L * (12 * D**2 + 13 * D) + 2 * D
    return parameters, L * (12 * D**2 * S + 2 * S**2 * D) + S * D * V


def bert(S, D=768, L=12, V=30522, P=512):  # noqa: N803
    """As GPT-2, with two kinds of segments; a layer, a norm and biases before the logits."""
    parameters = (V + P + 2) * D + 2 * D + L * (12 * D**2 + 13 * D) + (D**2 + D + 2 * D + V)
    return parameters, L * (12 * D**2 * S + 2 * S**2 * D) + S * D**2 + S * D * V


def llama(S, D=576, L=30, F=1536, V=49152, K=192):  # noqa: N803
    """Query and output D^2 each, keys and values of width K for groups of heads, SwiGLU 3 D F."""
    block = 2 * D**2 + 2 * D * K + 3 * D * F
    parameters = V * D + L * (block + 2 * D) + D
    return parameters, L * (block * S + 2 * S**2 * D) + S * D * V
