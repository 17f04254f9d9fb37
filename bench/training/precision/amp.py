"""Automatic mixed precision: autocast to bf16, or to fp16 with loss scaling."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch

from bench.training.precision.fp32 import Fp32


class AmpBf16(Fp32):
    """Autocast to bf16, which has fp32's range and needs no scaling."""

    math_mode = "bf16"
    autocast_dtype = "bf16"

    def __init__(self, device_type: str) -> None:
        self._device_type = device_type

    def forward(self) -> AbstractContextManager[object]:
        """Autocast to bf16."""
        return torch.autocast(self._device_type, dtype=torch.bfloat16)


class AmpFp16(Fp32):
    """Autocast to fp16; the loss is scaled so that small gradients do not vanish."""

    math_mode = "fp16"
    autocast_dtype = "fp16"
    loss_scaling = True

    def __init__(self, device_type: str) -> None:
        self._device_type = device_type
        self._scaler = torch.amp.GradScaler(device_type)

    def forward(self) -> AbstractContextManager[object]:
        """Autocast to fp16."""
        return torch.autocast(self._device_type, dtype=torch.float16)

    def backward(self, loss: torch.Tensor) -> None:
        """Accumulate the gradients of the scaled loss."""
        self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Unscale and update; a step with infinite gradients is left out and the scale halved."""
        self._scaler.step(optimizer)
        self._scaler.update()
