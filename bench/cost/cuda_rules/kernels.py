"""Ops that CUDA has a kernel for where a CPU computes several smaller ones.

Attention is the one that counts: on a CPU dropout, a mask that is learned or values of another
width than the keys' are computed op by op, with the weights of every token to every other in
memory. On CUDA all of these are one kernel.
"""

from __future__ import annotations

from typing import Any

import torch

_HALVES = (torch.bfloat16, torch.float16)
_FLASH_MAX_WIDTH = 256

aten = torch.ops.aten


def set_kernels(library: torch.library.Library) -> None:
    """Have `library` compute these ops as CUDA does."""
    for name, kernel in (("scaled_dot_product_attention", _attention), ("dropout", _dropout)):
        library.impl(name, kernel, "AutogradCPU")  # type: ignore[no-untyped-call]


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
    if _is_flash(query, key, value, attn_mask, is_causal=is_causal):
        return aten._scaled_dot_product_flash_attention(
            query, key, value, dropout_p, is_causal, scale=scale
        )[0]
    if _is_efficient(query, key, value):
        bias = None
        if attn_mask is not None:
            bias = attn_mask.expand(*query.shape[:-1], key.shape[-2])
        return aten._scaled_dot_product_efficient_attention(
            query, key, value, bias, True, dropout_p, is_causal, scale=scale
        )[0]
    return aten._scaled_dot_product_attention_math(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )[0]


def _is_flash(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    *,
    is_causal: bool,
) -> bool:
    """Whether flash attention, of 16 bits and without a mask, can compute it."""
    width = query.shape[-1]
    return (
        torch._C._get_flash_sdp_enabled()
        and query.dim() == 4
        and query.dtype in _HALVES
        and mask is None
        and width == key.shape[-1] == value.shape[-1] <= _FLASH_MAX_WIDTH
        and not (is_causal and query.shape[-2] != key.shape[-2])
    )


def _is_efficient(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether memory-efficient attention can: it needs rows of 16 bytes, and keys for each head.

    Heads that share keys are left to cuDNN's, which takes 16 bits alone.
    """
    alignment = 16 // query.element_size()
    return (
        torch._C._get_mem_efficient_sdp_enabled()
        and query.dim() == 4
        and query.dtype in (*_HALVES, torch.float32)
        and (query.dtype in _HALVES or query.shape[1] == key.shape[1] == value.shape[1])
        and query.shape[-1] == key.shape[-1]
        and query.shape[-1] % alignment == value.shape[-1] % alignment == 0
    )


def _dropout(tensor: torch.Tensor, p: float, train: bool) -> Any:
    """One pass that keeps a mask of bytes; a CPU draws a tensor of the same type to multiply by."""
    if not train or p == 0:
        return tensor
    return tensor * 0 if p == 1 else aten.native_dropout(tensor, p, train)[0]
