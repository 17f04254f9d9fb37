"""The fastest setting of a configuration's knobs in bounded time, and what each knob gave."""

from campaigns.tune.result import Duel, Effect, TuneResult
from campaigns.tune.trial import Trial, TuneWatch
from campaigns.tune.tuner import Limits, StartFailedError, tune

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
