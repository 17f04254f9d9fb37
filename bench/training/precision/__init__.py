"""The arithmetic of a step: one file per precision; the base, fp32, does nothing."""

from bench.training.precision.amp import keep_depthwise_in_fp32
from bench.training.precision.fp32 import Fp32
from bench.training.precision.select import open_precision

__all__ = ["Fp32", "keep_depthwise_in_fp32", "open_precision"]
