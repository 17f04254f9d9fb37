"""How long a plan will take, from what this machine has measured before.

A configuration measured before takes what it took. Of another batch size or length, it takes the
same time per sample; of a model or a size of image or sequence never measured here, the same time
per FLOP as its precision did. Where nothing like it was measured, the time stays unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from bench.config import RunConfig, TimeLimits
from bench.records import Environment, RunRecord
from bench.records.environment import environment_id
from campaigns.sweep.local_devices import environment_of

#: FLOP of one sample's training step of a model, or None where it is unknown.
FlopsPerSample = Callable[[RunConfig], float | None]


@dataclass(frozen=True)
class _Measured:
    record: RunRecord
    environment: str
    whole_s: float  # from the worker's start to its end
    sample_s: float
    rest_s: float  # what is neither warm-up nor window


class Durations:
    """What those of `records` took that were measured whole."""

    def __init__(self, records: Iterable[RunRecord], flops_per_sample: FlopsPerSample) -> None:
        self._known = [one for record in records if (one := _measured(record))]
        self._flops_per_sample = flops_per_sample

    def of_all(
        self, runs: Sequence[RunConfig], environments: tuple[Environment, ...]
    ) -> tuple[float, int]:
        """Return the seconds of the runs whose time is known, and the number of the others."""
        times = [self.of(config, environment_of(config, environments)) for config in runs]
        known = [seconds for seconds in times if seconds is not None]
        return sum(known), len(times) - len(known)

    def of(self, config: RunConfig, environment: Environment) -> float | None:
        """Return the seconds that a run of `config` will take, or None where it is unknown."""
        here, config_id = environment_id(environment), config.config_id
        alike = [one for one in self._known if one.environment == here]
        exact = [one.whole_s for one in alike if one.record.config_id == config_id]
        if exact:
            return median(exact)
        alike = [one for one in alike if _same(one.record.config, config, "precision", "data_only")]
        if not alike or config.batch_size == "auto":
            return None
        sample_s = self._sample_s(config, alike)
        if sample_s is None:
            return None
        batch_s = sample_s * config.batch_size * config.grad_accum_steps * config.world_size
        limits = TimeLimits.of(config, environment.device.backend)
        measured_s = limits.expected_warmup_s(batch_s) + limits.expected_window_s(batch_s)
        return measured_s + median(one.rest_s for one in alike)

    def _sample_s(self, config: RunConfig, alike: Sequence[_Measured]) -> float | None:
        names = ("arch", "image_size", "seq_len")
        same = [one.sample_s for one in alike if _same(one.record.config, config, *names)]
        if same:
            return median(same)
        flops = self._flops_per_sample(config)
        paces = [
            one.sample_s / one.record.complexity.step_flops_per_sample
            for one in alike
            if one.record.complexity is not None
        ]
        return flops * median(paces) if flops and paces else None


def _same(one: RunConfig, other: RunConfig, *names: str) -> bool:
    return all(getattr(one, name) == getattr(other, name) for name in names)


def _measured(record: RunRecord) -> _Measured | None:
    measured, process = record.measurement, record.process
    if record.outcome != "ok" or measured is None or process is None or not record.environment:
        return None
    inside_s = measured.window_s + sum(measured.warmup_times_s)
    return _Measured(
        record,
        environment_id(record.environment),
        process.real_s,
        measured.window_s / measured.samples,
        max(0.0, process.real_s - inside_s),
    )
