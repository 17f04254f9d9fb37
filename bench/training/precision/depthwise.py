"""Strided depthwise convolutions that keep to fp32 beside autocast, where 16 bits are slower."""

from __future__ import annotations

import torch


class Fp32Convolution(torch.nn.Conv2d):
    """A convolution computed in fp32 whose output has autocast's type, as its neighbours expect."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
        """Convolve (batch, channels, height, width)."""
        device = input.device.type
        given = torch.get_autocast_dtype(device)
        with torch.autocast(device, enabled=False):
            return super().forward(input.float()).to(given)


def keep_depthwise_in_fp32(model: torch.nn.Module) -> bool:
    """Make every strided depthwise convolution of `model` an `Fp32Convolution`.

    The backward passes of just these have no fast bf16 kernel in oneDNN (docs/performance.md).
    Each stays the same module, with its name, weights and function; a user's own kind of
    convolution is left alone. Returns whether there was any.
    """
    found = [layer for layer in model.modules() if _is_strided_depthwise(layer)]
    for layer in found:
        layer.__class__ = Fp32Convolution
    return bool(found)


def _is_strided_depthwise(layer: torch.nn.Module) -> bool:
    return (
        type(layer) is torch.nn.Conv2d
        and layer.groups == layer.in_channels > 1
        and max(layer.stride) > 1
    )
