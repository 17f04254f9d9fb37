"""Attention in every variant: the same multiply-adds, and the bytes of what the device runs."""

from contextlib import nullcontext

import pytest
import torch
from generated_steps import traced
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from bench.cost.cuda_rules import cuda_rules
from bench.cost.traffic import eager_bytes

BATCH, HEADS, KEY_HEADS, QUERIES, KEYS, WIDTH = 2, 8, 2, 96, 128, 64
PRODUCT = BATCH * HEADS * QUERIES * KEYS * WIDTH

VARIANTS = {
    "plain": {},
    "causal": {"is_causal": True},
    "dropout": {"dropout_p": 0.1},
    "causal with dropout": {"is_causal": True, "dropout_p": 0.1},
    "boolean mask": {"mask": torch.bool},
    "added mask": {"mask": torch.float32},
    "learned mask": {"mask": torch.float32, "learned_mask": True},
    "grouped queries": {"key_heads": KEY_HEADS},
    "grouped queries with dropout": {"key_heads": KEY_HEADS, "dropout_p": 0.1},
    "16 bits": {"dtype": torch.bfloat16},
    "16 bits with dropout": {"dtype": torch.bfloat16, "dropout_p": 0.1},
    "16 bits with a mask": {"dtype": torch.bfloat16, "mask": torch.bool},
    "16 bits with grouped queries": {"dtype": torch.bfloat16, "key_heads": KEY_HEADS},
    "op by op": {"backend": SDPBackend.MATH},
}


def _traced(
    *,
    dtype=torch.float32,
    mask=None,
    learned_mask=False,
    key_heads=HEADS,
    value_width=WIDTH,
    width=WIDTH,
    backend=None,
    on_cuda=False,
    **options,
):
    """What one attention and its gradients dispatch, on fake tensors."""
    with cuda_rules() if on_cuda else nullcontext(), FakeTensorMode(allow_fallback_kernels=False):
        query = torch.randn(BATCH, HEADS, QUERIES, width, dtype=dtype, requires_grad=True)
        key = torch.randn(BATCH, key_heads, KEYS, width, dtype=dtype, requires_grad=True)
        value = torch.randn(BATCH, key_heads, KEYS, value_width, dtype=dtype, requires_grad=True)
        given = None
        if mask is not None:
            given = torch.ones(BATCH, 1, QUERIES, KEYS, dtype=mask, requires_grad=learned_mask)
        gradient = torch.randn(BATCH, HEADS, QUERIES, value_width, dtype=dtype)
        with sdpa_kernel(backend) if backend else nullcontext():
            return traced(
                lambda: functional.scaled_dot_product_attention(
                    query, key, value, given, enable_gqa=key_heads != HEADS, **options
                ),
                lambda result: result.backward(gradient),
            )[1]


def _macs(tracer):
    return tuple(
        sum(item.macs for item in tracer.passes if item.phase == phase)
        for phase in ("forward", "backward")
    )


def _bytes(tracer, op):
    sizes = tracer.sizes_bytes
    return sum(eager_bytes(item, sizes) for item in tracer.passes if item.op == op)


@pytest.mark.parametrize("on_cuda", [False, True], ids=["cpu", "cuda"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_is_two_products_forward_and_four_backward(variant, on_cuda):
    """A causal mask is not subtracted, and what a kernel computes again is not counted."""
    assert _macs(_traced(**VARIANTS[variant], on_cuda=on_cuda)) == (2 * PRODUCT, 4 * PRODUCT)
    if variant == "plain":
        narrower = _traced(value_width=WIDTH // 2, on_cuda=on_cuda)
        assert _macs(narrower) == (1.5 * PRODUCT, 3 * PRODUCT)


def _by_op(*, on_cuda, **variant):
    return {call.op for call in _traced(on_cuda=on_cuda, **variant).calls if "bmm" in call.op}


OP_BY_OP = ("op by op", "grouped queries", "grouped queries with dropout")


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name not in OP_BY_OP])
def test_cuda_runs_one_kernel_whatever_the_variant(variant):
    assert not _by_op(on_cuda=True, **VARIANTS[variant])


@pytest.mark.parametrize(
    "variant",
    [
        *(VARIANTS[name] for name in OP_BY_OP),
        {"dtype": torch.float64},
        {"width": 50, "value_width": 50},  # rows of 200 bytes
        {"dtype": torch.bfloat16, "width": 72, "value_width": 36},
    ],
)
def test_cuda_computes_op_by_op_what_no_kernel_takes(variant):
    assert _by_op(on_cuda=True, **variant)


def test_flash_attention_takes_any_width_without_a_mask():
    widths = {"dtype": torch.bfloat16, "width": 50, "value_width": 50}
    assert not _by_op(on_cuda=True, **widths)
    assert _by_op(on_cuda=True, **widths, mask=torch.bool)


@pytest.mark.parametrize("variant", ["dropout", "learned mask"])
def test_a_cpu_computes_op_by_op_what_its_kernel_does_not_take(variant):
    assert _by_op(on_cuda=False, **VARIANTS[variant])
    assert not _by_op(on_cuda=False)


def test_a_fused_kernel_moves_its_tensors_once_and_never_the_scores():
    tracer = _traced(on_cuda=True, dropout_p=0.1)
    query, key = 4 * BATCH * HEADS * QUERIES * WIDTH, 4 * BATCH * HEADS * KEYS * WIDTH
    sums = 4 * BATCH * HEADS * QUERIES  # one number per row of the scores
    seeds = 2 * 8
    op = "_scaled_dot_product_efficient_attention"
    assert _bytes(tracer, op) == 2 * query + 2 * key + sums + seeds
    # Output and its gradient, query, keys and values in; three gradients out.
    assert _bytes(tracer, f"{op}_backward") == 4 * query + 4 * key + sums + seeds


def test_op_by_op_the_scores_are_moved():
    scores = 4 * BATCH * HEADS * QUERIES * KEYS
    tracer = _traced(dropout_p=0.1)
    # Written by the product; read and written by softmax and dropout; read by the other product.
    assert _bytes(tracer, "_safe_softmax") == 2 * scores
    assert sum(_bytes(tracer, op) for op in {call.op for call in tracer.calls}) > 12 * scores


@pytest.mark.parametrize("on_cuda", [False, True], ids=["cpu", "cuda"])
def test_the_softmax_inside_counts_as_one_outside(on_cuda):
    tracer = _traced(on_cuda=on_cuda)
    scores = BATCH * HEADS * QUERIES * KEYS
    assert [item.elementwise_flops for item in tracer.passes if item.macs] == [
        5 * scores,
        4 * scores,
    ]


def test_dropout_on_cuda_keeps_a_mask_of_bytes():
    def found(on_cuda):
        rules = cuda_rules() if on_cuda else nullcontext()
        with rules, FakeTensorMode():
            tensor = torch.randn(1000, requires_grad=True)
            tracer = traced(lambda: functional.dropout(tensor, 0.1))[1]
        sizes = tracer.sizes_bytes
        return sum(eager_bytes(item, sizes) for item in tracer.passes)

    assert found(on_cuda=True) == 4000 + 4000 + 1000
    # Draw a factor for each element, divide it by what is kept, multiply.
    assert found(on_cuda=False) == 4000 + 8000 + 12000
