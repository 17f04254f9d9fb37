"""What CUDA does otherwise than a CPU, for a step that is traced on a CPU's fake tensors.

Autocast: both compute products and convolutions in 16 bits. CUDA's computes some other ops in fp32
that the CPU's leaves in the type they are given: layer norm, for one. Their casts are traffic.

Kernels: CUDA has one where a CPU computes several smaller ops. Attention is the one that counts: on
a CPU dropout, a mask that is learned or values of another width than the keys' are computed op by
op, with the weights of every token to every other in memory. On CUDA all of these are one kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_map

from bench.cost.op_table import op_names

aten = torch.ops.aten

_HALVES = (torch.bfloat16, torch.float16)
_FLASH_MAX_WIDTH = 256
#: Ops whose inputs are cast (ATen/autocast_mode.h, AT_FORALL_FP32).
_CAST = op_names(
    """
    acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan
    pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm
    rms_norm group_norm frobenius_norm.dim nuclear_norm nuclear_norm.dim cosine_similarity
    poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div
    l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss
    soft_margin_loss triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits dist
    pdist cdist renorm logsumexp upsample_nearest1d _upsample_nearest_exact1d upsample_nearest2d
    _upsample_nearest_exact2d upsample_nearest3d _upsample_nearest_exact3d upsample_linear1d
    upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d upsample_bicubic2d
    _upsample_bicubic2d_aa
    """
)
#: Ops that are asked for a result in fp32 (AT_FORALL_FP32_SET_OPT_DTYPE).
_ASKED_FOR_FP32 = op_names(
    """
    prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm
    linalg_matrix_norm linalg_matrix_norm.str_ord sum sum.dim_IntList
    """
)
#: Ops that the CPU's autocast alone computes in fp32; on CUDA they take what they are given.
_ON_CPU_ALONE = op_names(
    """
    avg_pool3d max_pool3d adaptive_avg_pool3d adaptive_max_pool3d fractional_max_pool2d
    fractional_max_pool3d max_unpool2d max_unpool3d reflection_pad1d reflection_pad2d
    replication_pad1d replication_pad2d replication_pad3d grid_sampler_2d grid_sampler_3d
    _grid_sampler_2d_cpu_fallback quantile nanquantile trace
    """
)


@contextmanager
def cuda_rules() -> Iterator[None]:
    """While active, ops on a CPU's tensors are cast and dispatched as on CUDA."""
    with torch.library._scoped_library("aten", "IMPL") as library:
        _set_autocast(library)
        for name, kernel in (("scaled_dot_product_attention", _attention), ("dropout", _dropout)):
            library.impl(name, kernel, "AutogradCPU")
        yield


def _set_autocast(library: torch.library.Library) -> None:
    """Give the CPU's autocast CUDA's fp32 ops, in place of its own."""
    for name in _ON_CPU_ALONE:
        if _is_ruled(name):
            library.impl(name, torch.library.fallthrough_kernel, "AutocastCPU")  # type: ignore[no-untyped-call]
    sampler = partial(_in_widest, aten.grid_sampler.default)
    library.impl("grid_sampler", sampler, "AutocastCPU")  # type: ignore[no-untyped-call]
    for names, kernel in ((_CAST, _cast), (_ASKED_FOR_FP32, _asked_for_fp32)):
        for name in names:
            op = _op(name)
            if op is not None and not _is_ruled(name):
                library.impl(name, partial(kernel, op), "AutocastCPU")  # type: ignore[no-untyped-call]


def _op(name: str) -> Callable[..., Any] | None:
    packet, _, overload = name.partition(".")
    return getattr(getattr(aten, packet, None), overload or "default", None)


def _is_ruled(name: str) -> bool:
    """Whether the CPU's autocast has a rule of its own for the op."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "AutocastCPU")


def _cast(op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    args, kwargs = tree_map(_in_fp32, (args, kwargs))
    with torch.autocast("cpu", enabled=False):
        return op(*args, **kwargs)


def _asked_for_fp32(op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    is_asked = "dtype" in kwargs or any(isinstance(each, torch.dtype) for each in args)
    if args[0].dtype in _HALVES and not is_asked:
        kwargs["dtype"] = torch.float32
    with torch.autocast("cpu", enabled=False):
        return op(*args, **kwargs)


def _in_widest(op: Callable[..., Any], *args: Any) -> Any:
    types = {value.dtype for value in args if isinstance(value, torch.Tensor)}
    given = args if len(types) == 1 else tree_map(_in_fp32, args)
    with torch.autocast("cpu", enabled=False):
        return op(*given)


def _in_fp32(value: Any) -> Any:
    is_half = isinstance(value, torch.Tensor) and value.dtype in _HALVES
    return value.float() if is_half else value


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """The fused op that CUDA chooses, or the op by op one (sdp_utils.cpp, attention.cpp).

    cuDNN's op, which some devices prefer, reads and writes the same tensors as these two.
    """
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        added = torch.tensor([0.0, float("-inf")], dtype=query.dtype)
        attn_mask = torch.where(attn_mask, added[0], added[1])
    width, is_half, four = query.shape[-1], query.dtype in _HALVES, query.dim() == 4
    # Flash attention is of 16 bits and without a mask.
    same_widths = width == key.shape[-1] == value.shape[-1] <= _FLASH_MAX_WIDTH
    is_square = not is_causal or query.shape[-2] == key.shape[-2]
    fits = four and is_half and attn_mask is None and same_widths and is_square
    if fits and torch._C._get_flash_sdp_enabled():
        return aten._scaled_dot_product_flash_attention(
            query, key, value, dropout_p, is_causal, scale=scale
        )[0]
    # Memory-efficient attention needs rows of 16 bytes, and keys for each head. Heads that share
    # keys are left to cuDNN's, which takes 16 bits alone.
    alignment = 16 // query.element_size()
    is_aligned = width % alignment == value.shape[-1] % alignment == 0
    is_single = query.dtype == torch.float32
    own_keys = is_half or (is_single and query.shape[1] == key.shape[1] == value.shape[1])
    fits = four and own_keys and is_aligned and width == key.shape[-1]
    if fits and torch._C._get_mem_efficient_sdp_enabled():
        bias = None
        if attn_mask is not None:
            bias = attn_mask.expand(*query.shape[:-1], key.shape[-2])
        return aten._scaled_dot_product_efficient_attention(
            query, key, value, bias, True, dropout_p, is_causal, scale=scale
        )[0]
    return aten._scaled_dot_product_attention_math(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )[0]


def _dropout(tensor: torch.Tensor, p: float, train: bool) -> Any:
    """One pass that keeps a mask of bytes; a CPU draws a tensor of the same type to multiply by."""
    if not train or p == 0:
        return tensor
    return tensor * 0 if p == 1 else aten.native_dropout(tensor, p, train)[0]
