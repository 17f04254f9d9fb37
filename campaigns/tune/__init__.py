"""The fastest setting of a configuration's knobs in bounded time, and what each knob gave."""

from campaigns.tune.result import Effect, PairedComparison, Trial, TuneResult, TuneWatch
from campaigns.tune.tuner import Limits, StartFailedError, tune

__all__ = [
    "Effect",
    "Limits",
    "PairedComparison",
    "StartFailedError",
    "Trial",
    "TuneResult",
    "TuneWatch",
    "tune",
]
