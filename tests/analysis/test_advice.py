"""Each finding is silent where its advice is followed already, or was measured to fail."""

from dataclasses import replace
from functools import partial

import factories as make
import numpy as np
import pytest
import samples
from observed import DRIFT, curve, observation, repeated

from analysis.findings import KINDS
from analysis.runs.placed import place_runs
from bench.records import Finding
from bench.records.verdict.claimed_flops import CODE as CLAIMED

GIGA = make.GIGA
GPU = make.environment(device=make.gpu())
OTHER_GPU = make.environment(label="other", device=make.gpu())
ROOF, FAST_ROOF = make.ceiling(), make.ceiling(peak_flops_per_s=400e9)
ROOFS = [
    make.ceilings_record(),
    make.ceilings_record("gpu", environment=GPU, ceilings=(
        make.ceiling(backend="cuda", device="Example GPU"),
        make.ceiling(backend="cuda", device="Example GPU", math_mode="bf16"))),
]  # fmt: skip
MOVES = partial(make.complexity, step_flops=100 * GIGA, compulsory_bytes=GIGA)
OVERHEAD = {"complexity": MOVES(fused_bytes=GIGA, eager_bytes=GIGA), "step_s": 4.0}
MEMORY = {"complexity": MOVES(fused_bytes=40 * GIGA, eager_bytes=45 * GIGA)}
COUNTED_MORE = {"complexity": make.complexity(step_flops=200 * GIGA)}
NATIVE = {"math_mode": "bf16", "autocast_dtype": "bf16"}
EMULATED = NATIVE | {"native_math": False}


def ran(name="r", step_s=1.0, batch=10, *, machine=None, resolved=None, **changes):
    """A record of the CPU under `ROOFS`, or of `machine`; `resolved` are values that it ran with.

    What is no field of a record is a setting.
    """
    fields = ("complexity", "measurement", "verdict")
    own = {key: changes.pop(key) for key in fields if key in changes}
    if own.get("complexity", True):
        counted = own.get("complexity", make.complexity())
        own["complexity"] = counted.model_copy(update={"batch_size": batch})
    given = changes.keys() & samples.ResolvedConfig.model_fields.keys()
    used = {
        "batch_size": batch,
        "backend": (machine or make.environment()).device.backend,
        **{name: changes[name] for name in given},
        **(resolved or {}),
    }
    return make.run_record(
        name,
        batch,
        step_s,
        settings=changes,
        resolved=make.resolved(**used),
        environment=machine or make.environment(),
        **own,
    )


on_gpu = partial(ran, machine=GPU)
amp = partial(on_gpu, "amp", precision="amp", resolved=NATIVE)
unconverted = partial(ran, channels_last="false")
doubted = {code: make.suspect(Finding(code=code, level="suspect", message="so"))
           for code in ("throttled", "busy-host")}  # fmt: skip


def placed(*records, ceilings=ROOFS):
    return place_runs(records, ceilings)


def reading(name="r", workers=1, wait_s=0.4):
    """Of images, four tenths of each second waiting for them."""
    waiting = make.measurement(wait_s=wait_s)
    return on_gpu(name, data="/images", workers=workers, measurement=waiting)


def loader_alone(rate):
    """The loader of `reading` without a step, of so many images/s."""
    alone = make.measurement(step_s=10 / rate)
    return on_gpu("alone", data="/images", workers=1, data_only=True, measurement=alone,
                  complexity=None)  # fmt: skip


def oom(batch, machine=GPU):
    return make.failed_record("oom", settings={"batch_size": batch}, environment=machine)


def flat(**settings):
    """A step of four seconds for 10 images and for 20, on a GPU: no roof explains it."""
    return [on_gpu(f"b{batch}", 4.0, batch, **settings) for batch in (10, 20)]


def climbing(*more, peak_gb=1.0):
    """Three batch sizes, each faster than the one before, on a GPU of 16 GB."""
    return [
        on_gpu(f"b{batch}", batch=batch, measurement=samples.measurement(
            (step_s,) * 10, images=batch, peak_memory_reserved_bytes=int(peak_gb * GIGA)))
        for batch, step_s in ((8, 0.8), (16, 1.1), (32, 1.5), *more)
    ]  # fmt: skip


def drifting(first_s, last_s):
    return [observation("d", times_s=[first_s] * 60 + [last_s] * 30, findings=(DRIFT,))]


def spilling(precision="fp32"):
    runs = curve({32: 100, 64: 110, 128: 20}, precision=precision)
    return [replace(run, name=f"{precision}-{run.name}") for run in runs]


def scattering(**spreads):
    return [
        run
        for env, spread in spreads.items()
        for batch in (8, 16, 32)
        for run in repeated(f"{env}{batch}", 100 * np.exp([-spread, 0, spread]), batch_size=batch,
                            env=env)
    ]  # fmt: skip


def machines(slow):
    """Twelve of one kind that scatter by 0.1 %, the first `slow` times as fast."""
    return [
        observation(f"{number}-{repeat}", 100 * rate * (slow if number == 0 else 1.0),
                    env=f"node-{number}")
        for number, rate in enumerate(np.exp(np.linspace(-0.001, 0.001, 12)))
        for repeat in range(2)
    ]  # fmt: skip


def stating(*findings):
    return [observation("imported", metrics={"claimed_gflops": 50.0}, findings=findings)]


STATED = Finding(code=CLAIMED, level="suspect", message="its file says 50 GFLOP/s")
#: Kind, words of its finding, runs of which it says them, and runs of which it does not.
FAULTS = [
    ("above the roof", "Measure the ceilings", lambda: placed(ran(step_s=0.4)),
     lambda: placed(ran(step_s=0.4), ceilings=[
         *ROOFS, make.ceilings_record("new", hours=1, ceilings=(FAST_ROOF,))])),
    ("inconsistent FLOP", "Compare images/s", lambda: placed(ran(), ran("b", **COUNTED_MORE)),
     lambda: placed(ran(), ran("b"))),
    ("inconsistent times", "measure both again", lambda: curve({8: 10, 16: 40}),
     lambda: repeated("a", [10, 30], batch_size=8) + repeated("b", [40, 41], batch_size=16)),
    ("throttled", "cooling", lambda: placed(ran(verdict=doubted["throttled"])),
     lambda: placed(ran())),
    ("foreign process", "again", lambda: placed(ran(verdict=doubted["busy-host"])),
     lambda: placed(ran())),
    ("stated GFLOP/s", "Compare images/s", lambda: stating(STATED), stating),
    ("drifting", "warm-up", lambda: drifting(0.12, 0.1), lambda: drifting(0.1, 0.12)),
    ("drifting", "heated", lambda: drifting(0.1, 0.12), lambda: drifting(0.12, 0.1)),
]  # fmt: skip
BATCHES = [
    ("memory spill", "smaller activations", spilling, lambda: spilling("amp")),
    ("memory spill", "smaller activations", spilling, lambda: spilling() + spilling("amp")),
    ("memory spill", "Stay at batch 64", spilling, lambda: spilling()[:2]),
    ("batch knee", "worth a try", lambda: placed(*climbing()),
     lambda: placed(*climbing(), oom(64))),
    ("batch knee", "worth a try", lambda: placed(*climbing()),
     lambda: placed(*climbing((64, 30.0)))),
    ("batch knee", "worth a try", lambda: placed(*climbing()),
     lambda: placed(*climbing(peak_gb=15.5))),
]  # fmt: skip
BOTTLENECKS = [
    ("input-bound", "More loader workers", lambda: placed(reading()), silent)
    for silent in (
        lambda: placed(reading(workers=7)),  # of 8 cores
        lambda: placed(reading(), reading("more", workers=4)),  # no faster
        lambda: placed(reading(), loader_alone(100)),  # which keeps up
    )
] + [
    ("input-bound", "faster disk", lambda: placed(reading(), loader_alone(12)),
     lambda: placed(reading(), loader_alone(100))),
    ("input-bound", "ready earlier", lambda: placed(reading(), loader_alone(100)),
     lambda: placed(reading(), loader_alone(12))),
    ("input-bound", "waiting for data", lambda: placed(reading(), on_gpu("s", 0.6)),
     lambda: placed(reading(), on_gpu("s", 1.0))),  # synthetic data is no faster
    ("launch-bound", "launching", lambda: placed(*flat()),
     lambda: placed(*flat(cuda_graphs=True))),
    ("launch-bound", "launching", lambda: placed(*flat()),
     lambda: placed(*flat(compile="reduce-overhead"))),
    ("launch-bound", "torch.compile", lambda: placed(*flat()),
     lambda: placed(*flat(compile="default"))),
    ("launch-bound", "CUDA graphs", lambda: placed(*flat()),
     lambda: placed(*flat(), on_gpu("g", 4.0, 20, cuda_graphs=True))),
]  # fmt: skip
DIFFERENCES = [
    ("precision uplift", "times as fast", lambda: placed(on_gpu(), amp(0.5)),
     lambda: placed(on_gpu(), amp(0.5, resolved={}))),
    ("precision uplift", "times as fast", lambda: placed(on_gpu(), amp(0.5)),
     lambda: placed(on_gpu(), amp(0.5, resolved=EMULATED))),
    ("machine speed-up", "times as fast", lambda: placed(ran(), ran("o", machine=OTHER_GPU)),
     lambda: placed(ran(), ran("o", batch=20, machine=OTHER_GPU))),
    ("odd machine", "leave it out", lambda: machines(0.95), lambda: machines(0.95)[2:]),
    ("variability", "measured more often", lambda: scattering(a=0.001, b=0.1),
     lambda: scattering(a=0.1, b=0.1)),
]  # fmt: skip
#: Words of the knob; runs that lack it; runs that have it, cannot have it, or have lost by it.
KNOBS = [
    ("channels-last", lambda: placed(unconverted()), lambda: placed(ran())),
    ("channels-last", lambda: placed(unconverted()),
     lambda: placed(ran(resolved={"channels_last": False}))),  # auto leaves it off
    ("channels-last", lambda: placed(unconverted()),
     lambda: placed(unconverted(), ran("b", 1.2))),
    ("channels-last", lambda: placed(unconverted()),  # lost at another batch size
     lambda: placed(unconverted(), ran("c", 3, 20), unconverted("d", 2.1, 20))),
    ("torch.compile", lambda: placed(ran()), lambda: placed(ran(compile="default"))),
    ("torch.compile", lambda: placed(ran()),
     lambda: placed(ran(), ran("b", 1.02, compile="default"))),
    ("threads", lambda: placed(ran(threads=1, **OVERHEAD)), lambda: placed(ran(**OVERHEAD))),
    ("a trace says", lambda: placed(on_gpu(**OVERHEAD)), lambda: placed(ran(**OVERHEAD))),
    ("fused optimizer", lambda: placed(ran(fused_optimizer="false", **MEMORY)),
     lambda: placed(ran(**MEMORY))),
    ("allocator", lambda: placed(ran(allocator="system", **OVERHEAD)),
     lambda: placed(ran(resolved={"allocator": "retain"}, **OVERHEAD))),
    ("allocator", lambda: placed(ran(allocator="system", **OVERHEAD)),
     lambda: placed(ran(resolved={"allocator": "system"}, **OVERHEAD))),  # not glibc
    ("CUDA graphs", lambda: placed(on_gpu(**OVERHEAD)),
     lambda: placed(on_gpu(cuda_graphs=True, **OVERHEAD))),
    ("CUDA graphs", lambda: placed(on_gpu(**OVERHEAD)), lambda: placed(ran(**OVERHEAD))),
    ("larger batch", lambda: placed(ran()), lambda: placed(ran(), ran("b", 2.1, 20))),
    ("larger batch", lambda: placed(ran()), lambda: placed(ran(), oom(20, make.environment()))),
    ("larger batch", lambda: placed(ran()), lambda: placed(ran("a", 0.52, 5), ran())),  # the knee
    ("larger batch", lambda: placed(*climbing()), lambda: placed(*climbing(peak_gb=15.5))),
    ("loader workers", lambda: placed(reading()), lambda: placed(reading(workers=7))),
    ("at most", lambda: placed(reading()), lambda: placed(reading(), on_gpu("s"))),
    ("lower precision", lambda: placed(on_gpu()), lambda: placed(on_gpu(), amp(1.2))),
    ("lower precision", lambda: placed(on_gpu()), lambda: placed(on_gpu(), amp(resolved={}))),
    ("lower precision", lambda: placed(on_gpu()),
     lambda: placed(on_gpu(), amp(0.5, resolved=EMULATED))),
    ("lower precision", lambda: placed(on_gpu()), lambda: placed(amp())),
    ("lower precision", lambda: placed(on_gpu()), lambda: placed(ran())),  # a CPU: not known
    ("amp-bf16 batch", lambda: placed(amp()), lambda: placed(on_gpu(step_s=0.8), amp())),
]  # fmt: skip
CASES = [*FAULTS, *BATCHES, *BOTTLENECKS, *DIFFERENCES, *(("next knob", *case) for case in KNOBS)]


def said(kind, runs):
    """All that the findings of a kind say."""
    return " ".join(f"{one.headline} {one.advice}" for one in KINDS[kind](runs)).lower()


@pytest.mark.parametrize(("kind", "words", "spoken", "silent"), CASES)
def test_advice_that_is_followed_or_failed_is_not_given(kind, words, spoken, silent):
    assert words.lower() in said(kind, spoken())
    assert words.lower() not in said(kind, silent())


def test_every_kind_of_finding_has_such_a_case():
    assert {kind for kind, *_ in CASES} == set(KINDS)


def test_a_knob_that_was_measured_to_win_says_by_how_much():
    words = "a lower precision, which has a roof of its own (measured: 2x)"
    assert words in said("next knob", placed(on_gpu(), amp(0.5)))
    on_cpu = ran("h", 0.5, precision="amp", resolved=NATIVE)
    assert words in said("next knob", placed(ran(), on_cpu))
