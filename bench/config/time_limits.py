"""How long a measurement may take: what `max_seconds` leaves its warm-up and its window."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from bench.config.resolved import Backend
from bench.config.run_config import LEAST, RunConfig

#: What `max_seconds=auto` is, by backend: with the start and the end of a run, a CPU of two cores
#: is done with vgg16 in three minutes.
_AUTO_MAX_SECONDS: Mapping[Backend, float] = MappingProxyType(
    {"cpu": 30.0, "cuda": 600.0, "mps": 600.0}
)
#: A window that a time limit may end holds at least this many: fewer do not show a steady state.
MIN_ITERATIONS = 4
#: The first iteration makes gradients and momentum, and reserves memory; the second reuses them.
_MIN_WARMUP = 2
#: A CUDA graph is recorded in one iteration and first replayed in the next. On CUDA the second
#: iteration reserves memory once more, since the first one's is given back.
_MIN_WARMUP_CUDA = 3
#: Modes of torch.compile that capture one (`torch._inductor.list_mode_options`).
_CAPTURING = ("reduce-overhead", "max-autotune")
_WARMUP_SHARE = 1 / 3
#: Seconds of work until a GPU's clock has left its idle state: it rises in steps, over a second.
_SETTLE_S: Mapping[Backend, float] = MappingProxyType({"cpu": 0.0, "cuda": 2.0, "mps": 0.0})


def max_seconds_on(backend: Backend, config: RunConfig) -> float | Literal["none"]:
    """Return what `max_seconds` of `config` is on a device of `backend`."""
    return _AUTO_MAX_SECONDS[backend] if config.max_seconds == "auto" else config.max_seconds


def captures_graphs(config: RunConfig) -> bool:
    """Whether `config` captures CUDA graphs in its warm-up, where the device has them."""
    return config.cuda_graphs or config.compile in _CAPTURING


def rounded_s(seconds: float) -> str:
    """Return `3.3 s` or `120 s`: two digits, or all before the point."""
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.2g} s"


@dataclass(frozen=True)
class TimeLimits:
    """The iterations of warm-up and window, and the seconds that may end each earlier.

    `max_seconds` bounds the window and a third of it the warm-up after its first iteration; None
    bounds neither. Whatever the time, the warm-up holds `min_warmup` iterations and the window
    `MIN_ITERATIONS`, or all if they are fewer. Where numbers were not given, the warm-up goes on
    `until_steady` and the window `until_known`, as far as `max_seconds` allows. A warm-up goes on
    until the iterations that show the device's pace have taken `settle_s` seconds.
    """

    warmup_iters: int
    iters: int
    max_seconds: float | None = None
    min_warmup: int = _MIN_WARMUP
    settle_s: float = 0.0
    until_steady: bool = False
    until_known: bool = False

    @classmethod
    def of(cls, config: RunConfig, backend: Backend) -> TimeLimits:
        """Return the limits of `config` on a device of `backend`."""
        max_seconds = max_seconds_on(backend, config)
        bounded = max_seconds != "none"
        return cls(
            LEAST["warmup_iters"] if config.warmup_iters == "auto" else config.warmup_iters,
            LEAST["iters"] if config.iters == "auto" else config.iters,
            max_seconds if max_seconds != "none" else None,
            _MIN_WARMUP_CUDA if captures_graphs(config) or backend == "cuda" else _MIN_WARMUP,
            0.0 if config.data_only else _SETTLE_S[backend],
            until_steady=bounded and config.warmup_iters == "auto",
            until_known=bounded and config.iters == "auto",
        )

    @property
    def warmup_s(self) -> float | None:
        """Seconds of the warm-up after its first iteration."""
        return None if self.max_seconds is None else self.max_seconds * _WARMUP_SHARE

    def expected_warmup_s(self, iteration_s: float) -> float:
        """Return how long the warm-up takes if each of its iterations takes `iteration_s`."""
        least = min(self.warmup_iters, self.min_warmup)
        after_first_s = _bounded(self.warmup_iters - 1, least - 1, self.warmup_s, iteration_s)
        settle_s = self.settle_s if self.warmup_s is None else min(self.settle_s, self.warmup_s)
        return iteration_s + max(after_first_s, settle_s)

    def expected_window_s(self, iteration_s: float) -> float:
        """Return how long the window takes if each of its iterations takes `iteration_s`."""
        least = min(self.iters, MIN_ITERATIONS)
        return _bounded(self.iters, least, self.max_seconds, iteration_s)

    def __str__(self) -> str:
        """Return the limits as the line that a person reads before the start."""
        warmup, window = f"{self.warmup_iters}", f"{self.iters}"
        if self.until_steady:
            warmup += " (more until the device is warm)"
        elif self.settle_s:
            warmup += f" (or more, for {self.settle_s:g} s)"
        if (warmup_s := self.warmup_s) is None:
            return f"{warmup} + {window} iterations, however long they take (max_seconds=none)"
        if self.until_known:
            window += " (more until the pace is known)"
        least = (min(self.warmup_iters, self.min_warmup), min(self.iters, MIN_ITERATIONS))
        return (
            f"{warmup} + {window} iterations; warm-up ends at the latest "
            f"{rounded_s(warmup_s)} after its first one, the window after {self.max_seconds:g} s "
            f"(at least {least[0]} + {least[1]} iterations)"
        )


def _bounded(iterations: int, least: int, limit_s: float | None, iteration_s: float) -> float:
    if limit_s is None:
        return iterations * iteration_s
    return min(iterations * iteration_s, max(limit_s, least * iteration_s))
