"""The work of single ops from what a profiler printed: names of backends, values that lack."""

import pytest

from bench.cost.called import work_of
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


def test_a_bias_adds_once_per_element_of_the_result():
    biased = printed("miopen_convolution", X, W, (128,), "[1, 1]", "[2, 2]", "[1, 1]", "1", "False")
    assert work(biased).elementwise_flops == 10 * 128 * 28 * 28
    assert work(biased).eager_bytes == sum(SIZES_BYTES) + 2 * 128


def test_a_transposed_convolution_spreads_every_element_of_its_input():
    op = printed(
        "convolution", Y, (128, 64, 2, 2), "", "[2, 2]", "[0, 0]", "[1, 1]", "True", "[0, 0]", "1"
    )
    assert work(op).flops == 2 * 10 * 128 * 28 * 28 * 64 * 4
    assert work(op).eager_bytes == 2 * (10 * 128 * 28 * 28 + 128 * 64 * 4 + 10 * 64 * 56 * 56)


@pytest.mark.parametrize(
    ("mask", "products"),
    [("[True, True, False]", 2), ("[False, True, False]", 1), ("[True, False, False]", 1)],
)
def test_gradients_that_the_mask_leaves_out_are_no_work(mask, products):
    x, w, y = SIZES_BYTES
    found = work(gradients(mask))
    assert found.flops == products * PRODUCT_FLOPS
    to_input, to_weight = "[True" in mask, ", True" in mask
    assert found.eager_bytes == (y + w + x) * to_input + (y + x + w) * to_weight


def test_a_backends_gradients_are_those_of_the_ops_that_it_calls():
    shapes = (X, Y, W, "[1, 1]", "[2, 2]", "[1, 1]", "1", "False", "False", "True")
    op = printed(
        "cudnn_convolution_backward",
        *shapes,
        "[]",
        phase="backward",
        concrete=None,
        output_mask=(False, True, False),
    )
    assert work(op).flops == PRODUCT_FLOPS
    unknown = printed("cudnn_convolution_backward", *shapes, "[]", phase="backward", concrete=None)
    assert "Concrete Inputs" in work(unknown)


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


def test_attention_below_torchs_op_has_its_heads_after_its_length():
    op = printed("_flash_attention_forward", *[(2, 100, 8, 64)] * 3, "", "", "100", "100")
    above = printed(
        "_scaled_dot_product_flash_attention", *[(2, 8, 100, 64)] * 3, "0.", "False", "False", ""
    )
    flops = 2 * 2 * 8 * 100 * 100 * (64 + 64)
    assert work(op).flops == work(above).flops == flops
    back = printed(
        "flash_attn::_flash_attn_backward".replace("::", "."),
        *[(2, 100, 8, 64)] * 4,
        phase="backward",
    )
    assert work(back).flops == 2 * flops
    packed = printed("_flash_attention_forward", *[(200, 8, 64)] * 3, "", "", "100", "100")
    assert "packed" in work(packed)


@pytest.mark.parametrize(
    ("op", "reason"),
    [
        (CalledOp("mm", "forward"), "record_shapes=True"),
        (printed("mm", (10, 512), (7, 512)), "cannot be run on its shapes"),
        (printed("convolution", X, W, "", *["[]"] * 6, concrete=None), "Concrete Inputs"),
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


def test_an_output_of_another_shape_prints_no_warning_of_torchs(recwarn):
    found = work(printed("bmm", (2, 3, 4), (2, 4, 5), (256,)))
    assert isinstance(found, OpWork)
    assert found.flops == 2 * 2 * 3 * 4 * 5
    assert not recwarn.list


HIDDEN = 100 * 99 // 2  # of 100 x 100 weights those above the diagonal


@pytest.mark.parametrize(
    ("name", "arguments", "products"),
    [
        ("_flash_attention_forward", ["", "", "100", "100", "0.", "True", "False"], 2),
        ("_efficient_attention_forward", ["", "", "", "100", "100", "0.", "1", "False"], 2),
        ("_flash_attention_forward", ["", "", "100", "100", "0.", "False", "False"], 0),
        ("_efficient_attention_forward", ["", "", "", "100", "100", "0.", "0", "False"], 0),
    ],
)
def test_what_a_causal_mask_lets_a_kernel_skip_is_known_and_counts(name, arguments, products):
    found = work(printed(name, *[(2, 100, 8, 64)] * 3, *arguments))
    assert found.flops == 2 * 2 * 2 * 8 * 100 * 100 * 64
    assert found.causal_skipped_flops == products * 2 * 2 * 8 * HIDDEN * 64


def test_torchs_own_causal_attention_may_skip_as_much():
    heads = [(2, 8, 100, 64)] * 3
    name = "_scaled_dot_product_flash_attention"
    whole, causal = (
        work(printed(name, *heads, "0.", mask, "False", "")) for mask in ("False", "True")
    )
    assert (whole.flops, whole.causal_skipped_flops) == (causal.flops, 0)
    assert causal.causal_skipped_flops == 2 * 2 * 2 * 8 * HIDDEN * 64
