"""Findings say what the runs show, cite them, and are silent where others do not show it.

So where an advice is followed already, or was measured to fail.
"""

from dataclasses import replace
from functools import partial

import factories as make
import numpy as np
import pytest
import samples
from observed import curve, observation, repeated

from analysis.findings import KINDS, conclusions, find_all
from analysis.findings.batches import gains_per_doubling, knee_of
from analysis.runs.groups import Runs, difference_between
from analysis.runs.place import place_runs
from bench.records import Finding

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
#: The step of `make.complexity`: 0.5 s at its roof.
CONVOLUTION = partial(
    samples.op_time, flops=100 * GIGA, fused_bytes=5 * GIGA, eager_bytes=20 * GIGA
)
BUSY = {"launch_gap_s": 0.0}
IDLE = {
    "step_s": 4.0,
    "ops": samples.op_profile(
        CONVOLUTION(time_s=0.6), step_time_s=4.0, device_busy_share=0.15, **BUSY
    ),
}
HOST = {"step_s": 4.0, "ops": samples.op_profile(CONVOLUTION(time_s=0.6), step_time_s=4.0)}
UNFUSED = {
    "ops": samples.op_profile(
        samples.op_time(time_s=0.95, flops=GIGA, fused_bytes=GIGA, eager_bytes=45 * GIGA),
        step_time_s=1.0,
    )
}
NATIVE = {"math_mode": "bf16", "autocast_dtype": "bf16"}
EMULATED = NATIVE | {"native_math": False}


def ran(name="r", step_s=1.0, batch=10, *, machine=None, resolved=None, **changes):
    """A record of the CPU under `ROOFS`, or of `machine`; `resolved` are values that it ran with.

    What is no field of a record is a setting.
    """
    fields = ("complexity", "measurement", "verdict", "ops")
    own = {key: changes.pop(key) for key in fields if key in changes}
    if own.get("complexity", True):
        counted = own.get("complexity", make.complexity())
        own["complexity"] = counted.model_copy(update={"batch_size": batch})
        took_s = own["measurement"].step_s if "measurement" in own else step_s
        own.setdefault(
            "ops", samples.op_profile(CONVOLUTION(time_s=0.9 * took_s), step_time_s=took_s)
        )
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


def placed(*records, ceilings=ROOFS):
    return place_runs(records, ceilings)


def two():
    """On two devices 20 images take 1.25 s, where one needs a second for 10."""
    return ran("two", devices=2, measurement=make.measurement(step_s=1.25, images=20))


def reading(name="r", workers=1, wait_s=0.4, on=on_gpu):
    """Of images, four tenths of each second waiting for them."""
    waiting, ops = (
        make.measurement(wait_s=wait_s),
        samples.op_profile(CONVOLUTION(time_s=0.55), step_time_s=1.0),
    )
    return on(name, data="/images", workers=workers, measurement=waiting, ops=ops)


def loader_alone(rate):
    """The loader of `reading` without a step, of so many images/s."""
    alone = make.measurement(step_s=10 / rate)
    return on_gpu("alone", data="/images", workers=1, data_only=True, measurement=alone,
                  complexity=None)  # fmt: skip


def oom(batch, machine=GPU):
    return make.failed_record("oom", settings={"batch_size": batch}, environment=machine)


def peaking(batch, step_s, peak_gb):
    """A step on a GPU of 16 GB with this peak of its memory."""
    peak = {"peak_memory_reserved_bytes": int(peak_gb * GIGA)}
    measured = samples.measurement((step_s,) * 10, images=batch, **peak)
    return on_gpu(f"b{batch}", batch=batch, measurement=measured)


def climbing(*more, peak_gb=1.0):
    """Three batch sizes, each faster than the one before."""
    return [peaking(*one, peak_gb) for one in ((8, 0.8), (16, 1.1), (32, 1.5), *more)]


def peaks(first_gb, second_gb):
    """Batch 64 in a second and batch 128 in 20, with these peaks."""
    return placed(peaking(64, 1, first_gb), peaking(128, 20, second_gb))


def waited(share):
    metrics = {"throughput_images_per_s": 50.0, "data_wait_share": share}
    return observation("real", metrics=metrics, data="/images", workers=4)


def of_unnamed_data(name):
    """As a ledger without such a column has it."""
    run = observation(name)
    return replace(run, settings={key: run.settings[key] for key in run.settings if key != "data"})


def cloudy(desk, rented):
    """Two batch sizes and three repeats on a desk and in a cloud, with these deviations."""
    return placed(*(
        make.run_record(f"{env}-{repeat}-{batch}", batch, 1 + spread * (repeat - 2),
                        settings={"repeat": repeat},
                        environment=make.environment(label=env, cloud_provider=provider))
        for env, provider, spread in (("desk", "none", desk), ("rented", "gcp", rented))
        for batch in (10, 20)
        for repeat in (1, 2, 3)
    ))  # fmt: skip


def named(prefix, runs):
    return [replace(run, name=f"{prefix}-{run.name}") for run in runs]


def spilling(precision="fp32"):
    return named(precision, curve({32: 100, 64: 110, 128: 20}, precision=precision))


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


def doubted(finding):
    """A run of which that is found, and one that is fine."""
    return placed(ran(verdict=make.suspect(finding)), ran("fine"))


THROTTLED = Finding.of("throttled", reason="SwThermal", percent=20)
NOTED = Finding.of("outliers", slow=1, iterations=9)
#: Kind, words of its finding, runs of which it says them, and others of which it does not.
FAULTS = [
    ("in doubt", "Measure the roof again", lambda: placed(ran(step_s=0.4)),
     lambda: placed(ran(step_s=0.4), ceilings=[
         *ROOFS, make.ceilings_record("new", hours=1, ceilings=(FAST_ROOF,))])),
    ("in doubt", "SwThermal in 20 %", lambda: doubted(THROTTLED), lambda: doubted(NOTED)),
    ("inconsistent times", "a step of 16 images took 0.4 s, one of 8 took 0.8 s. More",
     lambda: curve({8: 10, 16: 40})),
]  # fmt: skip
BATCHES = [
    ("memory spill", "from 110 images/s at batch 64 to 70 images/s at batch 128",  # 0.636
     lambda: curve({32: 100, 64: 110, 128: 70})),
    ("memory spill", "Stay at batch 32", lambda: curve({32: 100, 64: 30, 128: 20})),
    ("memory spill", "smaller activations", spilling, lambda: spilling("amp"),
     lambda: spilling() + spilling("amp"),
     lambda: spilling("amp") + named("f", curve({64: 50, 128: 55}))),
    ("memory spill", "memory spilling to host memory (Windows' driver does so silently, also below "
     "WSL); its peak was 100 % of", lambda: peaks(8, 16), lambda: peaks(2, 4)),
    ("memory spill", "unknown, as its peak was 25 % of", lambda: peaks(2, 4), lambda: peaks(8, 16)),
    ("batch knee", "worth a try", lambda: placed(*climbing(peak_gb=8)),
     lambda: placed(*climbing(), oom(64)), lambda: placed(*climbing((64, 30.0))),
     lambda: placed(*climbing(peak_gb=15.5))),
    # 2 % from 120 to 128 are 24 % a doubling
    ("batch knee", "the knee is at batch 64; beyond it a doubling gives +",
     lambda: curve({32: 900, 64: 990, 120: 1000, 128: 1020})),
    ("batch knee", "the knee is at batch 120.",
     lambda: curve({32: 500, 64: 980, 120: 1040, 128: 1025})),
    ("batch knee", "no knee up to batch 128", lambda: curve({32: 500, 120: 1000, 128: 1020})),
    ("batch knee", "no knee up to batch 32; the last doubling still gave +47 %",
     lambda: curve({8: 100, 16: 150, 32: 220})),
    ("batch knee", "the knee is at or below batch 8; beyond it",
     lambda: curve({8: 100, 16: 98, 32: 90})),
]  # fmt: skip
BOTTLENECKS = [
    ("input-bound", "more loader workers", lambda: placed(reading()),
     lambda: placed(reading(workers=7)),  # of 8 cores
     lambda: placed(reading(), reading("more", workers=4)),  # no faster
     lambda: placed(reading(), loader_alone(100))),  # which keeps up
    ("input-bound", "faster disk", lambda: placed(reading(), loader_alone(12)),
     lambda: placed(reading(), loader_alone(100))),
    ("input-bound", "ready earlier", lambda: placed(reading(), loader_alone(100)),
     lambda: placed(reading(), loader_alone(12))),
    ("input-bound", "waiting for data takes 40 % of the step, so 1.67x at most without it",
     lambda: placed(reading(), on_gpu("s", 0.6)),
     lambda: placed(reading(), on_gpu("s", 1.0))),  # synthetic data is no faster
    ("input-bound", "100 images/s, 2x (single runs, no interval) of 50 images/s",
     lambda: [waited(0.5), observation("s")], lambda: [waited(0.05), observation("s")],
     lambda: [observation("s")], lambda: [waited(0.5), of_unnamed_data("s")]),
]  # fmt: skip
DIFFERENCES = [
    ("precision uplift", "lab, resnet18: amp measured 2.5 times as fast as fp32; undecided.",
     lambda: [observation("f", 100), observation("h", 250, precision="amp")],
     lambda: [observation("f", 100), observation("h", 250, precision="amp", batch_size=64)],
     lambda: [observation("f", 100), observation("h", 250, precision="amp", env="other")]),
    ("precision uplift", "times as fast", lambda: placed(on_gpu(), amp(0.5)),
     lambda: placed(on_gpu(), amp(0.5, resolved={}))),
    ("precision uplift", "amp-bf16 (emulated)",
     lambda: placed(on_gpu(), amp(0.5, resolved=EMULATED)), lambda: placed(on_gpu(), amp(0.5))),
    ("machine speed-up", "as fast as", lambda: placed(ran(), ran("o", machine=OTHER_GPU)),
     lambda: placed(ran(), ran("o", batch=20, machine=OTHER_GPU))),
    ("machine speed-up", "batch 10: of 500 ms saved: convolution 450, the host between ops 50.",
     lambda: placed(ran(), ran("o", 1.5, machine=OTHER_GPU))),
    ("odd machine", "leave it out", lambda: machines(0.95), lambda: machines(0.95)[2:]),
    ("variability", "measured more often", lambda: scattering(a=0.001, b=0.1),
     lambda: scattering(a=0.1, b=0.1)),
    ("variability", "on rented (cloud, gcp) (5 %) as on desk (local) (0.1 %)",
     lambda: cloudy(0.001, 0.05)),
]  # fmt: skip
#: Words of the knob; runs that lack it; runs that have it, cannot have it, or have lost by it.
KNOBS = [
    # 100 GFLOP at 200 GFLOP/s take 0.5 s of the 0.9 s of a convolution
    ("convolution reaches 56 % of its roof, which costs 40 % of its step. Next, not tried here: "
     "a larger batch, torch.compile.", lambda: placed(ran())),
    ("the host between ops: Python, autograd, dispatch takes 85 % of its step. Next",
     lambda: placed(ran(**HOST)), lambda: placed(ran())),
    ("channels-last", lambda: placed(unconverted()), lambda: placed(ran())),
    ("channels-last", lambda: placed(unconverted()),
     lambda: placed(ran(resolved={"channels_last": False}))),  # auto leaves it off
    ("channels-last", lambda: placed(unconverted()),
     lambda: placed(unconverted(), ran("b", 1.2))),
    # another setting may have cost that time
    ("channels-last", lambda: placed(unconverted(), ran("b", 1.2, fused_optimizer="false"))),
    ("channels-last", lambda: placed(unconverted()),  # lost at another batch size
     lambda: placed(unconverted(), ran("c", 3, 20), unconverted("d", 2.1, 20))),
    ("torch.compile", lambda: placed(ran()), lambda: placed(ran(compile="default"))),
    ("torch.compile", lambda: placed(ran()),
     lambda: placed(ran(), ran("b", 1.02, compile="default"))),
    ("torch.compile", lambda: placed(on_gpu(**IDLE)),
     lambda: placed(on_gpu(cuda_graphs=True, **IDLE))),
    ("threads", lambda: placed(ran(threads=1, **HOST)), lambda: placed(ran(**HOST))),
    ("fused optimizer", lambda: placed(ran(fused_optimizer="false", **UNFUSED)),
     lambda: placed(ran(**UNFUSED))),
    ("CUDA graphs", lambda: placed(on_gpu(**IDLE)),
     lambda: placed(on_gpu(cuda_graphs=True, **IDLE))),
    ("CUDA graphs", lambda: placed(on_gpu(**IDLE)), lambda: placed(ran(**IDLE)),
     lambda: placed(on_gpu(phases=True, **IDLE))),
    ("larger batch", lambda: placed(ran()), lambda: placed(ran(), ran("b", 2.1, 20))),
    ("larger batch", lambda: placed(*(  # smaller ones that gained nothing do not count
        on_gpu(f"b{batch}", step_s, batch) for batch, step_s in ((8, 0.8), (16, 1.59), (32, 2.1)))),
     lambda: placed(on_gpu("b8", 0.8, 8), on_gpu("b16", 1.59, 16))),
    ("larger batch", lambda: placed(ran()), lambda: placed(ran(), oom(20, make.environment()))),
    ("larger batch", lambda: placed(ran()), lambda: placed(ran("a", 0.52, 5), ran())),  # the knee
    ("larger batch", lambda: placed(*climbing()), lambda: placed(*climbing(peak_gb=15.5))),
    ("loader workers", lambda: placed(reading()), lambda: placed(reading(workers=7))),
    ("loader workers", lambda: placed(reading(workers=2, on=ran)),  # of 4 cores
     lambda: placed(reading(workers=3, on=ran))),
    ("loader workers", lambda: placed(reading()), lambda: placed(reading(), on_gpu("s"))),
    ("lower precision", lambda: placed(on_gpu()), lambda: placed(on_gpu(), amp(1.2))),
    ("lower precision", lambda: placed(on_gpu()), lambda: placed(on_gpu(), amp(resolved={}))),
    ("lower precision", lambda: placed(on_gpu()), lambda: placed(amp())),
    ("lower precision", lambda: placed(on_gpu()), lambda: placed(ran())),  # a CPU: not known
    ("amp-bf16 batch", lambda: placed(amp()), lambda: placed(on_gpu(step_s=0.8), amp())),
]  # fmt: skip
SCALED = [
    ("scaling", "1.6x (single runs, no interval) the images/s of one with batch 10, 80 % of",
     lambda: placed(ran(), two()), lambda: placed(two())),
]  # fmt: skip
CASES = [
    *SCALED,
    *FAULTS,
    *BATCHES,
    *BOTTLENECKS,
    *DIFFERENCES,
    *(("next knob", *case) for case in KNOBS),
]


#: Kind, and runs that show nothing of it.
NOTHING = [
    ("in doubt", lambda: placed(ran())),
    ("inconsistent times", lambda: curve({8: 10, 16: 21})),
    ("inconsistent times", lambda: (
        repeated("a", [5, 20], batch_size=8) + repeated("b", [20, 60], batch_size=16))),
    ("memory spill", lambda: curve({32: 100, 64: 110, 128: 78})),  # 0.709 of it is left
    ("memory spill", lambda: curve({32: 100, 64: 110, 128: 20}, backend="cpu")),
    ("memory spill", lambda: (
        repeated("a", [50, 200], batch_size=64) + repeated("b", [30, 110], batch_size=128))),
    ("batch knee", lambda: curve({8: 1, 16: 2})),
    ("batch knee", lambda: curve({126: 1, 127: 1.1, 128: 1.2})),
    ("batch knee", lambda: curve({8: 10, 16: 12, 32: 40})),  # impossible
    ("batch knee", lambda: curve({8: 9, 16: 10, 32: 2})),  # past a cliff
    ("input-bound", lambda: [waited(0.5), *repeated("s", [40, 140])]),  # not surely faster
    ("variability", lambda: scattering(a=0.01, b=0.0224)),  # p = 0.035, of the likelier of two
    ("variability", lambda: [
        run for env, spread in (("a", 1e-4), ("b", 0.5))
        for run in repeated(env, 100 * np.exp([-spread, 0, spread]), env=env)]),
    ("input-bound", lambda: [waited(0.05), observation("s")]),
    ("variability", lambda: cloudy(0.04, 0.05)),
    ("next knob", lambda: placed(ran(step_s=0.51, ops=samples.op_profile(
        CONVOLUTION(time_s=0.5), step_time_s=0.51)))),
    ("next knob", lambda: placed(ran(), ceilings=[])),
    ("next knob", lambda: placed(ran(ops=None))),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "runs"), NOTHING)
def test_what_runs_do_not_show_is_not_found(kind, runs):
    assert list(conclusions(kind, Runs(runs()))) == []
    assert find_all([]) == find_all([observation("r1")]) == []


def said(kind, runs):
    """All that the findings of a kind say."""
    shown = conclusions(kind, Runs(runs))
    lines = [line for one in shown for line in (one.headline, *one.evidence, f"{one.advice}")]
    return " ".join(lines).lower()


@pytest.mark.parametrize(
    ("kind", "words", "spoken", "silent"),
    [
        (kind, words, spoken, silent)
        for kind, words, spoken, *silents in CASES
        for silent in silents or [list]
    ],
)
def test_a_finding_is_made_of_what_supports_it_alone(kind, words, spoken, silent):
    assert words.lower() in said(kind, spoken())
    assert words.lower() not in said(kind, silent())


def test_every_kind_of_finding_has_such_a_case():
    assert {kind for kind, *_ in CASES} == set(KINDS)


def test_a_knob_that_was_measured_to_win_says_by_how_much():
    words = "a lower precision, which has a roof of its own (measured: 2x)"
    assert words in said("next knob", placed(on_gpu(), amp(0.5)))
    on_cpu = ran("h", 0.5, precision="amp", resolved=NATIVE)
    assert words in said("next knob", placed(ran(), on_cpu))


# Batch curves


def test_the_knee_by_hand():
    """100, 150, 156: the best less 5 % is 148.2, so batch 64; doublings give 50 % and 4 %."""
    (groups,) = Runs(curve({32: 100, 64: 150, 128: 156})).curves
    found = knee_of(groups)
    assert found.knee.batch_size == 64
    assert gains_per_doubling(groups) == pytest.approx({64: 0.5, 128: 0.04})
    (two,) = Runs(curve({16: 100, 64: 144})).curves  # shared among two doublings
    assert gains_per_doubling(two) == pytest.approx({64: 0.2})


# Faults


def test_what_runs_say_of_themselves_is_told_by_machine():
    """Nine of ten runs: six are told, the rest counted."""
    verdict = make.suspect(THROTTLED)
    runs = placed(
        *(make.run_record(f"r{n}", n, verdict=verdict) for n in range(1, 10)), make.run_record("r")
    )
    (found,) = conclusions("in doubt", runs)
    assert "9 of 10 runs" in found.headline
    assert found.evidence[0].startswith("lab resnet18 fp32 batch 1: SwThermal")
    assert (len(found.evidence), found.evidence[-1]) == (7, "and 3 more")
    assert (len(found.runs), found.advice) == (9, "Cool it, then measure again.")
    (single,) = conclusions("in doubt", Runs(runs[:1]))
    assert (single.headline, single.evidence) == (found.evidence[0], ())


def test_a_difference_is_of_the_steps_that_are_nearest_to_the_mean():
    before = placed(ran("a", 1.0), ran("b", 1.2), ran("c", 2.0))
    found = difference_between(before, placed(ran("d", 0.6)))
    assert (found.a.step_time_s, found.b.step_time_s) == pytest.approx((1.2, 0.6))
    assert difference_between(before, placed(ran("d", ops=None))) is None
