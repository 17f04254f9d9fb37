"""What is known of each of torch's ops, once: what neither a tag nor the schema says.

A new op of torch is one line here. An op that is not here is pointwise where torch tags it so; any
other runs as it is, or is refused if it may multiply and add.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from bench.cost.traffic import Role
from bench.errors import UserError
from bench.records.complexity import is_attention


@dataclass(frozen=True)
class Op:
    """What one op does; arguments are known by their names.

    `formula` names what counts its multiply-adds (`flops`) or splits it into several passes
    (`splitting`); an op without one has no multiply-adds and is one pass.
    """

    role: Role | None = None  # None: by torch's tags
    formula: str = ""
    flops: int = 1  # elementwise, per output element; a reduction's per input element
    sums_first: bool = False  # a reduction whose other inputs are places
    summed: str = ""  # of a product: the argument whose last dimension is summed over
    has_bias: bool = False  # unless the argument `bias` is None
    unread: str = ""  # the argument that it takes for its shape alone
    gathered: str = ""  # the argument of which others choose the elements that it reads
    overwrites: bool = False  # its target, without reading it
    allocates: bool = False  # storage without contents


def op_names(text: str) -> frozenset[str]:
    """Return the names that stand in `text`, with spaces or line ends between them."""
    return frozenset(text.split())


def _ops(names: str, role: Role | None = None, **facts: Any) -> dict[str, Op]:
    return dict.fromkeys(names.split(), Op(role, **facts))


def _pointwise(names: str, flops: int = 1, **facts: Any) -> dict[str, Op]:
    return _ops(names, Role.POINTWISE, flops=flops, **facts)


def _products(names: str, summed: str, **facts: Any) -> dict[str, Op]:
    return _ops(names, Role.CONTRACTION, formula="product", summed=summed, **facts)


#: FLOP per element where they are not one. Softmax: maximum, subtract, exponential, add, divide;
#: its backward: multiply, add, subtract, multiply. Layer norm: statistics 3, subtract, scale,
#: weight, bias. RMS norm: square, add, scale, weight. SGD: weight decay, momentum and update are a
#: multiply-add each. AdamW: decay 1, first moment (lerp) 3, second moment 4, root, correction and
#: epsilon 3, scaled quotient 3; Adam adds the decay to the gradient.
OPS: dict[str, Op] = {
    # storage without contents
    **_ops(
        "empty empty_like empty_permuted empty_strided new_empty new_empty_strided", allocates=True
    ),
    # constants
    **_pointwise(
        "arange full full_like new_full new_ones new_zeros ones ones_like scalar_tensor zero zeros "
        "zeros_like",
        flops=0,
        unread="self",
    ),
    **_pointwise("fill copy", flops=0, overwrites=True),
    # elements that go to another place or type
    **_pointwise(
        "_to_copy cat channel_shuffle clone constant_pad_nd flip im2col lift_fresh_copy "
        "native_channel_shuffle pixel_shuffle pixel_unshuffle repeat roll select_backward "
        "slice_backward split_with_sizes_copy stack tril triu",
        flops=0,
    ),
    **_pointwise("embedding", flops=0, gathered="weight"),
    **_pointwise("gather index index_select", flops=0, gathered="self"),
    **_pointwise("nll_loss_backward nll_loss2d_backward", flops=0, unread="self"),
    # on elements, though torch does not tag them so
    **_pointwise("bernoulli exponential normal random uniform", overwrites=True),
    **_pointwise(
        "binary_cross_entropy_backward elu_backward glu glu_backward hardsigmoid_backward "
        "hardswish hardswish_backward hardtanh hardtanh_backward huber_loss_backward "
        "leaky_relu_backward mish_backward mse_loss_backward native_dropout "
        "native_dropout_backward rsub smooth_l1_loss_backward softplus_backward"
    ),
    **_ops("lerp addcmul addcdiv", flops=3),
    **_pointwise("_fused_sgd", flops=6),
    **_pointwise("_fused_adam", flops=15),
    **_pointwise("_fused_adamw", flops=14),
    # on rows, of which one fits on the chip
    **_pointwise("_softmax _safe_softmax _log_softmax", flops=5),
    **_pointwise("_softmax_backward_data _log_softmax_backward_data _fused_rms_norm", flops=4),
    **_pointwise("native_layer_norm", flops=7),
    # all of the input before any of the result
    **_ops(
        "all amax amin any argmax argmin binary_cross_entropy binary_cross_entropy_with_logits "
        "count_nonzero huber_loss linalg_vector_norm logsumexp max mean min mse_loss norm prod "
        "smooth_l1_loss std std_mean sum var var_mean _amp_foreach_non_finite_check_and_unscale",
        Role.REDUCTION,
    ),
    **_ops("embedding_dense_backward", Role.REDUCTION, sums_first=True),
    **_ops("nll_loss_forward nll_loss2d_forward", Role.REDUCTION, sums_first=True, gathered="self"),
    # as it is
    **_ops("_embedding_bag _embedding_bag_forward_only", gathered="weight"),
    **_ops(
        "max_pool2d_with_indices_backward max_pool3d_with_indices_backward avg_pool2d_backward "
        "avg_pool3d_backward _adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward",
        unread="self",
    ),
    # multiply-adds
    **_products("mm _scaled_mm bmm mv dot vdot", "self"),
    **_products("_addmm_activation", "mat1"),
    **_products("addmm", "mat1", has_bias=True),
    **_products("baddbmm", "batch1", has_bias=True),
    **_products("addmv", "mat", has_bias=True),
    **_products("linear", "input"),
    **_ops("convolution", Role.CONTRACTION, formula="convolution", has_bias=True),
    **_ops("_convolution convolution_overrideable", Role.CONTRACTION, formula="convolution"),
    # one group of rows with each of several matrices, as mixtures of experts have them
    **_ops("_grouped_mm _scaled_grouped_mm", Role.CONTRACTION, formula="grouped"),
    # recurrent layers that are one kernel, of any kind: LSTM, GRU, plain
    **_ops(
        "mkldnn_rnn_layer mkldnn_rnn_layer_backward _cudnn_rnn _cudnn_rnn_backward miopen_rnn "
        "miopen_rnn_backward _lstm_mps lstm_mps_backward",
        Role.CONTRACTION,
        formula="recurrent",
    ),
    # several passes
    **_ops("convolution_backward", formula="convolution_backward"),
    **_ops("linear_backward", formula="linear_backward"),
    **_ops(
        "native_batch_norm _native_batch_norm_legit _batch_norm_with_update cudnn_batch_norm "
        "miopen_batch_norm native_group_norm",
        formula="channel_norm",
    ),
    **_ops(
        "native_batch_norm_backward batch_norm_backward cudnn_batch_norm_backward "
        "miopen_batch_norm_backward native_group_norm_backward",
        formula="channel_norm_backward",
    ),
    **_ops("native_layer_norm_backward _fused_rms_norm_backward", formula="row_norm_backward"),
}

#: Parts of the names of other ops that multiply and add: better no count than a wrong one.
_UNCOUNTED = op_names(
    """
    rnn lstm gru attention conv_ conv1d conv2d conv3d convolution conv_dilated conv_depthwise
    matmul _mm_ addmm addbmm hspmm _smm_ spsolve sparse_semi _linear_ linear_backward fbgemm_linear
    _trilinear_ transformer_encoder cdist pdist euclidean_dist _fft_ linalg_ cholesky
    triangular_solve
    matrix_exp linear_combination lu_with_info lu_solve geqrf ormqr orgqr affine_grid _addr_
    """
)
#: Names with such a part that do not.
_WITHOUT_PRODUCTS = op_names(
    "linalg_cross linalg__powsum _linalg_check_errors fft_fftfreq fft_rfftfreq"
)


@cache
def known_op(name: str) -> Op:
    """Return what is known of an op, by its name without `_foreach_` and a last `_`."""
    if is_attention(name):
        return Op(Role.CONTRACTION, "attention")
    if name.startswith("fsdp."):  # into and out of what its processes send each other
        return Op(Role.POINTWISE, flops=0)
    return OPS.get(name, Op())


def refuse_uncounted(name: str) -> None:
    """Raise `UserError` for an op that has, or may have, multiply-adds but no formula here."""
    if name in OPS:
        return
    has_products = any(part in f"_{name}_" for part in _UNCOUNTED)
    if "." in name or (has_products and name not in _WITHOUT_PRODUCTS):  # "library.op"
        raise UserError(
            f"the model runs {name}, whose FLOP cannot be counted; "
            "use convolutions, linear layers, matrix products or attention"
        )
