"""The bytes of one transformer block against a count by hand."""

import pytest
import torch
from generated_steps import traced
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from bench.cost.traffic import eager_bytes, fused_bytes

BATCH, TOKENS, WIDTH, HEADS = 8, 1024, 256, 4
#: One activation of the width of the block, and the weights of its products.
ACTIVATION, WEIGHTS = BATCH * TOKENS * WIDTH, 12 * WIDTH**2


class Block(nn.Module):
    """Norms before attention and MLP, as in GPT-2."""

    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.heads = nn.Linear(WIDTH, 3 * WIDTH)
        self.project = nn.Linear(WIDTH, WIDTH)
        self.widen = nn.Linear(WIDTH, 4 * WIDTH)
        self.narrow = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, tokens):
        shape = (*tokens.shape[:2], HEADS, WIDTH // HEADS)
        parts = self.heads(self.norms[0](tokens)).chunk(3, -1)
        query, key, value = (part.view(shape).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        tokens = tokens + self.project(mixed.transpose(1, 2).flatten(2))
        return tokens + self.narrow(functional.gelu(self.widen(self.norms[1](tokens))))


@pytest.fixture(scope="module")
def moved():
    """Activations moved, in times the width of the block, eager and fused, by phase."""
    with FakeTensorMode(allow_fallback_kernels=False):
        block = Block()
        tokens = torch.randn(BATCH, TOKENS, WIDTH, requires_grad=True)
        gradient = torch.randn(BATCH, TOKENS, WIDTH)
        _, tracer = traced(lambda: block(tokens), lambda result: result.backward(gradient))
    sizes = tracer.sizes_bytes
    written = (tracer.values.read(tensor.grad) for tensor in (*block.parameters(), tokens))
    lasting = frozenset(access.value for access in written)
    shares = fused_bytes(tracer.passes, sizes, lasting)
    found = {}
    for item, share in zip(tracer.passes, shares, strict=True):
        for kind, size in (("eager", eager_bytes(item, sizes)), ("fused", share)):
            key = (kind, item.phase)
            found[key] = found.get(key, 0) + size / 4 / ACTIVATION
    return found


#: Biases, the numbers that a norm keeps of each row, and those that attention does.
VECTORS = 0.06


def test_eager_bytes_of_a_block(moved):
    norm, heads, attention, project, add = 2, 1 + 3, 3 + 1, 1 + 1, 3
    widen, gelu, narrow = 1 + 4, 4 + 4, 4 + 1
    forward = 2 * (norm + add) + heads + attention + project + widen + gelu + narrow
    assert moved["eager", "forward"] == pytest.approx(forward + WEIGHTS / ACTIVATION, abs=VECTORS)
    # Every linear layer: its input's gradient, its weight's, and its bias's.
    narrow, widen = (1 + 4) + (1 + 4) + 1, (4 + 1) + (4 + 1) + 4
    project, heads = (1 + 1) + (1 + 1) + 1, (3 + 1) + (3 + 1) + 3
    gelu, norm, attention, parts = 3 * 4, 3 + 2, 5 + 3, 2 * 3
    backward = 2 * (norm + add) + heads + parts + attention + project + widen + gelu + narrow
    assert moved["eager", "backward"] == pytest.approx(
        backward + 2 * WEIGHTS / ACTIVATION, abs=VECTORS
    )


def test_fused_bytes_of_a_block(moved):
    """One kernel for each product; norms, GELU and additions are in them, but their results are
    written where the backward pass needs them."""
    heads = 1 + (1 + 3)  # the norm's result too
    attention = 3 + 1
    project = 1 + 1 + (1 + 1)  # the skipped input in; the sum and its norm out
    widen = 1 + (4 + 4)  # before and after GELU
    narrow = 4 + 1  # with the sum that it is added to; nothing here needs the block's result
    forward = heads + attention + project + widen + narrow
    assert moved["fused", "forward"] == pytest.approx(forward + WEIGHTS / ACTIVATION, abs=VECTORS)
    narrow = (1 + 4 + 4) + (1 + 4) + 1  # with GELU's gradient; the weight's; the bias's
    widen = (4 + 1 + 1 + 1) + (4 + 1)  # with the norm's: its input, the skipped gradient; the sum
    project = (1 + 1) + (1 + 1)
    attention = 5 + 3
    heads = (3 + 1 + 1 + 1) + (3 + 1)
    backward = narrow + widen + project + attention + heads
    assert moved["fused", "backward"] == pytest.approx(
        backward + 2 * WEIGHTS / ACTIVATION, abs=VECTORS
    )
