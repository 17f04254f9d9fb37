"""The arithmetic of a step: one file per precision; the base, fp32, does nothing."""

from __future__ import annotations

import os
from collections.abc import Callable

from bench.errors import UnsupportedError
from bench.training.devices import Device
from bench.training.precision.amp import AmpBf16, AmpFp16, keep_depthwise_in_fp32
from bench.training.precision.fp32 import Fp32
from bench.training.precision.tf32 import Tf32

__all__ = ["Fp32", "keep_depthwise_in_fp32", "open_precision"]


def open_precision(name: str, device: Device) -> Fp32:
    """Return the arithmetic of precision `name` on `device`.

    `amp` is bf16 where the device computes it natively, else fp16 where it computes that, else
    fp32: emulation is slower than that. `amp-bf16` and `amp-fp16` are emulated by the library where
    the device lacks them. Raises `UnsupportedError` for tf32 where there is none, or where the
    environment switches it off.
    """
    is_switched_off = device.backend == "cuda" and os.environ.get("NVIDIA_TF32_OVERRIDE") == "0"
    if name == "tf32" and is_switched_off:
        raise UnsupportedError(
            "precision='tf32': NVIDIA_TF32_OVERRIDE=0 makes NVIDIA's libraries compute in fp32; "
            "unset it, or use precision=fp32"
        )
    if name == "tf32" and not device.native_math("tf32"):
        raise UnsupportedError(
            f"precision={name!r}: not on this {device.backend} device "
            "(tf32 needs an NVIDIA GPU from Ampere on); use fp32 or amp"
        )
    if name == "amp":
        native = (mode for mode in ("bf16", "fp16") if device.native_math(mode))
        name = next((f"amp-{mode}" for mode in native), "fp32")
    kinds: dict[str, Callable[[], Fp32]] = {
        "fp32": Fp32,
        "tf32": Tf32,
        "amp-bf16": lambda: AmpBf16(device.backend),
        "amp-fp16": lambda: AmpFp16(device.backend),
    }
    return kinds[name]()
