"""The work of single ops from what a profiler printed: names of backends, values that lack."""

from functools import partial

import pytest

from bench.cost.printed_ops import work_of
from bench.records.complexity import CalledOp, OpWork

FLOAT = "c10::BFloat16"
X, W, Y = (10, 64, 56, 56), (128, 64, 3, 3), (10, 128, 28, 28)
#: 2 FLOP for every element of the result and of a filter.
PRODUCT_FLOPS = 2 * 10 * 128 * 28 * 28 * 64 * 3 * 3
SIZES_BYTES = [2 * 10 * 64 * 56 * 56, 2 * 128 * 64 * 9, 2 * 10 * 128 * 28 * 28]


def printed(name, *arguments, **facts):
    """An op as printed: tensors are shapes, or (shape, type); values are text."""
    dims, types, concrete = [], [], []
    for argument in arguments:
        if isinstance(argument, str):
            dims.append(())
            types.append("ScalarList" if argument.startswith("[") else "Scalar" if argument else "")
            concrete.append(argument)
        else:
            with_type = (
                argument if argument and isinstance(argument[-1], str) else (argument, FLOAT)
            )
            dims.append(with_type[0])
            types.append(with_type[1])
            concrete.append("")
    facts = {"phase": "forward", "concrete": tuple(concrete), **facts}
    return CalledOp(name, dims=tuple(dims), types=tuple(types), **facts)


def work(op):
    return work_of([op])[op]


OWN = printed("convolution", X, W, "", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1")
BACKWARD = ("[64]", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1")


def gradients(mask):
    return printed("convolution_backward", Y, X, W, *BACKWARD, mask, phase="backward")


@pytest.mark.parametrize(
    "op",
    [
        OWN,
        printed("_convolution", X, W, "", "[2]", "[1]", "[1]", "False", "[0]", "1", "False"),
        printed("cudnn_convolution", X, W, "[1, 1]", "[2, 2]", "[1, 1]", "1", "False", "False"),
        printed("miopen_convolution", X, W, "", "[1, 1]", "[2, 2]", "[1, 1]", "1", "False"),
        printed("mkldnn_convolution", X, W, "", "[1, 1]", "[2, 2]", "[1, 1]", "1"),
        printed("_slow_conv2d_forward", X, W, "[3, 3]", "", "[2, 2]", "[1, 1]"),
        printed("cudnn_convolution", X, W, "", "", "", "1", concrete=None, result=Y),
    ],
    ids=lambda op: op.name,
)
def test_a_convolution_is_the_same_work_under_every_name(op):
    found = work(op)
    moved = sum(SIZES_BYTES)
    assert (found.flops, found.elementwise_flops) == (PRODUCT_FLOPS, 0)
    assert (found.eager_bytes, found.fused_bytes) == (moved, moved)
    assert found.label.startswith("convolution 3x3")


BIASED = printed("miopen_convolution", X, W, (128,), "[1, 1]", "[2, 2]", "[1, 1]", "1", "False")
SPREAD = printed(
    "convolution", Y, (128, 64, 2, 2), "", "[2, 2]", "[0, 0]", "[1, 1]", "True", "[0, 0]", "1"
)
NAMED = (X, Y, W, "[1, 1]", "[2, 2]", "[1, 1]", "1", "False", "False", "True", "[]")
CUDNN_BACKWARD = partial(
    printed, "cudnn_convolution_backward", *NAMED, phase="backward", concrete=None
)


@pytest.mark.parametrize(
    ("op", "flops", "elementwise", "eager"),
    [
        # A bias adds once per element of the result.
        (BIASED, PRODUCT_FLOPS, 10 * 128 * 28 * 28, sum(SIZES_BYTES) + 2 * 128),
        # A transposed convolution spreads every element of its input.
        (SPREAD, 2 * 10 * 128 * 28 * 28 * 64 * 4, 0, SIZES_BYTES[2] + 2 * 128 * 64 * 4
         + SIZES_BYTES[0]),
        # Gradients that the mask leaves out are no work.
        (gradients("[True, True, False]"), 2 * PRODUCT_FLOPS, 0, 2 * sum(SIZES_BYTES)),
        (gradients("[False, True, False]"), PRODUCT_FLOPS, 0, sum(SIZES_BYTES)),
        (gradients("[True, False, False]"), PRODUCT_FLOPS, 0, sum(SIZES_BYTES)),
        (CUDNN_BACKWARD(output_mask=(False, True, False)), PRODUCT_FLOPS, 0, sum(SIZES_BYTES)),
        (gradients("[False, False, True]"), 0, 10 * 128 * 28 * 28, SIZES_BYTES[2] + 2 * 128),
    ],
)  # fmt: skip
def test_a_convolutions_bias_and_gradients(op, flops, elementwise, eager):
    found = work(op)
    assert (found.flops, found.elementwise_flops) == (flops, elementwise)
    assert found.eager_bytes == eager


NORM = ((128,), (128,), (128,), (128,))


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("native_batch_norm", (Y, *NORM, "True", "0.5", "0.5")),
        ("cudnn_batch_norm", (Y, *NORM, "True", "0.5", "0.5")),
        ("native_batch_norm_backward", (Y, Y, *NORM, (128,), "True", "0.5", "[True, True, True]")),
        ("cudnn_batch_norm_backward", (Y, Y, *NORM, (128,), "0.5", ((0,), "unsigned char"))),
        ("miopen_batch_norm_backward", (Y, Y, *NORM, (128,), "0.5")),
    ],
)
def test_a_batch_norm_reads_its_input_again_after_its_statistics(name, arguments):
    found, y = work(printed(name, *arguments)), SIZES_BYTES[2]
    passes = 5 if name.endswith("backward") else 3
    again = 2 if name.endswith("backward") else 1
    assert found.eager_bytes == pytest.approx(passes * y, rel=1e-3)
    assert found.fused_bytes == pytest.approx(again * y, rel=1e-3)
    assert found.label == "batch_norm"


@pytest.mark.parametrize(
    ("op", "flops", "elementwise", "eager", "fused"),
    [
        (printed("mm", (10, 512), (512, 7)), 2 * 10 * 512 * 7, 0, 17548, 17548),
        (
            printed("addmm", (7,), (10, 512), (512, 7), "1", "1"),
            *(2 * 10 * 512 * 7, 70, 17562, 17562),
        ),
        (printed("relu_", (100,)), 0, 100, 400, 0),
        (printed("add_", (100,), (100,), "1"), 0, 100, 600, 0),
        (printed("add", (100,), (100,), "1", concrete=None), 0, 100, 600, 0),
        (printed("sum", (10, 100), "[0]", "True", ""), 0, 1000, 2200, 0),
        # A mean over an expanded dimension reads what is there once.
        (printed("clone", (100, 50), "", strides=((1, 0), ())), 0, 0, 10200, 0),
        (printed("_to_copy", ((100,), "float"), "15", "", "", "", "False", ""), 0, 0, 600, 0),
    ],
    ids=lambda value: value.name if isinstance(value, CalledOp) else "",
)
def test_other_ops_are_counted_as_in_a_step(op, flops, elementwise, eager, fused):
    found = work(op)
    assert (found.flops, found.elementwise_flops) == (flops, elementwise)
    assert (found.eager_bytes, found.fused_bytes) == (eager, fused)


@pytest.mark.parametrize(
    ("op", "reason"),
    [
        (CalledOp("mm", "forward"), "record_shapes=True"),
        (printed("mm", (10, 512), (7, 512)), "cannot be run on its shapes"),
        (printed("convolution", X, W, "", *["[]"] * 6, concrete=None), "Concrete Inputs"),
        (CUDNN_BACKWARD(), "Concrete Inputs"),
        (printed("_flash_attention_forward", *[(200, 8, 64)] * 3, "", "", "9", "9"), "packed"),
        (printed("max_pool2d_with_indices", X, *["[]"] * 5, concrete=None), "Concrete Inputs"),
        (printed("conv2d", *[(8, 3, 9, 9), (4, 3, 1, 1)], "", "[1]", "[0]", "[1]", "1"), "made of"),
        (printed("view", (10, 10), "[100]"), "a view"),
        (printed("c10d.allreduce_", (10,)), "library"),
        (printed("no_such_op", (10,)), "no op of this torch"),
        (printed("_foreach_add_", (((3,),), "TensorList"), "1"), "lists"),
    ],
    ids=lambda value: value.name if isinstance(value, CalledOp) else "",
)
def test_what_a_trace_does_not_say_is_a_reason(op, reason, capfd):
    found = work(op)
    assert capfd.readouterr().err == ""
    assert not isinstance(found, OpWork)
    assert reason in found


HIDDEN = 100 * 99 // 2  # of 100 x 100 weights those above the diagonal
ABOVE, BELOW = [(2, 8, 100, 64)] * 3, [(2, 100, 8, 64)] * 3  # heads before length, and after


@pytest.mark.parametrize(
    ("name", "arguments", "is_causal"),
    [
        ("_flash_attention_forward", [*BELOW, "", "", "100", "100", "0.", "True"], True),
        ("_efficient_attention_forward", [*BELOW, *[""] * 3, "100", "100", "0.", "1"], True),
        ("_flash_attention_forward", [*BELOW, "", "", "100", "100", "0.", "False"], False),
        ("_efficient_attention_forward", [*BELOW, *[""] * 3, "100", "100", "0.", "0"], False),
        ("_scaled_dot_product_flash_attention", [*ABOVE, "0.", "True", "False", ""], True),
        ("_scaled_dot_product_flash_attention", [*ABOVE, "0.", "False", "False", ""], False),
    ],
)
def test_attention_counts_whole_and_a_causal_mask_lets_a_kernel_skip(name, arguments, is_causal):
    found = work(printed(name, *arguments))
    flops = 2 * 2 * 2 * 8 * 100 * 100 * 64
    assert (found.flops, found.causal_skipped_flops) == (
        flops,
        is_causal * 2 * 2 * 2 * 8 * HIDDEN * 64,
    )
    back = work(printed("flash_attn._flash_attn_backward", BELOW[0], *BELOW, phase="backward"))
    assert (back.flops, back.eager_bytes) == (2 * flops, 7 * 2 * 2 * 100 * 8 * 64)
