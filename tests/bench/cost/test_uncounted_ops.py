"""No op of torch that multiplies and adds goes uncounted: it has a formula, or it is refused."""

import re

import pytest
import torch
from generated_steps import traced
from torch._subclasses.fake_tensor import FakeTensorMode

from bench.cost.flops import contraction_macs
from bench.cost.op_table import OpCall, known_op, refuse_uncounted
from bench.cost.step_tracer import StepTracer
from bench.cost.traffic import Role
from bench.errors import UserError

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
