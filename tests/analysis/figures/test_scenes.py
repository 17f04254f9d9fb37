"""Charts beyond the golden report's, as data in tests/golden/charts: every look, crowds and gaps.

Runs do 100 GFLOP/s at 4 to 10 FLOP/byte under 200 GFLOP/s and 50 GB/s. Looks were checked by eye.
"""

from dataclasses import replace
from datetime import timedelta

import factories as make
import numpy as np
import samples
from golden import scene
from observed import DRIFT, curve, observation, published, repeated
from test_account import OPS
from test_tuning import nothing, result  # noqa: F401 (fixtures)

from analysis.comparison import METRICS, compare_pairs, pair_runs
from analysis.comparison.across import across_machines
from analysis.comparison.history import histories
from analysis.figures import kernel_chart, model_colours, op_chart, run_chart
from analysis.figures.batches import batch_charts
from analysis.figures.chart import OTHER_MODELS, panel_chart
from analysis.figures.rows import (
    account_chart,
    comparison_chart,
    models_chart,
    real_synthetic_chart,
    speed_up_chart,
    tuning_chart,
    variability_chart,
)
from analysis.figures.times import distributions_chart, trace_panel, trend_chart
from analysis.profiles import place_kernels, place_ops
from analysis.roofs import Roof, UsedCeiling
from analysis.runs.groups import Runs, group_runs
from analysis.runs.place import place, place_runs
from bench.statistics.ratios import LogError, RatioEstimate

THROUGHPUT = METRICS["throughput_samples_per_s"]
TIMES_S = np.r_[np.linspace(0.099, 0.101, 50), 0.13, 0.9]


def over_batches(runs, kind="throughput"):
    (chart,) = batch_charts(Runs(runs), kind, model_colours(run.arch for run in runs)).values()
    return chart


def point(
    record_id="run-1", *, arch="resnet18", mode="fp32", label="lab", device="Example CPU", **roof
):
    environment = make.environment(label=label, device=make.device(name=device))
    record = make.run_record(
        record_id,
        settings={"arch": arch},
        resolved=make.resolved(math_mode=mode),
        environment=environment,
    )
    one = make.ceiling(device=device, math_mode=mode, **roof)
    return place(record, [make.ceilings_record(environment=environment, ceilings=(one,))])


def counted(record_id="run-1"):
    run, known = point(record_id), {"intensity_counted": 5.0, "intensity_counted_missing": ""}
    known |= {"traffic_amplification": 2.0, "executed_per_algorithmic_flop": 1.26}
    return replace(run, place=replace(run.point, **known))


def of_sizes(*sizes):
    run = point()
    settings = ({**run.settings, "batch_size": f"{size}"} for size in sizes)
    return [replace(run, settings=one) for one in settings]


# Ops: 10 GFLOP/s at 10 to 20 FLOP/byte for 90 % of the time; 1 GFLOP/s elementwise at 0.1 and up

ROOF = Roof(200e9, 50e9)
CONV = samples.op_time("convolution 1x1", "forward", 0.09, flops=9 * 10**8, eager_bytes=9 * 10**7,
                       fused_bytes=45 * 10**6)  # fmt: skip
NORM = samples.op_time("batch_norm", "backward", 0.01, flops=0, elementwise_flops=10**7,
                       eager_bytes=10**8, fused_bytes=0)  # fmt: skip
COPY = samples.op_time("copy", time_s=0.05, flops=0)
CACHES = (make.cache_roof("L1", 400e9), make.cache_roof("L2", 100e9))


def used(caches=(), **changes):
    return UsedCeiling(make.ceiling(**changes), ROOF, "c", None, (), caches)


def of_ops(*ops, roof=ROOF, caches=()):
    return op_chart(place_ops(ops, roof), used(caches) if roof else None, colour="#0072B2")


def of_kernels(*kernels, caches=CACHES, mode="fp32"):
    counters = samples.counters(*kernels).model_copy(update={"per_kernel": kernels})
    return kernel_chart(place_kernels(counters), used(caches), math_mode=mode)


def partly_counted():
    """A kernel of whose FLOP some were not counted: at least so high."""
    known = samples.kernel("known", flops=10**9, duration_s=0.1, dram_bytes=10**8)
    half = known.replaced({"flops": "hadd: not in the file"}, flops=None, flops_at_least=10**8)
    return known, half.model_copy(update={"name": "half"})


def rated(*sides):
    return compare_pairs(pair_runs(*sides, THROUGHPUT.name).pairs, THROUGHPUT)


def uplift_of_the_laptop():
    runs = [run for run in published() if run.env == "rtx4090"]
    return rated(*([run for run in runs if run.precision == name] for name in ("fp32", "amp")))


def drifting():
    """Slower by a tenth from the 46th on, with an outlier beyond the edge."""
    times_s = 0.1 * (1 + 0.002 * np.random.default_rng(1).standard_normal(90))
    times_s[45:] *= 1.1
    times_s[40] *= 3
    return observation("a", times_s=times_s, findings=(DRIFT,))


def against(reference, runs):
    pairs = across_machines(runs, reference=reference).against
    return speed_up_chart([(pair, row) for pair in pairs for row in pair.counted], {})


def nights(levels, arch):
    """Ten nights at each of two levels."""
    noise = np.exp(0.005 * np.random.default_rng(1).standard_normal(20))
    return [
        observation(f"{arch}{n}", rate, arch=arch, started=make.NOON + timedelta(days=n))
        for n, rate in enumerate(np.repeat(levels, 10) * noise)
    ]


#: By file and name, what is drawn.
CHARTS = {
    "batches": {
        "every channel": lambda: over_batches([
            *repeated("a", [90.0, 110.0], batch_size=8),
            *curve({16: 200.0}),
            *curve({8: 3.0, 16: 4.0}, precision="amp-bf16"),
            *curve({8: 1.5, 16: 2.5}, threads=2, distinction="threads 2"),
        ]),
        "modelled": lambda: over_batches(place_runs(
            [make.run_record("b10"), make.run_record("b20", 20, 2.0)], [make.ceilings_record()]
        ), "intensity"),
        "log": lambda: over_batches(curve({8: 1, 16: 100})),
        "linear": lambda: over_batches(curve({8: 50, 16: 100})),
    },
    "rows": {
        "real and synthetic": lambda: real_synthetic_chart(
            [group_runs([observation("r", 50, data="/images"), observation("s", 100)])], {}),
        "distributions": lambda: distributions_chart([observation("a", times_s=TIMES_S)], {}),
        "drift": lambda: panel_chart([trace_panel(drifting())] * 2),
        "accounts": lambda: account_chart([(run.label, run.account) for run in place_runs(
            [make.run_record("a", ops=samples.op_profile(*OPS, step_time_s=0.9)),
             make.run_record("b", 20, ops=samples.op_profile(OPS[0], step_time_s=1.05)),
             make.run_record("c", 30, ops=samples.op_profile(*OPS, step_time_s=1.5))],
            [make.ceilings_record()])]),
        "no models": lambda: models_chart([], {}),
        "no variability": lambda: variability_chart([]),
        "no pairs": lambda: real_synthetic_chart([], {}),
        "no distributions": lambda: distributions_chart([observation("a")], {}),
    },
    "ratios": {
        "nothing": lambda: comparison_chart([], 0.02),
        "one": lambda: comparison_chart(rated([observation("a")], [observation("b", 101)]), 0.02),
        "every verdict": lambda: comparison_chart(rated(*(
            [run for batch, rate in enumerate(rates)
             for run in repeated(f"{side}{batch}", np.array([0.999, 1, 1.001]) * rate,
                                 batch_size=batch)]
            for side, rates in (("a", [100] * 4), ("b", [120, 90, 100, 102])))), 0.02),
        "published": lambda: comparison_chart(uplift_of_the_laptop(), 0.02),
        "machines": lambda: against("rtx4080", published()),
    },
    "history": {
        "changed": lambda: trend_chart(histories(
            nights([100, 95], "resnet18") + nights([100, 100], "vgg16"),
            METRICS["throughput_images_per_s"])),
    },
    "runs": {
        "none": lambda: run_chart([]),
        "counted and modelled": lambda: run_chart([point(), counted("run-2")]),
        "counted": lambda: run_chart([counted()]),
        "two models": lambda: run_chart([point(), point("run-2", arch="vgg16", mode="bf16")]),
        "batch sizes": lambda: run_chart(of_sizes(8, 16, 32, 64, 128)),
        "machines of a kind": lambda: run_chart([point(), point("run-2", label="b")]),
        "two machines": lambda: run_chart([point(), point("b", label="b", device="Other CPU")]),
        "two modes": lambda: run_chart(
            [point(), point("run-2", mode="bf16", peak_flops_per_s=8e11)]),
        "many TFLOP/s": lambda: run_chart([point(peak_flops_per_s=989e12)]),
    },
    "steps": {
        "ops": lambda: of_ops(CONV, NORM, COPY, samples.op_time("view", time_s=0.05, flops=None)),
        "phases": lambda: of_ops(*(
            samples.op_time(phase=phase)
            for phase in ("forward", "backward", "optimizer", None))),
        "ops with caches": lambda: of_ops(
            CONV, caches=[make.cache_roof("L3", 90e9), make.cache_roof("L2", 99e9)]),
        "ops without a roof": lambda: of_ops(CONV, roof=None),
        "faster than DRAM": lambda: of_ops(samples.op_time(time_s=0.001)),
        "a short op": lambda: of_ops(CONV, samples.op_time("increment", time_s=1e-5, flops=1)),
        "short ops": lambda: of_ops(samples.op_time("increment", time_s=1e-5, flops=1)),
        "no op": lambda: of_ops(COPY),
        "kernels": lambda: of_kernels(
            samples.kernel("long", 0.06), samples.kernel("short", 0.02),
            samples.kernel("copy", 0.02, flops=0), samples.kernel("u", flops=None)),
        "a level without a roof": lambda: of_kernels(
            samples.kernel(), caches=(make.cache_roof("L2", None),)),
        "tensor cores": lambda: of_kernels(
            samples.kernel(f"foo<{'float,' * 30}int>", tensor_flops=5 * 10**8), mode="bf16"),
        "FLOP not counted": lambda: of_kernels(*partly_counted()),
        "no kernel": lambda: of_kernels(),
    },
}  # fmt: skip


def test_charts_are_those_that_were_looked_at(kept, request):
    texts = {
        f"{file}.txt": "".join(f"{name}: {scene(draw())}" for name, draw in charts.items())
        for file, charts in CHARTS.items()
    }
    tuned, so_far = (request.getfixturevalue(name) for name in ("result", "nothing"))
    unsure = replace(tuned.ablation[0], estimate=RatioEstimate(1.04, LogError(0.02, 4)))
    for name, one in (
        ("every effect", tuned),
        ("unsure", replace(tuned, confirmed=None, ablation=(unsure, tuned.ablation[1]))),
        ("nothing confirmed", replace(tuned, confirmed=None, ablation=())),
        ("nothing gained", replace(so_far, confirmed=None, ablation=())),
        ("nothing compared", replace(so_far, confirmed=None, ablation=(), comparisons=())),
    ):
        texts["tuning.txt"] = f"{texts.get('tuning.txt', '')}{name}: {scene(tuning_chart(one))}"
    kept("charts", texts)


def test_a_model_keeps_its_colour_and_the_eighth_shares_grey():
    colours = model_colours(f"model{n}" for n in range(9))
    assert len(set(colours.values())) == 8
    assert colours["model8"] == colours["model7"] == OTHER_MODELS
    assert model_colours(["b", "a", "b"]) == model_colours(["a", "b"])
