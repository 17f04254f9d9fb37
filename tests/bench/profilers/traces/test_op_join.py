"""Timed ops meet the cost model's calls: each call once, each nanosecond once."""

import random
from functools import partial

import pytest

from bench.profilers.traces.nest import Kind, SeenOp
from bench.profilers.traces.ops import CallsInOrder, join
from bench.records.complexity import CallWork


def work(op, *shapes, phase="forward", flops=1):
    return CallWork(
        op=op,
        phase=phase,
        shapes=shapes,
        label=op,
        flops=flops,
        elementwise_flops=0,
        eager_bytes=10 * flops,
        fused_bytes=5 * flops,
    )


def seen(name, *shapes, own=1.0, inner=(), phase="forward", kind=Kind.OP):
    return SeenOp(name, kind, phase, shapes, own, list(inner))


def joined(tops, calls):
    return [
        (op.name, op.work and op.work.flops, op.own_s) for op in join(tops, CallsInOrder(calls))
    ]


X, W, Y = (4, 3, 8, 8), (6, 3, 1, 1), (4, 6, 8, 8)
MM = ((4, 8), (8, 10))
BACKWARD = partial(seen, phase="backward")


def in_place():
    """Autograd keeps a copy of what the op will overwrite."""
    inner = [seen("clone", X, own=4), seen("hardtanh", X, own=5)]
    return seen("hardtanh_", X, own=1, inner=inner)


#: The timed ops, the model's calls in their order, and what each op is joined with.
JOINS = {
    "the outermost op that is a call takes what it calls": (
        [seen("conv2d", X, W, own=1, inner=[
            seen("convolution", X, W, own=2, inner=[seen("mkldnn_convolution", X, W, own=30)]),
        ])],
        [work("convolution", X, W)],
        [("convolution", 1, 33)],
    ),
    "calls of the same shapes are taken in order": (
        [seen("relu", shape) for shape in (W, X, X, X)],
        [work("relu", X, flops=1), work("relu", X, flops=2), work("relu", W, flops=3)],
        [("relu", flops, 1) for flops in (3, 1, 2, None)],
    ),
    "phases do not mix": (
        [seen("mul", X), BACKWARD("mul", X), seen("mul", X, phase=None)],
        [work("mul", X, phase="backward", flops=2), work("mul", X, flops=1)],
        [("mul", flops, 1) for flops in (1, 2, None)],
    ),
    "casts of autocast are calls beside their convolution": (
        [seen("conv2d", X, W, own=5, inner=[
            seen("to", W, own=1, inner=[seen("_to_copy", W, own=2, inner=[seen("copy_", W, W)])]),
            seen("conv2d", X, W, own=3, inner=[seen("convolution", X, W, own=30)]),
        ])],
        [work("_to_copy", W, flops=0), work("convolution", X, W, flops=7)],
        [("conv2d", None, 5), ("_to_copy", 0, 4), ("convolution", 7, 33)],
    ),
    # bf16 weight gradients are cast inside; the next call casts the same shape again.
    "a cast of the backend's own is part of its op": (
        [BACKWARD("convolution_backward", X, X, W, own=30, inner=[seen("_to_copy", W, own=4)]),
         BACKWARD("_to_copy", W, own=2)],
        [work("convolution_backward", X, X, W, phase="backward", flops=9),
         work("_to_copy", W, phase="backward", flops=0)],
        [("convolution_backward", 9, 34), ("_to_copy", 0, 2)],
    ),
    "what autograd copies before an op in place is a call of its own": (
        [in_place()],
        [work("clone", X, flops=0), work("hardtanh_", X, flops=2)],
        [("hardtanh_", 2, 6), ("clone", 0, 4)],
    ),
    "without that call it is part of the op": (
        [in_place()], [work("hardtanh_", X, flops=2)], [("hardtanh_", 2, 10)],
    ),
    "what an op in place calls is not the next call like it": (
        [seen("relu_", X, inner=[seen("relu", X)]) for _ in range(2)],
        [work("relu_", X, flops=flops) for flops in (1, 2)],
        [("relu_", 1, 2), ("relu_", 2, 2)],
    ),
    "a copy that another op makes is part of it": (
        [seen("relu", X, inner=[seen("clone", X)])],
        [work("relu", X), work("clone", X)],
        [("relu", 1, 2)],
    ),
    "a linear layer under autocast is its casts and its product": (
        [seen("linear", (4, 8), (10, 8), own=0.5, inner=[
            *(seen("_to_copy", shape) for shape in ((10, 8), (4, 8))),
            seen("linear", (4, 8), (10, 8), inner=[seen("t", (10, 8)), seen("mm", *MM)]),
        ])],
        [work("_to_copy", (10, 8)), work("_to_copy", (4, 8)), work("mm", *MM)],
        [("linear", None, 0.5), ("_to_copy", 1, 1), ("_to_copy", 1, 1), ("linear", 1, 3)],
    ),
    "what is no call is one op with all it calls": (
        [seen("to", X, own=1, inner=[
            seen("_to_copy", X, own=2, inner=[seen("copy_", X, own=30)]),
        ])],
        [],
        [("to", None, 33)],
    ),
    "time of marks and of autograd belongs to no op": (
        [seen("ReluBackward0", own=50, inner=[seen("mul", X, own=3)], kind=Kind.WRAPPER)],
        [work("mul", X)],
        [("mul", 1, 3)],
    ),
    "a compiled graph is not the ops that it still calls": (
        [seen("CompiledFxGraph", own=20, inner=[seen("convolution", X, W)], kind=Kind.REGION)],
        [work("convolution", X, W)],
        [("CompiledFxGraph", None, 20), ("convolution", 1, 1)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", list(JOINS))
def test_ops_meet_their_calls(case):
    tops, calls, shares = JOINS[case]
    assert joined(tops, calls) == shares


@pytest.mark.parametrize(
    ("timed", "model"),
    [
        (seen("cudnn_batch_norm", X, (6,), (6,)), work("native_batch_norm", X, (6,))),
        (
            seen("cudnn_batch_norm_backward", X, X, (6,), (128,)),
            work("native_batch_norm_backward", X, X, (6,)),
        ),
        (
            seen("cudnn_convolution_backward", X, Y, W),
            work("convolution_backward", Y, X, W),
        ),
        (seen("add_", X, X), work("add", X, X)),
        (seen("_index_put_impl_", X, W), work("index_put", X, W)),
        (seen("linear", (2, 5, 8), (10, 8), (10,)), work("addmm", (10,), (10, 8), (8, 10))),
        (seen("addmm", (10,), (4, 8), (8, 10)), work("addmm", (10,), (4, 8), (8, 10))),
        (seen("mm", (4, 8), (8, 10)), work("mm", (4, 8), (8, 10))),
        # Compiled code gives the result's place too.
        (seen("mm", (4, 8), (8, 10), (4, 10)), work("mm", (4, 8), (8, 10))),
        (seen("addmm", (10,), (4, 8), (8, 10), (4, 10)), work("addmm", (10,), (4, 8), (8, 10))),
        (seen("addmm", (4, 10), (4, 8), (8, 10)), work("mm", (4, 8), (8, 10))),
        (
            seen("_scaled_dot_product_flash_attention", X, X, X),
            work("_scaled_dot_product_flash_attention_for_cpu", X, X, X),
        ),
        (
            seen("_scaled_dot_product_efficient_attention_backward", X, X, X, X, W),
            work("_scaled_dot_product_flash_attention_for_cpu_backward", X, X, X, X, X),
        ),
    ],
)
def test_a_backends_own_name_for_the_same_work_is_known(timed, model):
    assert joined([timed], [model]) == [(timed.name, 1, 1)]


@pytest.mark.parametrize(
    ("timed", "model"),
    [
        (seen("cudnn_batch_norm", W), work("native_batch_norm", X)),
        (seen("mm", (4, 8), (8, 10)), work("mm", (8, 4), (4, 10))),
        (seen("mm"), work("mm", (4, 8), (8, 10))),
        (
            seen("_scaled_dot_product_flash_attention_backward", X, X, X, X),
            work("_scaled_dot_product_flash_attention_for_cpu", X, X, X),
        ),
        (seen("relu", X, kind=Kind.WRAPPER), work("relu", X)),
        (seen("relu", X, kind=Kind.KERNEL), work("relu", X)),
    ],
)
def test_other_work_is_not_joined(timed, model):
    assert [op.work for op in join([timed], CallsInOrder([model]))] in ([], [None])


def test_no_time_is_lost_or_counted_twice_in_any_tree():
    draw = random.Random(3)
    names, shapes = ["a", "b", "b_", "clone"], [X, W]

    def tree(depth):
        inner = [tree(depth - 1) for _ in range(draw.randrange(3) if depth else 0)]
        kind = draw.choice([Kind.OP, Kind.OP, Kind.REGION])
        return seen(
            draw.choice(names), draw.choice(shapes), own=draw.random(), inner=inner, kind=kind
        )

    for _ in range(200):
        tops = [tree(4) for _ in range(3)]
        calls = [work(draw.choice(names), draw.choice(shapes)) for _ in range(10)]
        ops = join(tops, CallsInOrder(calls))
        whole_s = sum(op.own_s for top in tops for op in top.everything())
        assert sum(op.own_s for op in ops) == pytest.approx(whole_s)
        taken = [id(op.work) for op in ops if op.work]
        assert len(taken) == len(set(taken))
