"""How long a plan will take, from what this machine has measured before.

A configuration measured before takes what it took. Of another batch size or length, it takes the
same time per image; of a model or an image size never measured here, the same time per FLOP as its
precision did. Where nothing like it was measured, the time stays unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from bench.config import RunConfig, TimeLimits
from bench.records import Environment, RunRecord
from bench.records.environment import environment_id
from campaigns.sweep.local_devices import environment_of

#: FLOP of one image's training step of a model, or None where it is unknown.
FlopsPerImage = Callable[[RunConfig], float | None]


@dataclass(frozen=True)
class _Sample:
    record: RunRecord
    environment: str
    whole_s: float  # from the worker's start to its end
    step_s: float  # per image
    rest_s: float  # what is neither warm-up nor window


class Durations:
    """What those of `records` took that were measured whole."""

    def __init__(self, records: Iterable[RunRecord], flops_per_image: FlopsPerImage) -> None:
        self._samples = [sample for record in records if (sample := _sample(record))]
        self._flops_per_image = flops_per_image

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
        alike = [sample for sample in self._samples if sample.environment == here]
        exact = [s.whole_s for s in alike if s.record.config_id == config_id]
        if exact:
            return median(exact)
        alike = [s for s in alike if _same(s.record.config, config, "precision", "data_only")]
        if not alike or config.batch_size == "auto":
            return None
        image_s = self._image_s(config, alike)
        if image_s is None:
            return None
        batch_s = image_s * config.batch_size * config.grad_accum_steps * config.world_size
        limits = TimeLimits.of(config, environment.device.backend)
        measured_s = limits.expected_warmup_s(batch_s) + limits.expected_window_s(batch_s)
        return measured_s + median(s.rest_s for s in alike)

    def _image_s(self, config: RunConfig, alike: Sequence[_Sample]) -> float | None:
        same = [s.step_s for s in alike if _same(s.record.config, config, "arch", "image_size")]
        if same:
            return median(same)
        flops = self._flops_per_image(config)
        paces = [
            s.step_s / s.record.complexity.step_flops_per_image
            for s in alike
            if s.record.complexity is not None
        ]
        return flops * median(paces) if flops and paces else None


def _same(one: RunConfig, other: RunConfig, *names: str) -> bool:
    return all(getattr(one, name) == getattr(other, name) for name in names)


def _sample(record: RunRecord) -> _Sample | None:
    measured, process = record.measurement, record.process
    if record.outcome != "ok" or measured is None or process is None or not record.environment:
        return None
    inside_s = measured.window_s + sum(measured.warmup_times_s)
    return _Sample(
        record,
        environment_id(record.environment),
        process.real_s,
        measured.window_s / measured.images,
        max(0.0, process.real_s - inside_s),
    )
