"""Points under a roof of 200 GFLOP/s and 50 GB/s, worked by hand."""

import math
from datetime import timedelta

import factories as make
import pytest
import samples
from hypothesis import given
from hypothesis import strategies as st

from analysis import RecordSet, place, place_runs
from analysis.comparison.scaling import on_one_device, scaling_efficiency
from analysis.runs.groups import group_runs
from analysis.runs.phases import PhaseSplit, phase_split
from analysis.runs.points import Refusal, RooflinePoint, roofline_point
from bench.records.verdict.record_metrics import attained_flops_per_s, summary

CEILINGS = [make.ceilings_record()]


def point(record, ceilings=CEILINGS):
    placed = roofline_point(record, ceilings)
    assert isinstance(placed, RooflinePoint), placed
    return placed


def test_a_point_by_hand():
    placed = point(make.run_record())
    assert placed.attained_flops_per_s == 100e9  # 100 GFLOP in 1 s
    assert (placed.intensity_min, placed.intensity_max) == (4, 10)  # over 25 GB and 10 GB
    assert placed.roof.ridge_flop_per_byte == 4
    assert placed.attainable_min_flops_per_s == placed.attainable_max_flops_per_s == 200e9
    assert placed.fraction_of_roof_min == placed.fraction_of_roof_max == 0.5
    assert placed.fraction_of_peak == 0.5
    assert (placed.bound, placed.bound_sure) == ("compute", True)
    assert (placed.env, placed.arch, placed.precision, placed.batch_size) == (
        "lab",
        "resnet18",
        "fp32",
        10,
    )
    assert placed.ceiling_record_id == "ceilings-1"
    assert placed.level == "clean"
    assert placed.intensity_counted is None
    assert placed.intensity_counted_missing


def test_an_iteration_divides_into_phases_and_a_rest():
    times_s = {"data": (0.1,) * 4, "forward": (0.2,) * 4, "backward": (0.4,) * 4}
    measured = samples.measurement((1.0,) * 4, 10, phase_times_s=times_s)
    split = phase_split(place(make.run_record(measurement=measured), []))
    assert split.iteration_s == 1
    assert split.other_s == pytest.approx(0.3)
    assert split.shares == pytest.approx(
        {"data": 0.1, "forward": 0.2, "backward": 0.4, "other": 0.3}
    )
    assert phase_split(place(make.run_record(), [])) is None
    assert PhaseSplit(1.0, {"forward": 1.001}).other_s == 0  # two clocks


def test_under_the_slope_the_roof_is_an_interval():
    # 20 GFLOP over 10 to 20 GB: intensity 1 to 2, attainable 50 to 100 GFLOP/s, attained 20.
    work = make.complexity(step_flops=20 * make.GIGA, eager_bytes=20 * make.GIGA)
    placed = point(make.run_record(complexity=work))
    assert placed.attainable_min_flops_per_s == 50e9
    assert placed.attainable_max_flops_per_s == 100e9
    assert placed.fraction_of_roof_min == pytest.approx(0.2)
    assert placed.fraction_of_roof_max == pytest.approx(0.4)
    assert placed.fraction_of_peak == pytest.approx(0.1)
    assert placed.bound == "overhead"  # traffic takes 0.2 to 0.4 s of 1 s


def test_the_fraction_at_eager_traffic_stops_at_the_roof():
    # At eager bytes 10 GFLOP/s would be attainable, but 20 are attained: traffic was less.
    work = make.complexity(step_flops=20 * make.GIGA, eager_bytes=100 * make.GIGA)
    placed = point(make.run_record(complexity=work))
    assert placed.attainable_min_flops_per_s == 10e9
    assert placed.fraction_of_roof_max == 1
    assert placed.level == "clean"
    assert (placed.bound, placed.bound_sure) == ("memory", False)


def test_time_between_iterations_counts_and_waiting_may_be_the_bound():
    measured = make.measurement().model_copy(update={"iteration_times_s": (0.5,) * 10})
    placed = point(make.run_record(measurement=measured))
    assert placed.attained_flops_per_s == 100e9  # the window took 10 s, whatever the events say
    waiting = point(make.run_record(measurement=make.measurement(wait_s=0.3)))
    assert waiting.data_wait_share == pytest.approx(0.3)
    assert waiting.bound == "input"  # 0.5 s arithmetic, 0.3 s waiting, 0.2 s other


def test_above_the_compute_roof_is_invalid_past_three_percent():
    def at(percent_of_peak):
        step_s = 0.5 * 100 / percent_of_peak
        return point(make.run_record(step_s=step_s))

    assert at(102.9).level == "clean"
    assert at(103.1).level == "invalid"
    assert at(103.1).findings[0].code == "above-compute-roof"
    assert "103 % of the compute ceiling" in at(103.1).findings[0].message


def test_a_run_as_fast_as_a_burst_is_possible():
    roofs = make.ceilings_record(ceilings=(make.ceiling(burst_flops_per_s=240e9),))

    def at(percent_of_peak):
        record = make.run_record(step_s=0.5 * 100 / percent_of_peak)
        return place(record, [roofs]).point

    assert at(122).level == "clean"
    assert at(122).fraction_of_peak == pytest.approx(1.22)
    assert at(125).findings[0].code == "above-compute-roof"


def test_what_fused_attention_may_skip_is_not_held_against_the_roof():
    """Of 100 GFLOP a step 40 are behind causal masks: 60 in 0.4 s are 150 GFLOP/s."""

    def at(step_s, **changes):
        work = make.complexity(causal_skipped_flops=40 * 10**9, **changes)
        return place(make.run_record(step_s=step_s, complexity=work), CEILINGS).point

    placed = at(0.4)
    assert placed.attained_flops_per_s == 250e9
    assert [placed.fraction_of_peak, placed.fraction_of_roof_min] == pytest.approx([0.75, 0.75])
    assert placed.attainable_max_flops_per_s == pytest.approx(200e9 * 100 / 60)
    assert placed.times.compute_s == pytest.approx(0.3)
    assert [finding.code for finding in placed.findings] == ["causal-mask"]
    assert placed.level == "clean"
    # Of a step that memory holds back the FLOP make no difference.
    slow = {"fused_bytes": 25 * 10**9, "eager_bytes": 25 * 10**9}  # 0.5 s
    assert at(0.625, **slow).fraction_of_roof_min == pytest.approx(0.8)
    assert at(0.25).level == "invalid"


@pytest.mark.parametrize(
    ("step_s", "code", "level"),
    [(0.09, "above-memory-roof", "invalid"), (0.15, "below-fused-traffic", "suspect")],
)
def test_less_time_than_the_bytes_need_is_doubted(step_s, code, level):
    """At 50 GB/s 5 GB compulsory take 0.1 s, 10 GB fused 0.2 s; 2 GFLOP are no matter."""
    work = make.complexity(step_flops=2 * make.GIGA)
    placed = point(make.run_record(complexity=work, step_s=step_s))
    assert [finding.code for finding in placed.findings] == [code]
    assert placed.level == level
    assert placed.fraction_of_roof_max >= placed.fraction_of_roof_min > 1


def test_accumulated_batches_are_all_counted_and_the_optimizer_once():
    record = make.run_record(
        settings={"grad_accum_steps": 3},
        measurement=make.measurement(images=30),
    )
    placed = point(record)
    assert placed.attained_flops_per_s == 300e9 == attained_flops_per_s(record)
    # fused: 3 x (4 + 4) + 2 GB; eager: 3 x (10 + 10) + 5 GB
    assert placed.intensity_max == pytest.approx(300 / 26)
    assert placed.intensity_min == pytest.approx(300 / 65)


def test_points_agree_with_the_logged_summary():
    record = make.run_record()
    metrics, placed = summary(record), point(record)
    assert placed.attained_flops_per_s / 1e9 == pytest.approx(metrics["attained_gflops"])
    assert placed.intensity_min == metrics["intensity_min"]
    assert placed.intensity_max == metrics["intensity_max"]
    assert placed.data_wait_share == metrics["data_wait_share"]


@pytest.mark.parametrize(
    ("record", "ceilings", "reason"),
    [
        (make.failed_record(), CEILINGS, "outcome oom: CUDA out of memory at batch 512"),
        (make.run_record(), [], "no ceiling: no ceilings were measured on this device"),
        (make.run_record(complexity=None), CEILINGS, "no complexity: not in this sample"),
        (
            make.run_record(complexity=make.complexity(step_flops=0)),
            CEILINGS,
            "counts no FLOP or no bytes in resnet18",
        ),
        (
            make.run_record(measurement=make.measurement(images=7)),
            CEILINGS,
            "1 x 10 images per iteration, the measurement of 7",
        ),
    ],
)
def test_a_refused_run_names_its_reason(record, ceilings, reason):
    refused = roofline_point(record, ceilings)
    assert isinstance(refused, Refusal)
    assert reason in refused.reason


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


@given(AMOUNTS, AMOUNTS, st.floats(1e-3, 1e3), st.sampled_from([10, 1000, 10**6]))
def test_fractions_do_not_depend_on_the_units(flops, fused, step_s, factor):
    def fractions(scale):
        work = make.complexity(
            step_flops=flops * scale, fused_bytes=fused * scale, eager_bytes=2 * fused * scale
        )
        roof = make.ceiling(peak_flops_per_s=200e9 * scale, peak_bytes_per_s=50e9 * scale)
        record = make.run_record(
            complexity=work, measurement=make.measurement(step_s=step_s, iterations=2)
        )
        placed = point(record, [make.ceilings_record(ceilings=(roof,))])
        return [placed.fraction_of_roof_min, placed.fraction_of_roof_max, placed.fraction_of_peak]

    assert fractions(factor) == pytest.approx(fractions(1))


@pytest.mark.parametrize(("backend", "roofs"), [("cpu", 1), ("cuda", 3)])
def test_several_devices_do_the_work_of_all_under_the_roofs_there_are(backend, roofs):
    """Three processes of one CPU share that machine's roof; three GPUs have three."""
    own = make.environment(device=make.gpu() if backend == "cuda" else make.device())
    record = make.run_record(
        settings={"devices": 3},
        measurement=make.measurement(images=30, step_s=4.0),
        resolved=make.resolved(backend=backend),
        environment=own,
    )
    placed = point(record, [make.ceilings_record(environment=own)])
    assert placed.attained_flops_per_s == pytest.approx(300e9 / 4)
    assert (placed.intensity_min, placed.intensity_max) == (4, 10)
    assert placed.fraction_of_peak == pytest.approx(300e9 / 4 / (roofs * 200e9))


def test_machines_of_several_kinds_under_one_label_get_a_number():
    new = make.environment(cpu_signature="family 26 model 2 stepping 1")
    old = make.run_record("old")
    other = make.run_record("other", environment=new, created=make.NOON + timedelta(days=1))
    roofs = make.ceilings_record("roofs", environment=new)
    alone = make.run_record("alone", environment=make.environment(label="desk"))
    found = RecordSet.of([other, old, roofs, alone, make.failed_record(environment=None)])
    labelled = found.with_unique_labels()
    assert [r.environment and r.environment.label for r in labelled.measurements] == [
        "lab (2)",
        "lab (1)",
        "desk",
        None,
    ]
    assert labelled.ceilings[0].environment.label == "lab (2)"
    assert {run.env for run in labelled.runs()} == {"lab (1)", "lab (2)", "desk", "auto"}
    assert [run.label for run in found.runs()] == [run.label for run in labelled.runs()]
    # two of one kind are one machine to a reader
    first = make.run_record("a", environment=make.environment(device=make.gpu()))
    second = make.environment(device=make.gpu(uuid="GPU-2"), cpu_model="another host")
    found = RecordSet.of([first, make.run_record("b", environment=second)])
    assert found.with_unique_labels() == found


def test_a_measurement_of_the_loader_alone_says_nothing_of_training():
    why = {"complexity": "data_only=true: no model ran"}
    settings = {"data": "photos", "data_only": True}
    record = make.run_record("loader", settings=settings).replaced(why, complexity=None)
    assert roofline_point(record, CEILINGS).reason == f"no complexity: {why['complexity']}"
    runs = {run.name: run for run in place_runs([record, make.run_record("trained")], [])}
    assert runs["loader"].metrics["loader_images_per_s"] > 0
    assert runs["loader"].facts()["images_per_s"] is None
    [group] = group_runs(runs.values())
    assert group.names == ("trained",)


# Scaling efficiency, and the run that one on several devices is held against


FOUR = {"devices": 2, "nodes": 2}


def one(**changes):
    return make.run_record("one", **changes)


def many(images=40, **changes):
    """Every iteration of a second, as `one` has it: 4 devices do 4 times the images at best."""
    known = {"settings": FOUR, "measurement": make.measurement(images=images)}
    return make.run_record("many", **{**known, **changes})


def test_four_devices_that_do_four_times_the_work_are_perfect():
    assert scaling_efficiency(many(), one()) == pytest.approx(1.0)
    assert scaling_efficiency(many(images=30), one()) == pytest.approx(0.75)


def test_only_a_pair_can_be_compared():
    with pytest.raises(ValueError, match="one is not many on one device"):
        scaling_efficiency(many(), one(settings={"arch": "vgg16"}))
    with pytest.raises(ValueError, match="is not"):
        scaling_efficiency(one(), one())
    with pytest.raises(ValueError, match="two measured windows"):
        scaling_efficiency(many(), one(measurement=None, outcome="oom"))


def card(uuid, name="H200", **changes):
    return make.environment(device=make.gpu(name=name, uuid=uuid, **changes))


def test_the_pair_is_the_same_configuration_on_a_device_of_the_same_kind():
    run = many(environment=card("GPU-0"))
    others = [
        one(environment=card("GPU-7", "L4")),
        one(environment=card("GPU-9", power_limit_w=500.0)),
        one(environment=card("GPU-0"), batch=16),
        make.failed_record(environment=card("GPU-0")),
    ]
    assert on_one_device(run, others) is None
    pair = one(environment=card("GPU-5"))  # the machine's other card does as well
    assert on_one_device(run, [*others, pair]) is pair
    # by what ran, however it was asked for
    asked = {"batch_size": "auto", "threads": 4, "fused_optimizer": "true", "iters": 7}
    pair = one(environment=card("GPU-5"), settings=asked)
    assert on_one_device(run, [*others, pair]) is pair
    assert on_one_device(run, [one(environment=card("GPU-5"), settings={"threads": 2})]) is None


def test_the_same_repeat_goes_before_the_newest():
    run = many(settings={**FOUR, "repeat": 2})
    first, second = one(), one(settings={"repeat": 2})
    newest = one(created=make.NOON + timedelta(days=1))
    assert on_one_device(run, [first, second, newest]) is second
    assert on_one_device(many(settings={**FOUR, "repeat": 9}), [first, newest]) is newest
    assert on_one_device(one(), [one()]) is None
