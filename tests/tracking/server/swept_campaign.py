"""A campaign on a server, as a sweep of two machines leaves it, without measuring anything."""

import itertools
import math

import samples
from stored_runs import filed

from bench.config import RunConfig
from bench.records import Series
from tracking.upload.upload import upload

CAMPAIGN = "night"
#: Images per second at batch size 16, so that the pictures have something to show.
_PACE = {
    ("mobilenet_v2", "fp32"): 61.0,
    ("mobilenet_v2", "amp"): 74.0,
    ("resnet18", "fp32"): 48.0,
    ("resnet18", "amp"): 71.0,
    ("vgg16", "fp32"): 9.0,
    ("vgg16", "amp"): 14.0,
}
#: What a model's step takes of the sample's roofs: of its arithmetic, and of its bandwidth.
_SHARES = {"mobilenet_v2": (0.1, 0.7), "resnet18": (0.35, 0.4), "vgg16": (0.7, 0.2)}


def upload_campaign(records):
    """Upload 12 runs and the roofs they stand under; return their run ids by run name."""
    made = {"ceilings": upload(*filed(records, samples.ceilings_record("fp32", "bf16")))}
    for ((arch, precision), pace), repeat in itertools.product(_PACE.items(), (1, 2)):
        config = RunConfig(
            arch=arch, precision=precision, batch_size=16, campaign=CAMPAIGN, repeat=repeat
        )
        name = f"sample-cpu_{arch}_{precision}_bs16_run{repeat}"
        made[name] = upload(*filed(records, _record(config, 16 / pace, repeat)))
    return made


def _record(config, step_s, repeat):
    # a step that wavers a little, and one that a neighbour held up
    times = [step_s * (1 + 0.03 * math.sin(step * repeat)) for step in range(100)]
    times[40] *= 1.4
    of_flops, of_bytes = _SHARES[config.arch]
    math_mode = "bf16" if config.precision == "amp" else "fp32"
    return samples.run_record(
        config=config,
        resolved=samples.resolved(batch_size=16, math_mode=math_mode),
        measurement=samples.measurement(times, images=16),
        telemetry=samples.telemetry(series=_series(sum(times))),
        complexity=samples.complexity(
            arch=config.arch,
            batch_size=16,
            precision=config.precision,
            math_mode=math_mode,
            step_flops=int(of_flops * step_s * 2e11),
            eager_bytes=int(of_bytes * step_s * 5e10),
            fused_bytes=int(0.5 * of_bytes * step_s * 5e10),
        ),
    )


def _series(window_s):
    times = tuple(1000 + index * window_s / 40 for index in range(41))
    busy = tuple(92 + 5 * math.sin(index / 3) for index in range(41))
    memory = tuple(2e9 + 1e7 * index for index in range(41))
    return (
        Series(name="cpu_percent", source="psutil", times_s=times, values=busy),
        Series(name="memory_used_bytes", source="psutil", times_s=times, values=memory),
    )
