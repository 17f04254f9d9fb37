"""Timed ops meet the cost model's calls: each call once, each nanosecond once."""

import random

import pytest

from bench.cost import CallWork
from bench.profilers.ops.op_times import join
from bench.profilers.ops.timed_step import Kind, SeenOp


def work(op, *shapes, phase="forward", flops=1, label=None):
    return CallWork(
        op=op,
        phase=phase,
        shapes=shapes,
        label=label or op,
        flops=flops,
        elementwise_flops=0,
        eager_bytes=10 * flops,
        fused_bytes=5 * flops,
    )


def seen(name, *shapes, own=1.0, inner=(), phase="forward", kind=Kind.OP):
    return SeenOp(name, kind, phase, shapes, own, list(inner))


def joined(tops, calls):
    return [
        (share.seen.name, share.call and share.call.flops, share.time_s)
        for share in join(tops, calls)
    ]


X, W = (4, 3, 8, 8), (6, 3, 1, 1)


def test_the_outermost_op_that_is_a_call_takes_what_it_calls():
    op = seen(
        "conv2d",
        X,
        W,
        own=1,
        inner=[
            seen("convolution", X, W, own=2, inner=[seen("mkldnn_convolution", X, W, own=30)]),
        ],
    )
    assert joined([op], [work("convolution", X, W)]) == [("convolution", 1, 33)]


def test_calls_of_the_same_shapes_are_taken_in_order():
    calls = [work("relu", X, flops=1), work("relu", X, flops=2), work("relu", W, flops=3)]
    ops = [seen("relu", W), seen("relu", X), seen("relu", X), seen("relu", X)]
    assert [flops for _, flops, _ in joined(ops, calls)] == [3, 1, 2, None]


def test_phases_do_not_mix():
    calls = [work("mul", X, phase="backward", flops=2), work("mul", X, flops=1)]
    ops = [seen("mul", X), seen("mul", X, phase="backward"), seen("mul", X, phase=None)]
    assert [flops for _, flops, _ in joined(ops, calls)] == [1, 2, None]


def test_casts_of_autocast_are_calls_beside_their_convolution():
    cast = seen("to", W, own=1, inner=[seen("_to_copy", W, own=2, inner=[seen("copy_", W, W)])])
    conv = seen("conv2d", X, W, own=3, inner=[seen("convolution", X, W, own=30)])
    outer = seen("conv2d", X, W, own=5, inner=[cast, conv])
    calls = [work("_to_copy", W, flops=0), work("convolution", X, W, flops=7)]
    assert sorted(joined([outer], calls), key=lambda share: share[2]) == [
        ("_to_copy", 0, 4),
        ("conv2d", None, 5),
        ("convolution", 7, 33),
    ]


def test_a_cast_of_the_backends_own_is_part_of_its_op():
    """bf16 weight gradients are cast inside; the next call casts the same shape again."""
    own_cast = seen("_to_copy", W, own=4)
    ops = [
        seen("convolution_backward", X, X, W, own=30, inner=[own_cast], phase="backward"),
        seen("_to_copy", W, own=2, phase="backward"),
    ]
    calls = [
        work("convolution_backward", X, X, W, phase="backward", flops=9),
        work("_to_copy", W, phase="backward", flops=0),
    ]
    assert joined(ops, calls) == [("convolution_backward", 9, 34), ("_to_copy", 0, 2)]


def test_what_autograd_copies_before_an_op_in_place_is_a_call_of_its_own():
    def op():
        inner = [seen("clone", X, own=4), seen("hardtanh", X, own=5)]
        return seen("hardtanh_", X, own=1, inner=inner)

    calls = [work("clone", X, flops=0), work("hardtanh_", X, flops=2)]
    assert joined([op()], calls) == [("hardtanh_", 2, 6), ("clone", 0, 4)]
    assert joined([op()], calls[1:]) == [("hardtanh_", 2, 10)]


def test_what_an_op_in_place_calls_is_not_the_next_call_like_it():
    ops = [seen("relu_", X, inner=[seen("relu", X)]) for _ in range(2)]
    calls = [work("relu_", X, flops=flops) for flops in (1, 2)]
    assert joined(ops, calls) == [("relu_", 1, 2), ("relu_", 2, 2)]


def test_a_copy_that_another_op_makes_is_part_of_it():
    op = seen("relu", X, inner=[seen("clone", X)])
    assert joined([op], [work("relu", X), work("clone", X)]) == [("relu", 1, 2)]


@pytest.mark.parametrize(
    ("timed", "model"),
    [
        (seen("cudnn_batch_norm", X, (6,), (6,)), work("native_batch_norm", X, (6,))),
        (
            seen("cudnn_batch_norm_backward", X, X, (6,), (128,)),
            work("native_batch_norm_backward", X, X, (6,)),
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
    assert [share.call for share in join([timed], [model])] in ([], [None])


def test_a_linear_layer_under_autocast_is_its_casts_and_its_product():
    casts = [seen("_to_copy", (10, 8)), seen("_to_copy", (4, 8))]
    product = seen(
        "linear", (4, 8), (10, 8), inner=[seen("t", (10, 8)), seen("mm", (4, 8), (8, 10))]
    )
    outer = seen("linear", (4, 8), (10, 8), own=0.5, inner=[*casts, product])
    calls = [work("_to_copy", (10, 8)), work("_to_copy", (4, 8)), work("mm", (4, 8), (8, 10))]
    matched = [name for name, flops, _ in joined([outer], calls) if flops]
    assert matched == ["_to_copy", "_to_copy", "linear"]


def test_what_is_no_call_is_one_op_with_all_it_calls():
    op = seen("to", X, own=1, inner=[seen("_to_copy", X, own=2, inner=[seen("copy_", X, own=30)])])
    assert joined([op], []) == [("to", None, 33)]


def test_time_of_marks_and_of_autograd_belongs_to_no_op():
    node = seen("ReluBackward0", own=50, inner=[seen("mul", X, own=3)], kind=Kind.WRAPPER)
    assert joined([node], [work("mul", X)]) == [("mul", 1, 3)]


def test_a_compiled_graph_is_told_apart_from_the_ops_it_still_calls():
    graph = seen("CompiledFxGraph", own=20, inner=[seen("convolution", X, W)], kind=Kind.REGION)
    shares = joined([graph], [work("convolution", X, W)])
    assert shares == [("CompiledFxGraph", None, 20), ("convolution", 1, 1)]


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
        shares = join(tops, calls)
        assert sum(s.time_s for s in shares) == pytest.approx(sum(top.total_s for top in tops))
        taken = [id(share.call) for share in shares if share.call]
        assert len(taken) == len(set(taken))
