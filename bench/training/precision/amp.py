"""Automatic mixed precision: autocast to bf16, or to fp16 with loss scaling."""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import MethodType
from typing import Literal

import torch

from bench.records import MathMode
from bench.training.precision.fp32 import Fp32


class AmpBf16(Fp32):
    """Autocast to bf16, which has fp32's range and needs no scaling."""

    math_mode: MathMode = "bf16"
    autocast_dtype: Literal["bf16", "fp16"] = "bf16"
    _dtype = torch.bfloat16

    def __init__(self, device_type: str) -> None:
        self._device_type = device_type

    def forward(self) -> AbstractContextManager[object]:
        """Autocast to 16 bits."""
        return torch.autocast(self._device_type, dtype=self._dtype)


class AmpFp16(AmpBf16):
    """Autocast to fp16; the loss is scaled so that small gradients do not vanish."""

    math_mode = "fp16"
    autocast_dtype = "fp16"
    loss_scaling = True
    _dtype = torch.float16

    def __init__(self, device_type: str) -> None:
        super().__init__(device_type)
        self._scaler = torch.amp.GradScaler(device_type)

    def backward(self, loss: torch.Tensor) -> None:
        """Accumulate the gradients of the scaled loss."""
        self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Unscale and update; a step with infinite gradients is left out and the scale halved."""
        self._scaler.step(optimizer)
        self._scaler.update()


def keep_depthwise_in_fp32(model: torch.nn.Module) -> bool:
    """Compute every strided depthwise convolution of `model` in fp32 beside autocast.

    The backward passes of just these have no fast bf16 kernel in oneDNN (docs/performance.md).
    Only the layer's `forward` is replaced: it stays the same module, with its name, weights and
    function. A user's own kind of convolution is left as it is. Returns whether there was any.
    """
    found = [layer for layer in model.modules() if _is_strided_depthwise(layer)]
    for layer in found:
        layer.forward = MethodType(_convolve_in_fp32, layer)
    return bool(found)


def _convolve_in_fp32(layer: torch.nn.Conv2d, images: torch.Tensor) -> torch.Tensor:
    """Convolve (batch, channels, height, width) in fp32; the output has autocast's type."""
    device = images.device.type
    autocast_dtype = torch.get_autocast_dtype(device)
    with torch.autocast(device, enabled=False):
        return torch.nn.Conv2d.forward(layer, images.float()).to(autocast_dtype)


def _is_strided_depthwise(layer: torch.nn.Module) -> bool:
    return (
        type(layer) is torch.nn.Conv2d
        and layer.groups == layer.in_channels > 1
        and max(layer.stride) > 1
    )
