"""Eager, fused and compulsory bytes against counts by hand, and what holds for every step.

The networks have a few layers, on 4x4 images.

Elements per step of two images: x 96, hidden (z, a) 256, out 128, logits 8; weights 24 and 32.
"""

from collections import defaultdict
from functools import cache
from graphlib import TopologicalSorter

import pytest
import torch
from generated_steps import steps, tiny, traced
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from bench.cost.estimate import step_complexity
from bench.cost.fake_step import record_step
from bench.cost.traffic import Role, compulsory_bytes, eager_bytes, fused_bytes, schedule
from bench.records import StepSpec

X, HIDDEN, OUT, LOGITS, FIRST, SECOND = 96, 256, 128, 8, 24, 32
#: Facts per channel (8 of them) around a batch norm. Forward: 2 running statistics in and out, 2
#: statistics out and in again, weight and bias. Backward: 2 statistics and the weight in, twice;
#: 2 sums out and in again; 2 gradients out.
NORM_VECTORS, NORM_BACKWARD_VECTORS = 8 * 10, 8 * 12


@cache
def _complexity(arch, **changes):
    return step_complexity(tiny(arch, cache_bytes=0, **changes))


def _elements(field, arch, **changes):
    """What each op of a phase moves, in numbers of 4 bytes."""
    ops = _complexity(arch, **changes).ops
    return {(cost.op, cost.phase): getattr(cost, field) / 4 for cost in ops}


def test_eager_reads_and_writes_every_op_of_conv_relu_conv():
    eager = _elements("eager_bytes", "conv_relu_conv")
    assert eager["convolution", "forward"] == X + FIRST + HIDDEN + HIDDEN + SECOND + OUT
    assert eager["relu", "forward"] == 2 * HIDDEN
    assert eager["mean", "forward"] == OUT + LOGITS
    assert eager["threshold_backward", "backward"] == 3 * HIDDEN
    second = (OUT + SECOND + HIDDEN) + (OUT + HIDDEN + SECOND)
    first = HIDDEN + X + FIRST  # the images need no gradient
    assert eager["convolution_backward", "backward"] == second + first
    assert eager["div", "backward"] == LOGITS + OUT  # an expanded tensor is read once
    assert eager["_fused_sgd_", "optimizer"] == 5 * (FIRST + SECOND)


def test_fused_moves_only_what_another_kernel_needs():
    fused = _elements("fused_bytes", "conv_relu_conv")
    # z stays inside the first convolution's kernel, out inside the second's with its mean.
    assert fused["convolution", "forward"] == X + FIRST + HIDDEN + SECOND
    assert fused["relu", "forward"] == HIDDEN
    assert fused["mean", "forward"] == LOGITS
    # The mask joins the kernel that makes its gradient, and that gradient is never moved. That of
    # the loss is made by the first kernel that needs it, and read by the second.
    assert fused["threshold_backward", "backward"] == 2 * HIDDEN
    assert fused["convolution_backward", "backward"] == (
        SECOND + (OUT + HIDDEN + SECOND) + (HIDDEN + X + FIRST)
    )
    assert fused["_fused_sgd_", "optimizer"] == 5 * (FIRST + SECOND)


def test_a_batch_norm_reads_its_input_twice_forward_and_twice_backward():
    eager = _elements("eager_bytes", "conv_norm_relu_conv")
    assert eager["native_batch_norm", "forward"] == 3 * HIDDEN + NORM_VECTORS
    assert eager["relu_", "forward"] == 2 * HIDDEN
    assert eager["native_batch_norm_backward", "backward"] == 5 * HIDDEN + NORM_BACKWARD_VECTORS


def test_fusion_folds_statistics_into_the_convolution_and_normalisation_into_the_next():
    fused = _elements("fused_bytes", "conv_norm_relu_conv")
    # The next convolution's kernel reads z, normalises, writes a for the backward pass, convolves.
    assert fused["convolution", "forward"] == X + FIRST + HIDDEN + SECOND
    assert fused["native_batch_norm", "forward"] == HIDDEN + NORM_VECTORS
    assert fused["relu_", "forward"] == HIDDEN
    # Sums: the masked gradient is written and z read; then both are read again and dz is written.
    assert fused["threshold_backward", "backward"] == 2 * HIDDEN
    assert fused["native_batch_norm_backward", "backward"] == 3 * HIDDEN + NORM_BACKWARD_VECTORS
    assert fused["convolution_backward", "backward"] == (
        SECOND + (OUT + HIDDEN + SECOND) + (X + FIRST)
    )


def test_each_gradient_of_a_biased_convolution_reads_the_outputs_gradient():
    hidden = _elements("eager_bytes", "biased_conv")["convolution_backward", "backward"]
    assert hidden == (HIDDEN + X + FIRST) + (HIDDEN + 8)


def test_amp_moves_half_the_activations_and_casts_the_weights():
    eager = _elements("eager_bytes", "conv_relu_conv", precision="amp")
    fused = _elements("fused_bytes", "conv_relu_conv", precision="amp")
    halves = (X + FIRST + HIDDEN + HIDDEN + SECOND + OUT) / 2
    assert eager["convolution", "forward"] == halves
    casts = 1.5 * (X + FIRST + SECOND + LOGITS)  # 4 bytes in, 2 out, or back again for the logits
    assert eager["_to_copy", "forward"] == casts
    assert eager["_fused_sgd_", "optimizer"] == 5 * (FIRST + SECOND)
    # Casts join the convolution that needs them: it reads a alone.
    assert fused["convolution", "forward"] == HIDDEN / 2


@pytest.mark.parametrize(
    ("optimizer", "precision", "fused_optimizer", "eager", "fused"),
    [
        # Parameter, gradient and momentum in; parameter and momentum out.
        ("sgd", "fp32", True, 20, 20),
        ("sgd", "fp32", False, 44, 20),  # weight decay 12, momentum 8 and 12, update 12
        ("sgd", "amp", True, 20, 20),
        ("sgd", "amp-fp16", True, 32, 28),  # gradients are checked before, and unscaled
        ("adamw", "fp32", True, 28, 28),  # of two moments
        # Decay 8, first moment 12, second 8 and 12, root, correction and epsilon 8 each, update 16.
        ("adamw", "fp32", False, 80, 28),
        ("adamw", "amp-fp16", True, 40, 36),
        ("adamw", "amp-fp16", False, 88, 36),
    ],
)
def test_an_updates_bytes_and_flops_per_parameter(
    optimizer, precision, fused_optimizer, eager, fused
):
    changes = {"precision": precision, "fused_optimizer": fused_optimizer, "optimizer": optimizer}
    complexity = step_complexity(tiny("tied", **changes))
    update, parameters = complexity.phases["optimizer"], complexity.parameters
    moved = [update.eager_bytes / parameters, update.fused_bytes / parameters]
    assert moved == pytest.approx([eager, fused], rel=0.01)
    flops, moments, counts = {"sgd": (6, 1, 0), "adamw": (14, 2, 3)}[optimizer]
    assert complexity.memory.optimizer_bytes == 4 * (moments * parameters + counts)
    unscaling = 1 if precision == "amp-fp16" else 0
    assert update.elementwise_flops / parameters == pytest.approx(flops + unscaling, rel=0.01)


def test_elementwise_flops_by_convention():
    complexity = _complexity("conv_norm_relu_conv")
    counted = {(op.op, op.phase): op.elementwise_flops for op in complexity.ops}
    assert counted["relu_", "forward"] == HIDDEN
    assert counted["native_batch_norm", "forward"] == (3 + 2) * HIDDEN
    assert counted["native_batch_norm_backward", "backward"] == (4 + 5) * HIDDEN
    assert counted["mean", "forward"] == OUT
    assert counted["convolution", "forward"] == 0  # no bias
    assert counted["_fused_sgd_", "optimizer"] == 6 * complexity.parameters


def test_compulsory_are_inputs_outputs_and_weights_but_for_what_the_cache_holds():
    """In: images, labels (8 bytes each), weights and momentum; out: weights and momentum.

    The batch norm has weight and bias too, and running statistics that go in and out; it counts
    its batches in 8 bytes, in and out.
    """
    weights, labels = FIRST + SECOND, 2 * 2
    found, left = 4 * (X + labels + 2 * weights), 4 * 2 * weights
    assert _complexity("conv_relu_conv").compulsory_bytes == found + left
    by_cache = {
        size: step_complexity(tiny("conv_relu_conv", cache_bytes=size)).compulsory_bytes
        for size in (100, left, found)
    }
    assert by_cache == {100: found + left - 200, left: found - left, found: 0}
    norm = 4 * 2 * (2 * (8 + 8) + 2 * 8) + 2 * 8
    assert _complexity("conv_norm_relu_conv").compulsory_bytes == found + left + norm


@given(steps(), st.integers(0, 200))
def test_compulsory_fused_and_eager_are_in_order(step, cache_bytes):
    passes, sizes, lasting = step
    eager = sum(access.size_bytes for item in passes for access in (*item.reads, *item.writes))
    shares = fused_bytes(passes, sizes, lasting)
    assert min(shares) >= 0
    floor = compulsory_bytes(passes, sizes, lasting, 0)
    assert compulsory_bytes(passes, sizes, lasting, cache_bytes) <= floor <= sum(shares) <= eager


def _check_that_kernels_could_run(passes):
    placed = schedule(passes)
    assert [item for item, _ in placed] == list(passes)
    makers = {access.value: (item, kernel) for item, kernel in placed for access in item.writes}
    needs, big_ops, phases = defaultdict(set), defaultdict(int), {}
    for item, kernel in placed:
        big_ops[kernel] += item.role in (Role.CONTRACTION, Role.OPAQUE)
        assert phases.setdefault(kernel, item.phase) == item.phase
        for access in item.reads:
            maker, maker_kernel = makers.get(access.value, (None, None))
            if maker is None:
                continue
            if maker_kernel is kernel:
                assert maker.role is not Role.REDUCTION  # its result comes after its kernel
            else:
                needs[kernel].add(maker_kernel)
    assert max(big_ops.values()) <= 1
    TopologicalSorter(needs).prepare()  # raises where kernels wait for each other


@given(st.one_of(steps(longest=12), steps(longest=12, phases=("forward",))))
@settings(max_examples=300)
@pytest.mark.slow
def test_kernels_of_random_steps_could_run(step):
    _check_that_kernels_could_run(step[0])


@pytest.mark.parametrize("arch", ["resnet18", pytest.param("swin_t", marks=pytest.mark.long)])
@pytest.mark.slow
def test_kernels_of_a_model_could_run(arch):
    step = record_step(StepSpec(arch, batch_size=2, precision="amp", fused_optimizer=False))
    _check_that_kernels_could_run(step.passes)


# A transformer block, by hand


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
