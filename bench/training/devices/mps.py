"""An Apple GPU. Without synchronisation its times are those of queueing: 23 us for 245 us."""

from __future__ import annotations

from typing import Literal

import torch

from bench.machine import mps_device_info
from bench.records import DeviceInfo
from bench.training.devices.base import Device, IterationTimer


class SynchronizedTimer(IterationTimer):
    """Wall time of each iteration, the queue drained at its end."""

    def mark(self) -> None:
        """Wait for what is queued, then mark."""
        torch.mps.synchronize()
        super().mark()


class MpsDevice(Device):
    """The GPU of Apple silicon."""

    backend: Literal["mps"] = "mps"
    timer = SynchronizedTimer
    torch_device = torch.device("mps")
    default_batch_size = 64
    fuses_loss_scaling = False
    # Never channels-last: NHWC makes the backward convolution up to 30 times slower there.

    def synchronize(self) -> None:
        """Wait for the device's command queue."""
        torch.mps.synchronize()

    def info(self) -> DeviceInfo:
        """Return the chip's name and memory."""
        return mps_device_info()

    def native_math(self, mode: str) -> bool:
        """Fp32 and fp16; Apple documents no native bf16 for every chip that MPS runs on."""
        return mode in ("fp32", "fp16")
