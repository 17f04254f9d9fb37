"""A device that exists only as numbers: how fast it is with which knobs, and how noisy."""

from datetime import timedelta
from random import Random

import samples

from bench.config import RunConfig

START = RunConfig(
    arch="resnet18",
    backend="cpu",
    campaign="tune-test",
    warmup_iters=3,
    iters=10_000,
    max_seconds=4,
)
AUTO = {
    "batch_size": 16,
    "channels_last": True,
    "fused_optimizer": True,
    "threads": 1,
    "allocator": "system",
}
NOISE = 0.01


def environment(**changes):
    return samples.environment(**{"cpu_cores_usable": 2, "cpu_cores_physical": 1, **changes})


class Device:
    """Measures as a worker would; `speed` is a function of the knobs, in images/s.

    `fails` gives an outcome and its reason for knobs that do not work here. Time passes in its
    own clock alone.
    """

    backend = "cpu"

    def __init__(self, speed, fails=lambda knobs: None, *, noise=NOISE, seed=0, autotune_s=60.0):
        self.speed = speed
        self.fails = fails
        self.now_s = 0.0
        self.records = []
        self.limits_s = []
        self.autotune_s = autotune_s
        self.interrupt_at = None
        self._noise = noise
        self._random = Random(seed)

    def clock(self):
        return self.now_s

    def knobs(self, config):
        values = config.model_dump()
        for name, auto in AUTO.items():
            if values[name] == "auto":
                values[name] = auto
            elif name in ("channels_last", "fused_optimizer"):
                values[name] = values[name] == "true"
        return values

    def __call__(self, config, limit_s):
        if len(self.records) == self.interrupt_at:
            raise KeyboardInterrupt
        knobs = self.knobs(config)
        failure = self.fails(knobs)
        rate = self.speed(knobs) * (1 + self._noise * self._random.gauss(0, 1))
        took_s = self.autotune_s if knobs["compile"] == "max-autotune" else 12.0
        took_s *= max(1, knobs["batch_size"] / 16)
        if took_s > limit_s:
            took_s, failure = limit_s, ("interrupted", "interrupted from outside")
        known = {
            "record_id": f"20261121T100000Z-{len(self.records):08d}",
            "created": samples.NOW + timedelta(seconds=self.now_s),
            "process": samples.process_figures(real_s=took_s),
            "environment": environment(),
        }
        self.now_s += took_s
        self.limits_s.append(limit_s)
        resolved = {"backend": self.backend, **{name: knobs[name] for name in AUTO}}
        if failure:
            record = samples.failed_record(
                *failure, config, resolved=samples.resolved(**resolved), **known
            )
        else:
            times_s = (knobs["batch_size"] / rate,) * 5
            record = samples.run_record(
                config,
                resolved=samples.resolved(**resolved),
                measurement=samples.measurement(times_s, images=knobs["batch_size"]),
                **known,
            )
        self.records.append(record)
        return record
