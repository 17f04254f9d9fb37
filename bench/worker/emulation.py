"""How long an emulated step will take, estimated before it starts."""

from __future__ import annotations

import time

import torch
from torch.nn import functional

from bench.config import TimeLimits, rounded_s
from bench.training.devices import Device
from bench.training.precision import Fp32

#: A convolution 3x3 as most models have it: images, channels in and out, pixels a side.
_IMAGES, _CHANNELS, _SIDE = 2, 64, 28
#: A multiply-add is 2 FLOP; the forward pass, and the gradients of inputs and of weights.
_FLOPS = 3 * 2 * _IMAGES * _SIDE**2 * _CHANNELS**2 * 9


def emulated_flops_per_s(precision: Fp32, device: Device) -> float:
    """Return the FLOP/s of one small convolution, forward and backward, in this arithmetic.

    The second of two is timed. Draws no random numbers.
    """
    where = device.torch_device
    is_last = device.channels_last(precision.math_mode)[0]
    layout = torch.channels_last if is_last else torch.contiguous_format
    images = torch.ones(_IMAGES, _CHANNELS, _SIDE, _SIDE, device=where).to(memory_format=layout)
    images.requires_grad_()
    filters = torch.full((_CHANNELS, _CHANNELS, 3, 3), 0.01, device=where, requires_grad=True)
    seconds = 0.0
    for _ in range(2):
        device.synchronize()
        begin_s = time.perf_counter()
        with precision.forward():
            loss = functional.conv2d(images, filters, padding=1).float().mean()
        precision.backward(loss)
        device.synchronize()
        seconds = time.perf_counter() - begin_s
    return _FLOPS / seconds


def emulation_estimate(
    precision: Fp32, device: Device, iteration_flops: int, limits: TimeLimits
) -> str:
    """Return about how long an iteration and the whole measurement will take."""
    iteration_s = iteration_flops / emulated_flops_per_s(precision, device)
    whole_s = limits.expected_warmup_s(iteration_s) + limits.expected_window_s(iteration_s)
    return (
        f"estimate, by one small convolution: {rounded_s(iteration_s)} an iteration, "
        f"{rounded_s(whole_s)} for warm-up and window"
    )
