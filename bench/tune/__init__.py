"""The fastest setting of a configuration's knobs in bounded time, and what each knob gave."""

from bench.tune.result import Duel, Effect, TuneResult
from bench.tune.trial import Trial, TuneWatch
from bench.tune.tuner import Limits, StartFailedError, tune

__all__ = [
    "Duel",
    "Effect",
    "Limits",
    "StartFailedError",
    "Trial",
    "TuneResult",
    "TuneWatch",
    "tune",
]
