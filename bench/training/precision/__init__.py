"""The arithmetic of a step: one file per precision; the base, fp32, does nothing."""

from __future__ import annotations

from bench.errors import UnsupportedError
from bench.training.devices import Device
from bench.training.precision.amp import AmpBf16, AmpFp16, keep_depthwise_in_fp32
from bench.training.precision.fp32 import Fp32
from bench.training.precision.tf32 import Tf32

__all__ = ["Fp32", "keep_depthwise_in_fp32", "open_precision"]


def open_precision(name: str, device: Device) -> Fp32:
    """Return the arithmetic of precision `name` on `device`.

    `amp` is bf16 where the device computes it natively, else fp16 where it computes that, else
    bf16 emulated by the library (a CPU without either). Raises `UnsupportedError`.
    """
    if name == "fp32":
        return Fp32()
    if name == "tf32":
        if not device.native_math("tf32"):
            raise _unsupported(name, device, "tf32 needs an NVIDIA GPU from Ampere on")
        return Tf32()
    fp16 = device.native_math("fp16")
    if name == "amp-bf16" or (name == "amp" and (device.native_math("bf16") or not fp16)):
        return AmpBf16(device.backend)
    if not fp16:
        raise _unsupported(name, device, "it has no fp16 arithmetic")
    return AmpFp16(device.backend)


def _unsupported(name: str, device: Device, why: str) -> UnsupportedError:
    return UnsupportedError(
        f"precision={name!r}: not on this {device.backend} device ({why}); use fp32 or amp"
    )
