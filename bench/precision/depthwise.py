"""Strided depthwise convolutions that keep to fp32 beside autocast, where 16 bits are slower."""

from __future__ import annotations

from typing import TypeGuard

import torch


class Fp32Convolution(torch.nn.Module):
    """A convolution computed in fp32 whose output has autocast's type, as its neighbours expect."""

    def __init__(self, convolution: torch.nn.Conv2d) -> None:
        super().__init__()
        self.convolution = convolution

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Convolve (batch, channels, height, width)."""
        device = images.device.type
        given = torch.get_autocast_dtype(device)
        with torch.autocast(device, enabled=False):
            output: torch.Tensor = self.convolution(images.float())
        return output.to(given)


def keep_depthwise_in_fp32(model: torch.nn.Module) -> None:
    """Make every strided depthwise convolution inside `model` an `Fp32Convolution`.

    The backward passes of just these have no fast bf16 kernel in oneDNN (docs/performance.md);
    their weights and the function that they compute stay the same.
    """
    for parent in tuple(model.modules()):
        for name, layer in tuple(parent.named_children()):
            if _is_strided_depthwise(layer):
                setattr(parent, name, Fp32Convolution(layer))


def _is_strided_depthwise(layer: torch.nn.Module) -> TypeGuard[torch.nn.Conv2d]:
    return (
        isinstance(layer, torch.nn.Conv2d)
        and layer.groups == layer.in_channels > 1
        and max(layer.stride) > 1
    )
