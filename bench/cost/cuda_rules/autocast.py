"""CUDA's autocast.

Both autocasts compute products and convolutions in 16 bits. CUDA's computes some other ops in fp32
that the CPU's leaves in the type they are given: layer norm, for one. Their casts are traffic.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_map

from bench.cost.op_calls import op_names

_HALVES = (torch.bfloat16, torch.float16)
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


def set_autocast(library: torch.library.Library) -> None:
    """Have `library` give the CPU's autocast CUDA's fp32 ops, in place of its own."""
    for name in _ON_CPU_ALONE:
        if _is_ruled(name):
            library.impl(name, torch.library.fallthrough_kernel, "AutocastCPU")  # type: ignore[no-untyped-call]
    sampler = partial(_in_widest, torch.ops.aten.grid_sampler.default)
    library.impl("grid_sampler", sampler, "AutocastCPU")  # type: ignore[no-untyped-call]
    for names, kernel in ((_CAST, _cast), (_ASKED_FOR_FP32, _asked_for_fp32)):
        for name in names:
            op = _op(name)
            if op is not None and not _is_ruled(name):
                library.impl(name, partial(kernel, op), "AutocastCPU")  # type: ignore[no-untyped-call]


def _op(name: str) -> Callable[..., Any] | None:
    """The op, or None where this torch has none of that name."""
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)


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
