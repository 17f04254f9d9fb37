"""Multiply-adds against a count of the products themselves.

A convolution of ones with ones sums a one for every multiply-add, and so does each gradient of its
sum: their totals are the brute-force count.
"""

import re
from functools import partial

import pytest
import torch
from generated_steps import tiny, traced
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from bench.cost.estimate import step_complexity
from bench.cost.flops import contraction_macs
from bench.cost.op_table import OpCall, known_op, refuse_uncounted
from bench.cost.step_tracer import StepTracer
from bench.cost.traffic import Role
from bench.errors import UserError

sizes = st.integers(1, 4)


@st.composite
def convolutions(draw):
    dims = draw(st.integers(1, 3))
    groups, ins, outs = draw(sizes), draw(sizes), draw(sizes)
    kernel = [draw(st.integers(1, 3)) for _ in range(dims)]
    dilation = [draw(st.integers(1, 2)) for _ in range(dims)]
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    shape = [r + draw(st.integers(0, 5)) for r in reach]
    return {
        "inputs": (draw(st.integers(1, 3)), groups * ins, *shape),
        "weight": (groups * outs, ins, *kernel),
        "transposed_weight": (groups * ins, outs, *kernel),
        "stride": [draw(st.integers(1, 3)) for _ in range(dims)],
        "dilation": dilation,
        "groups": groups,
        "bias": draw(st.booleans()),
    }


def _traced(function):
    """Return the multiply-adds of forward and backward of a function that returns a tensor."""
    result, tracer = traced(function, lambda result: result.sum().backward())
    macs = {"forward": 0, "backward": 0}
    for item in tracer.passes:
        macs[item.phase] += item.macs
    return result, macs["forward"], macs["backward"]


def _ones(shape, *, learned):
    return torch.ones(shape, dtype=torch.float64, requires_grad=learned)


def _check(call, inputs, weight, bias):
    """`bias` is of zeros, so that it leaves the sums alone."""
    result, forward_macs, backward_macs = _traced(lambda: call(inputs, weight, bias))
    assert forward_macs == result.sum().item()
    assert backward_macs == sum(t.grad.sum().item() for t in (inputs, weight) if t.requires_grad)


@given(convolutions(), st.booleans(), st.booleans())
@settings(max_examples=60)
@pytest.mark.slow
def test_convolution_and_its_gradients(case, first_layer, transposed):
    dims = len(case["stride"])
    name = f"conv_transpose{dims}d" if transposed else f"conv{dims}d"
    inputs = _ones(case["inputs"], learned=not first_layer)
    weight = _ones(case["transposed_weight" if transposed else "weight"], learned=True)
    channels = weight.shape[1] * case["groups"] if transposed else weight.shape[0]
    bias = torch.zeros(channels, dtype=torch.float64, requires_grad=True) if case["bias"] else None
    options = {key: case[key] for key in ("stride", "dilation", "groups")}
    _check(partial(getattr(functional, name), **options), inputs, weight, bias)


@given(st.lists(sizes, min_size=1, max_size=3), sizes, sizes, st.booleans(), st.booleans())
@settings(max_examples=30)
def test_linear_layer_and_its_gradients(batch, ins, outs, biased, first_layer):
    inputs = _ones((*batch, ins), learned=not first_layer)
    weight = _ones((outs, ins), learned=True)
    bias = torch.zeros(outs, dtype=torch.float64, requires_grad=True) if biased else None
    _check(functional.linear, inputs, weight, bias)


@given(sizes, sizes, sizes, sizes)
@settings(max_examples=30)
def test_batched_product(batch, rows, inner, columns):
    left = _ones((batch, rows, inner), learned=True)
    right = _ones((batch, inner, columns), learned=True)
    _check(lambda a, b, _: a @ b, left, right, None)


@pytest.mark.parametrize(
    ("product", "left", "right", "real"),
    [
        (torch.mm, (3, 4), (4, 5), 4),
        (torch.bmm, (2, 3, 4), (2, 4, 5), 4),
        (lambda a, b: torch.einsum("bixy,ioxy->boxy", a, b), (2, 3, 4, 4), (3, 5, 4, 4), 4),
        # By (a + ib)(c + id) = ac - bd + i((a + b)(c + d) - ac - bd).
        (functional.conv1d, (2, 3, 9), (5, 3, 4), 3),
    ],
)
def test_a_multiply_add_of_complex_numbers_is_several_of_real_ones(product, left, right, real):
    def macs(dtype):
        given = [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in (left, right)]
        return _traced(lambda: torch.view_as_real(product(*given) + 0j))[1:]

    assert macs(torch.complex64) == tuple(real * macs for macs in macs(torch.float32))


def test_a_frozen_stem_has_no_gradient_products():
    whole = step_complexity(tiny("conv_norm_relu_conv"))
    frozen = step_complexity(tiny("frozen_stem"))
    first, second = 2 * 16 * 3 * 8, 2 * 16 * 8 * 4
    assert whole.step_flops == 2 * (2 * first + 3 * second)
    assert frozen.step_flops == 2 * (first + 2 * second)
    assert frozen.memory.gradients_bytes == frozen.memory.optimizer_bytes == 4 * 32


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
def test_every_weight_of_a_recurrent_layer_meets_every_row(layer):
    steps, batch, ins, units = 6, 4, 8, 16
    recurrent = layer(ins, units, batch_first=True, bidirectional=True)
    rows = torch.randn(batch, steps, ins, requires_grad=True)
    _, forward, backward = _traced(lambda: recurrent(rows)[0])
    gates = {nn.LSTM: 4, nn.GRU: 3, nn.RNN: 1}[layer]
    assert forward == 2 * batch * steps * gates * units * (ins + units)
    # The first state is zeros: its gradient is computed only where one kernel does all.
    first_state = 0 if layer is nn.LSTM else 2 * batch * gates * units * units
    assert backward == 2 * forward - first_state


def test_a_recurrent_kernel_of_several_layers_counts_all_of_their_weights():
    """As cuDNN has it, which is not here: a list of matrices and biases, layer by layer."""
    weights = [torch.empty(shape) for shape in ((64, 8), (64, 16), (64,), (64,)) * 2]
    given = {"input": torch.empty(6, 4, 8), "weight": weights, "weight_buf": torch.empty(999)}
    macs = 6 * 4 * 2 * 64 * (8 + 16)
    assert contraction_macs("_cudnn_rnn", given, []) == macs
    assert contraction_macs("_cudnn_rnn_backward", given, []) == 2 * macs


def test_an_op_without_a_formula_or_of_another_library_is_refused_by_name():
    with pytest.raises(UserError, match=r"_fft.* whose FLOP cannot be counted"):
        step_complexity(tiny("spectral"))
    with torch.library._scoped_library("tinylib", "DEF") as library:
        library.define("product(Tensor a, Tensor b) -> Tensor")
        library.impl("product", torch.matmul, "CompositeExplicitAutograd")
        square = torch.ones(2, 2)
        with pytest.raises(UserError, match=r"tinylib\.product"):
            traced(lambda: torch.ops.tinylib.product(square, square))


# No op of torch that multiplies and adds goes uncounted: it has a formula, or it is refused.

#: Words that torch's names for products, solvers and transforms are made of.
_SUSPECT = re.compile(
    r"(?<!u)mm(_|$)|mm_v2|mv$|dot|linear|conv(?!ert)|attention|attn|_fft|fft_|linalg|rnn|lstm|gru|cell"
    r"|matmul|solve|chol|_lu|lu_|qr|svd|eig(?!ht)|einsum|dist|outer|ger$|addr|kron|transformer|matrix_exp"
)
#: What has such a word and no product: interpolation, activations, sums, layout, frequencies.
_NONE = re.compile(
    r"upsample|mkldnn_reorder|flatten_weight|_norm$|powsum|check_errors|linalg_cross|fftfreq|^dist$"
    r"|lu_unpack|^_prelu|^(leaky_|r)relu|^(e|ge|g|si)lu_|sqrt$"
)


def _torchs_own_names():
    """Of ops that are dispatched as they are: the others are seen as what they are made of."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    for full in sorted(torch._C._dispatch_get_all_op_names()):
        library, _, name = full.partition("::")
        name, _, overload = name.partition(".")
        is_made_of_others = has_kernel(full, "CompositeImplicitAutograd")
        if library == "aten" and "out" not in overload and not is_made_of_others:
            yield name.removeprefix("_foreach_").rstrip("_")


def _is_refused(name):
    try:
        refuse_uncounted(name)
    except UserError:
        return True
    return False


def test_every_product_of_torch_is_counted_or_refused_and_nothing_else():
    suspects = {name for name in _torchs_own_names() if _SUSPECT.search(name)}
    assert len(suspects) > 100  # the names are found
    unknown = {
        name
        for name in suspects
        if not known_op(name).formula and known_op(name).role is not Role.REDUCTION
    }
    assert not {name for name in unknown if not _NONE.search(name) and not _is_refused(name)}
    others = "embedding gelu upsample_bilinear2d _weight_norm_interface cumsum topk scatter_add"
    others += " grid_sampler_2d sort fft_fftfreq repeat_interleave comm_hook"
    assert not any(map(_is_refused, others.split()))


@pytest.mark.parametrize(
    ("left", "right", "group"),
    [
        ((64, 16), (4, 16, 32), (16, 16, 32)),  # rows in groups, each with a matrix of its own
        ((16, 64), (64, 32), (16, 16, 32)),  # its weights' gradient: a matrix for each group
        ((4, 16, 32), (32, 64), (16, 32, 16)),  # groups of columns
        ((4, 16, 32), (4, 32, 8), (16, 32, 8)),  # a batched product
    ],
)
def test_grouped_products_are_those_of_their_four_groups(left, right, group):
    given = {"self": torch.empty(left), "mat2": torch.empty(right)}
    rows, inner, columns = group
    assert contraction_macs("_grouped_mm", given, []) == 4 * rows * inner * columns
    if left == (64, 16):
        with FakeTensorMode():
            tensors = [torch.ones(shape, dtype=torch.bfloat16) for shape in (left, right)]
            offsets = torch.tensor([16, 32, 48, 64], dtype=torch.int32)
            passes = traced(lambda: torch._grouped_mm(*tensors, offsets))[1].passes
        assert sum(item.macs for item in passes) == 64 * inner * columns


def test_a_linear_layers_gradients_on_apples_devices():
    inputs, weight, grad = torch.ones(5, 6, 7), torch.ones(3, 7), torch.ones(5, 6, 3)
    given = {"self": inputs, "grad_output": grad, "weight": weight, "output_mask": [True] * 3}
    name = "linear_backward"
    call = OpCall(name, name, False, given, frozenset(), (inputs, weight, torch.ones(3)))
    assert [item.macs for item in StepTracer().split(call, [])] == [630, 630, 0]
