"""Families of aten ops, by name, where torch has no tag that says it."""

from __future__ import annotations


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Make a tensor of constants.
FILLS = _names(
    """
    arange fill full full_like new_full new_ones new_zeros ones ones_like scalar_tensor zero zeros
    zeros_like
    """
)

#: Copy elements to another place or type, and compute nothing.
MOVES = _names(
    """
    _to_copy cat channel_shuffle clone constant_pad_nd copy embedding flip gather im2col index
    index_select lift_fresh_copy native_channel_shuffle pixel_shuffle pixel_unshuffle repeat roll
    select_backward slice_backward split_with_sizes_copy stack
    """
)

#: Need a row of their input for each element of it; a row fits on the chip.
ROWWISE = _names(
    """
    _fused_rms_norm _log_softmax _log_softmax_backward_data _softmax _softmax_backward_data
    native_layer_norm
    """
)

#: Work on single elements, though torch does not tag them so.
UNTAGGED_POINTWISE = _names(
    """
    bernoulli elu_backward exponential hardsigmoid_backward hardswish hardswish_backward hardtanh
    hardtanh_backward leaky_relu_backward mish_backward native_dropout native_dropout_backward
    normal random softplus_backward uniform
    _fused_adam _fused_adamw _fused_sgd
    """
)

#: Need all of their input before any of their result is there.
REDUCTIONS = _names(
    """
    all amax amin any argmax argmin count_nonzero linalg_vector_norm logsumexp max mean min norm
    prod std std_mean sum var var_mean
    _amp_foreach_non_finite_check_and_unscale embedding_dense_backward
    """
)

#: Overwrite their target without reading it.
OVERWRITES = _names("bernoulli copy exponential fill normal random uniform zero")

#: Return storage without contents.
ALLOCATIONS = _names("empty empty_like empty_permuted empty_strided new_empty new_empty_strided")

#: Take these arguments for their shape alone.
UNREAD_ARGUMENTS = {
    "max_pool2d_with_indices_backward": {"self"},
    "max_pool3d_with_indices_backward": {"self"},
    "avg_pool2d_backward": {"self"},
    "avg_pool3d_backward": {"self"},
    "_adaptive_avg_pool2d_backward": {"self"},
    "_adaptive_avg_pool3d_backward": {"self"},
    **{op: {"self"} for op in (FILLS | ALLOCATIONS) - {"fill"}},
}
