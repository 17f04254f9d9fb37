"""Points under a roof of 200 GFLOP/s and 50 GB/s, worked by hand."""

import math
from datetime import timedelta

import factories as make
import pytest
from hypothesis import given
from hypothesis import strategies as st
from observed import observation

from analysis import RecordSet, place_runs
from analysis.runs.groups import group_runs
from analysis.runs.points import RooflinePoint, roofline_point
from bench.records import worst
from bench.records.metrics import attained_flops_per_s, summary

CEILINGS = [make.ceilings_record()]


def point(record, ceilings=CEILINGS):
    placed = roofline_point(record, ceilings)
    assert isinstance(placed, RooflinePoint), placed
    return placed


def work(**changes):
    return {"complexity": make.complexity(**{k: int(v * make.GIGA) for k, v in changes.items()})}


#: 20 GFLOP over 10 GB fused: intensity 2 at most.
SLOPE = {"fraction_of_roof_min": 0.2, "fraction_of_peak": 0.1, "codes": ""}
#: The work of a second, 100 GFLOP, is half of the roof; over 25 GB and 10 GB.
POINTS = {
    "by hand": ({}, {
        "attained_flops_per_s": 100e9, "intensity_min": 4, "intensity_max": 10,
        "attainable_min_flops_per_s": 200e9, "attainable_max_flops_per_s": 200e9,
        "fraction_of_roof_min": 0.5, "fraction_of_roof_max": 0.5, "fraction_of_peak": 0.5,
        "bound": "compute", "bound_sure": True, "codes": "", "level": "clean",
        "mfu_required": 0.5, "mfu_counted": 0.5,  # it has no attention, so nothing is hidden
        "ceiling_record_id": "ceilings-1", "intensity_counted": None}),
    # of a disturbed run the median iteration
    "its pace": ({"measurement": make.measurement(times_s=(1.0, 1.0, 1.6) * 5)}, {
        "attained_flops_per_s": 100e9, "codes": "by-pace", "level": "clean"}),
    # traffic takes 0.2 to 0.4 s of 1 s
    "under the slope": (work(step_flops=20, eager_bytes=20), SLOPE | {
        "attainable_min_flops_per_s": 50e9, "attainable_max_flops_per_s": 100e9,
        "fraction_of_roof_max": 0.4, "bound": "not known", "bound_sure": True}),
    # at eager bytes 10 GFLOP/s would be attainable, but 20 are attained: traffic was less
    "surely less traffic": (work(step_flops=20, eager_bytes=100), SLOPE | {
        "attainable_min_flops_per_s": 10e9, "attainable_max_flops_per_s": 100e9,
        "fraction_of_roof_max": 1, "bound": "memory", "bound_sure": False}),
    # the window took 10 s, whatever the events say
    "between iterations": (
        {"measurement": make.measurement().model_copy(update={"iteration_times_s": (0.5,) * 10})},
        {"attained_flops_per_s": 100e9}),
    # 0.5 s arithmetic, 0.3 s waiting, 0.2 s other
    "waiting": ({"measurement": make.measurement(wait_s=0.3)},
                {"data_wait_share": 0.3, "bound": "input"}),
    "overlapping loaders": ({"measurement": make.measurement(wait_s=1.5)}, {"data_wait_share": 1}),
    # fused: 3 x (4 + 4) + 2 GB; eager: 3 x (10 + 10) + 5 GB
    "accumulated batches": (
        {"settings": {"grad_accum_steps": 3}, "measurement": make.measurement(images=30)},
        {"attained_flops_per_s": 300e9, "intensity_min": 300 / 65, "intensity_max": 300 / 26}),
    # 40 of 100 GFLOP are behind causal masks: 60 in 0.4 s are 150 GFLOP/s
    "causal masks": ({"step_s": 0.4, **work(causal_skipped_flops=40)}, {
        "attained_flops_per_s": 250e9, "fraction_of_peak": 0.75, "fraction_of_roof_min": 0.75,
        "attainable_max_flops_per_s": 200e9 * 100 / 60, "compute_s": 0.3,
        "mfu_required": None, "mfu_counted": 1.25,  # an older record knows no other masks
        "codes": "causal-mask", "level": "clean"}),
    # 30 are required: 10 more are behind a window, which kernels compute
    "a window": ({"step_s": 0.4, **work(causal_skipped_flops=40, required_flops=30)}, {
        "fraction_of_peak": 0.75, "mfu_required": 0.375, "mfu_counted": 1.25}),
    # of a step that memory holds back for 0.5 s the FLOP make no difference
    "causal, memory": (
        {"step_s": 0.625, **work(causal_skipped_flops=40, fused_bytes=25, eager_bytes=25)},
        {"fraction_of_roof_min": 0.8}),
    "causal, too fast": ({"step_s": 0.25, **work(causal_skipped_flops=40)}, {"level": "invalid"}),
    # at 50 GB/s 5 GB compulsory take 0.1 s, 10 GB fused 0.2 s; 2 GFLOP are no matter
    "below compulsory bytes": ({"step_s": 0.09, **work(step_flops=2)},
                               {"codes": "above-memory-roof", "level": "invalid",
                                "fraction_of_roof_min": 20 / 9, "fraction_of_roof_max": 20 / 9}),
    "below fused bytes": ({"step_s": 0.15, **work(step_flops=2)},
                          {"codes": "below-fused-traffic", "level": "suspect"}),
}  # fmt: skip


@pytest.mark.parametrize("case", POINTS)
def test_a_point_by_hand_which_is_what_is_logged(case):
    record, expected = make.run_record(**POINTS[case][0]), POINTS[case][1]
    placed = point(record)
    codes = " ".join(one.code for one in placed.findings)
    level = worst(one.level for one in placed.findings)
    known = {"level": level, "codes": codes, "compute_s": placed.times.compute_s}
    known |= {"data_wait_share": placed.data_wait_share, **vars(placed)}
    assert {name: known[name] for name in expected} == pytest.approx(expected)
    assert placed.intensity_counted_missing
    assert placed.attained_flops_per_s == pytest.approx(attained_flops_per_s(record))
    if case == "by hand":
        metrics = summary(record)
        assert metrics["attained_gflops"] == pytest.approx(100)
        for name in ("intensity_min", "intensity_max", "data_wait_share"):
            assert known[name] == metrics[name]


def test_a_row_has_the_first_sensor_that_is_there_and_shares_of_cores_as_cores():
    metrics = {"cpu_package_power_w_mean": 60.0, "other_cpu_percent_mean": 250.0}
    metrics |= {"user_s": 30.0, "system_s": 10.0, "real_s": 20.0}
    row = observation(metrics=metrics).row
    known = {"power_w": 60, "other_processes_cores": 2.5, "stolen_cores": None, "cores_busy": 2}
    assert {name: row[name] for name in known} == known
    assert observation(metrics=metrics | {"gpu_power_w_mean": 300.0}).row["power_w"] == 300


def test_a_mean_over_repeats_needs_all_of_them():
    known = [make.run_record(), make.run_record("other", complexity=None)]
    [group] = group_runs(place_runs(known, CEILINGS))
    assert (group.mean("attained_gflops"), group.mean("energy_j")) == (None, None)
    assert group.mean("throughput_samples_per_s") == pytest.approx(10)
    assert (len(group.points), group.of_the_roof) == (1, (0.5, 0.5))
    table = RecordSet.of([*known, *CEILINGS]).runs().configurations
    [row] = table[["repeats", "images_per_s", "fraction_of_roof_min", "runs"]].values.tolist()
    assert row == [2, pytest.approx(10), 0.5, ("other", "run-1")]


@pytest.mark.parametrize(
    ("burst", "percent", "said"),
    [(None, 102.9, ""), (None, 103.1, "103 %"), (240e9, 122, ""), (240e9, 125, "104 %")],
)
def test_above_the_compute_roof_is_invalid_past_three_percent_of_a_burst(burst, percent, said):
    roofs = make.ceilings_record(ceilings=(make.ceiling(burst_flops_per_s=burst),))
    placed = point(make.run_record(step_s=0.5 * 100 / percent), [roofs])
    assert placed.fraction_of_peak == pytest.approx(percent / 100)
    beyond = ["above-peak"] if percent == 122 else []  # what a burst, or Winograd, reaches
    assert [one.code for one in placed.findings] == (["above-compute-roof"] if said else beyond)
    assert not said or f"{placed.findings[0].facts['percent']:.0f} %" == said


@pytest.mark.parametrize(
    ("record", "ceilings", "reason"),
    [
        (make.failed_record(), CEILINGS, "outcome oom: CUDA out of memory at batch 512"),
        (make.run_record(), [], "no ceiling: no ceilings were measured on this device"),
        (make.run_record(resolved=make.resolved(math_mode="fp64")), CEILINGS, "in fp64"),
        (make.run_record(complexity=None), CEILINGS, "no complexity: not in this sample"),
        (make.run_record(**work(step_flops=0)), CEILINGS, "counts no FLOP or no bytes in resnet18"),
        (make.run_record(measurement=make.measurement(images=7)), CEILINGS,
         "1 x 10 images per iteration, the measurement of 7"),
    ],
)  # fmt: skip
def test_a_refused_run_names_its_reason(record, ceilings, reason):
    assert reason in roofline_point(record, ceilings).reason


AMOUNTS = st.integers(10**3, 10**16)


@given(AMOUNTS, AMOUNTS, st.floats(1, 100), st.floats(1e-4, 1e3), st.floats(0, 1))
def test_no_number_is_nan_and_none_is_negative(flops, fused, spread, step_s, wait):
    work = make.complexity(step_flops=flops, fused_bytes=fused, eager_bytes=int(fused * spread))
    measured = make.measurement(step_s=step_s, iterations=3, wait_s=wait * step_s)
    placed = point(make.run_record(complexity=work, measurement=measured))
    numbers = [value for value in vars(placed).values() if isinstance(value, float)]
    assert all(math.isfinite(number) and number >= 0 for number in numbers)
    assert placed.intensity_min <= placed.intensity_max
    assert placed.attainable_min_flops_per_s <= placed.attainable_max_flops_per_s
    assert placed.fraction_of_roof_min <= placed.fraction_of_roof_max


@pytest.mark.parametrize(("backend", "roofs"), [("cpu", 1), ("cuda", 3)])
def test_several_devices_do_the_work_of_all_under_the_roofs_there_are(backend, roofs):
    """Three processes of one CPU share that machine's roof; three GPUs have three."""
    own = make.environment(device=make.gpu() if backend == "cuda" else make.device())
    record = make.run_record(
        settings={"devices": 3},
        measurement=make.measurement(images=30, step_s=4.0),
        resolved=make.resolved(backend=backend),
        environment=own,
        complexity=make.complexity(causal_skipped_flops=40 * make.GIGA),
    )
    placed = point(record, [make.ceilings_record(environment=own)])
    assert placed.attained_flops_per_s == pytest.approx(300e9 / 4)
    assert (placed.intensity_min, placed.intensity_max) == (4, 10)
    assert placed.fraction_of_peak == pytest.approx(0.6 * 300e9 / 4 / (roofs * 200e9))


def test_a_step_that_amp_left_in_fp32_by_half_has_the_roofs_of_both():
    """50 of 100 GFLOP at 200 GFLOP/s and 50 at 50 are 1.25 s; without the second, no place."""
    record = make.run_record(
        measurement=make.measurement(step_s=2.5),
        resolved=make.resolved(math_mode="bf16"),
        complexity=make.complexity(fp32_flops=50 * make.GIGA, math_mode="bf16"),
    )
    narrow = make.ceiling(math_mode="bf16")
    both = (narrow, make.ceiling(math_mode="fp32", peak_flops_per_s=50e9))
    placed = point(record, [make.ceilings_record(ceilings=both)])
    assert placed.fraction_of_peak == pytest.approx(0.5)
    assert not roofline_point(record, [make.ceilings_record(ceilings=(narrow,))])


def test_a_step_in_fp8_has_the_roofs_of_its_products_in_fp8_bf16_and_fp32():
    """60 of 100 GFLOP at 400 GFLOP/s, 30 at 200 and 10 at 100 are 0.4 s."""
    ops = (make.op_cost("_scaled_mm", "forward", 60 * make.GIGA, 25, 10),
           make.op_cost("addmm", "forward", 40 * make.GIGA, 0, 0))  # fmt: skip
    record = make.run_record(
        measurement=make.measurement(step_s=0.8),
        resolved=make.resolved(math_mode="fp8"),
        complexity=make.complexity(ops=ops, fp32_flops=10 * make.GIGA, math_mode="fp8"),
    )
    peaks = {"fp8": 400e9, "bf16": 200e9, "fp32": 100e9}
    roofs = [make.ceiling(math_mode=mode, peak_flops_per_s=peak) for mode, peak in peaks.items()]
    placed = point(record, [make.ceilings_record(ceilings=tuple(roofs))])
    assert placed.fraction_of_peak == pytest.approx(0.5)
    for missing in (1, 2):
        some = tuple(roof for roof in roofs if roof is not roofs[missing])
        assert not roofline_point(record, [make.ceilings_record(ceilings=some)])


def test_machines_of_several_kinds_under_one_label_get_a_number():
    new = make.environment(cpu_signature="family 26 model 2 stepping 1")
    unasked = new.replaced({"cpu_signature": "an older version"}, cpu_signature=None)
    other = make.run_record("other", environment=new, created=make.NOON + timedelta(days=1))
    alone = make.run_record("alone", environment=make.environment(label="desk"))
    failed = make.failed_record(environment=None)
    roofs = make.ceilings_record("roofs", environment=new)
    for known in (make.environment(), unasked):  # nobody asked that processor for its numbers
        old = make.run_record("old", environment=known)
        found = RecordSet.of([other, old, roofs, alone, failed])
        labelled = found.with_unique_labels()
        labels = [one.environment and one.environment.label for one in labelled.measurements]
        assert labels == ["lab (2)", "lab (1)", "desk", None]
        assert labelled.ceilings[0].environment.label == "lab (2)"
        assert {run.env for run in labelled.runs()} == {"lab (1)", "lab (2)", "desk", "auto"}
        assert [run.label for run in found.runs()] == [run.label for run in labelled.runs()]
    # two of one kind are one machine to a reader
    first = make.run_record("a", environment=make.environment(device=make.gpu()))
    second = make.environment(device=make.gpu(uuid="GPU-2"), cpu_model="another host")
    found = RecordSet.of([first, make.run_record("b", environment=second)])
    assert found.with_unique_labels() == found
