"""A GPT of thirty lines and its training step, measured like any other model.

Run from the repository's folder: mlproject run --arch examples.tiny_gpt:step --optimizer adamw
"""

import torch
from torch import nn
from torch.nn import functional

VOCABULARY, WIDTH, HEADS, LAYERS, LENGTH = 8192, 256, 4, 4, 128


class Block(nn.Module):
    """Causal attention, then two linear layers; each adds to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x [N, length, width] with what attention and the linear layers add."""
        heads = self.qkv(self.norms[0](x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norms[1](x))


class GPT(nn.Module):
    """Token and position embeddings, blocks, and logits by the embedding's own weights."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)), nn.LayerNorm(WIDTH))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits [N, length, vocabulary] of the tokens that follow `tokens` [N, length]."""
        hidden = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        return functional.linear(self.blocks(hidden), self.tokens.weight)


class TinyGPT:
    """The training step: a model, a random batch, and the loss."""

    sample, tokens_per_sample = "sequence", LENGTH  # so that tokens/s are known

    def __init__(self) -> None:
        self.model = GPT()

    def batch(self, n: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return tokens [n, LENGTH] and the token that follows each."""
        tokens = torch.randint(VOCABULARY, (n, LENGTH + 1))
        return tokens[:, :-1], tokens[:, 1:]

    def loss(self, logits: torch.Tensor, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Return the mean cross entropy of the next tokens."""
        return functional.cross_entropy(logits.flatten(0, 1), batch[1].flatten())


def step() -> TinyGPT:
    """Return the training step that `--arch examples.tiny_gpt:step` measures."""
    return TinyGPT()
