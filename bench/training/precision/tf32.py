"""Single precision storage, products and convolutions on TF32 tensor cores."""

from __future__ import annotations

from bench.training.precision.fp32 import Fp32


class Tf32(Fp32):
    """Inputs rounded to 10 bits of mantissa, sums kept in 32 bits."""

    math_mode = "tf32"
    fp32_math = "tf32"
