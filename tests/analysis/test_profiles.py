"""Counted bytes on a run's point: whose they are, when they are taken, and what follows.

The run does 100 GFLOP in 1 s and moves 10 GB fused to 25 GB eager, 5 GB at the least, under
200 GFLOP/s and 50 GB/s; the profile counted 20 GB.
"""

from datetime import timedelta

import factories as make
import pytest
import samples

from analysis import place_profiles, place_runs
from analysis.profiles.profiled_step import explains, profiles_of
from analysis.runs.points import roofline_point
from bench.config import RunConfig
from bench.records import Finding, Verdict


def point(*profiles, run=None, **roofs):
    return roofline_point(run or make.run_record(), [make.ceilings_record(**roofs)], profiles)


def counted(dram_gb=20.0, executed_gflop=110.0, seconds=0.8, **changes):
    kernels = make.kernels(dram_gb, executed_gflop, seconds)
    return make.profile(counters=samples.counters(*kernels), work=None, **changes)


def test_a_counted_point_by_hand():
    placed = point(make.profile())
    assert placed.intensity_counted == 5  # 100 GFLOP over 20 GB: algorithmic, not executed
    assert (placed.intensity_min, placed.intensity_max) == (4, 10)
    assert placed.traffic_amplification == 2
    assert placed.executed_flops == 110e9
    assert placed.executed_per_algorithmic == pytest.approx(1.1)
    assert placed.profile_record_id == "profile-1"
    assert placed.intensity_counted_missing == ""
    assert placed.level == "clean"


def test_what_is_attainable_follows_from_the_counted_bytes():
    # 20 GFLOP over 20 GB: 50 GFLOP/s attainable, where the interval would say 40 to 100.
    work = make.complexity(step_flops=20 * make.GIGA, eager_bytes=25 * make.GIGA)
    placed = point(
        counted(executed_gflop=20, complexity=work), run=make.run_record(complexity=work)
    )
    assert placed.attainable_min_flops_per_s == placed.attainable_max_flops_per_s == 50e9
    assert placed.fraction_of_roof_min == placed.fraction_of_roof_max == 0.4


def test_the_bound_is_decided_by_the_counted_bytes():
    # 10 GFLOP take 0.05 s, 10 to 40 GB take 0.2 to 0.8 s: without counters nobody can say.
    work = make.complexity(step_flops=10 * make.GIGA, eager_bytes=40 * make.GIGA)
    run = make.run_record(complexity=work)
    modelled = point(run=run)
    assert (modelled.bound, modelled.bound_sure) == ("memory", False)
    much = point(counted(30, 10, complexity=work), run=run)
    assert (much.bound, much.bound_sure) == ("memory", True)
    assert much.bound_because == "counted memory traffic alone takes 60 % of the step"
    little = point(counted(15, 10, complexity=work), run=run)
    assert (little.bound, little.bound_sure) == ("overhead", True)
    assert "memory traffic (30 %)" in little.bound_because


def test_the_devices_busy_time_is_the_profiled_steps():
    # Busy for a quarter of a profiled step of 2 s: 0.5 s, less than the 0.8 s of eager traffic.
    ops = samples.op_profile(step_time_s=2.0, device_busy_share=0.25)
    work = make.complexity(step_flops=10 * make.GIGA, eager_bytes=40 * make.GIGA)
    placed = point(
        make.profile(ops=ops, counters=None, complexity=work),
        run=make.run_record(complexity=work),
    )
    assert placed.times.device_busy_s == 0.5
    assert placed.intensity_counted is None


def test_accumulated_batches_are_counted_together():
    config = RunConfig(arch="resnet18", batch_size=10, grad_accum_steps=3)
    run = make.run_record(config=config, measurement=make.measurement(images=30, step_s=2.0))
    placed = point(counted(50, 300, 2.0, config=config), run=run)
    assert placed.intensity_counted == 6  # 300 GFLOP over 50 GB
    assert placed.traffic_amplification == pytest.approx(50 / 26)  # 3 x (4 + 4) + 2 GB fused


def test_the_point_agrees_with_the_logged_metrics():
    placed = point(make.profile())
    (result,) = place_profiles([make.profile()], [], [])
    assert result.metrics["intensity_counted"] == placed.intensity_counted
    assert result.metrics["traffic_amplification"] == placed.traffic_amplification


OTHER = make.WORK.model_copy(update={"counts": {"conv": 4, "add": 1}})


@pytest.mark.parametrize(
    ("profiles", "reason"),
    [
        ([], "not profiled: mlproject profile counts the bytes of one step"),
        ([make.profile(counters=None)], "no counters: not in this sample"),
        ([counted(4)], "profile profile-1 rejected: 4 GB counted, under the 5 GB"),
        ([counted(60)], "kernel conv at 180 % of the memory ceiling"),
        (
            [counted(60, seconds=2)],
            "in the timed step's duration would be 120 % of the memory ceiling",
        ),
        ([counted(executed_gflop=300)], "kernel conv at 225 % of the compute ceiling"),
    ],
)
def test_without_sound_counters_the_reason_is_given_and_the_interval_stays(profiles, reason):
    placed = point(*profiles)
    assert placed.intensity_counted is placed.traffic_amplification is None
    assert placed.executed_flops is None
    assert reason in placed.intensity_counted_missing
    assert placed.level == "clean"  # the run's own numbers are true


def test_missing_dram_bytes_name_the_metric_and_leave_the_rest():
    absent = samples.counters(*make.kernels(), dram_bytes=None, why_missing="n/a in A.csv")
    placed = point(make.profile(counters=absent))
    assert placed.intensity_counted_missing == "no DRAM bytes: n/a in A.csv"
    assert placed.executed_flops == 110e9


def test_no_dram_traffic_at_all_is_no_intensity():
    work = make.complexity(compulsory_bytes=0)
    profile = counted(0, complexity=work)
    placed = point(profile, run=make.run_record(complexity=work))
    assert placed.intensity_counted is None
    assert placed.intensity_counted_missing == "the counters saw no DRAM traffic at all"


def test_counters_of_other_kernels_are_rejected_by_name():
    run = make.run_record(measurement=make.measurement(work=OTHER))
    placed = point(make.profile(), run=run)
    assert "the profile did other work than the timed run (conv: 3 against 4)" in (
        placed.intensity_counted_missing
    )
    same = make.run_record(measurement=make.measurement(work=make.WORK))
    assert point(make.profile(), run=same).intensity_counted == 5
    assert point(make.profile(work=None)).intensity_counted == 5  # what is not known is no fault


def test_a_sound_profile_is_taken_before_a_newer_one_without_counters_or_with_a_fault():
    newer = make.NOON + timedelta(hours=9)
    without = make.profile("without", counters=None, created=newer)
    faulty = counted(4).model_copy(update={"record_id": "faulty", "created": newer})
    placed = point(without, faulty, make.profile())
    assert placed.profile_record_id == "profile-1"
    # a fault says more than that another has no counters
    assert "faulty rejected" in point(without, faulty).intensity_counted_missing


def test_a_profile_belongs_to_its_run_or_to_the_configuration_on_the_device():
    run = make.run_record()
    elsewhere = make.environment(device=make.device(name="Other CPU"))
    assert explains(make.profile(timed_record_id="run-1", environment=elsewhere), run)
    assert explains(make.profile(timed_record_id=None), run)
    assert explains(make.profile(timed_record_id="run-2"), run)  # a repeat of it
    assert not explains(make.profile(timed_record_id=None, environment=elsewhere), run)
    assert not explains(make.profile(timed_record_id=None, environment=None), run)
    assert not explains(make.profile(config=RunConfig(arch="vgg16"), timed_record_id=None), run)


def test_the_runs_own_profile_goes_first_then_the_newest():
    def at(hours, record_id, timed):
        created = make.NOON + timedelta(hours=hours)
        return make.profile(record_id, created=created, timed_record_id=timed)

    order = profiles_of(
        make.run_record(), [at(1, "own", "run-1"), at(2, "old", None), at(3, "new", "run-2")]
    )
    assert [profile.record_id for profile in order] == ["own", "new", "old"]


def test_arithmetic_above_the_roof_is_judged_by_what_was_executed():
    # 100 GFLOP in 0.4 s would be 125 % of 200 GFLOP/s; Winograd executed 60.
    run = make.run_record(measurement=make.measurement(step_s=0.4))
    kernels = samples.counters(*make.kernels(10, 60))
    placed = point(make.profile(counters=kernels), run=run)
    assert placed.level == "clean"
    assert point(run=run).level == "invalid"


def results(*profiles, runs=None, ceilings=None):
    ceilings = [make.ceilings_record()] if ceilings is None else ceilings
    found = place_runs(runs or [make.run_record()], ceilings, profiles)
    return place_profiles(profiles, found, ceilings, run_ids={"profile-1": "tracked"})


def test_a_profile_as_a_reader_meets_it():
    (result,) = results(make.profile())
    assert (result.number, result.name, result.label) == (
        1,
        "tracked",
        "lab resnet18 fp32 batch 10",
    )
    assert [run.number for run in result.runs] == [1]
    assert (result.verdict, result.problems) == ("clean", ())
    facts = result.facts()
    assert facts["explains"] == ["run-1"]
    assert facts["intensity_counted"] == 5


def test_a_profile_above_a_ceiling_is_invalid_by_the_roof():
    (result,) = results(counted(60))
    assert result.verdict == "invalid"
    assert [finding.code for finding in result.findings] == [
        "kernel-above-memory-roof",
        "step-above-memory-roof",
    ]


def test_an_op_above_the_compute_roof_makes_a_profile_suspect():
    fast = samples.op_profile(samples.op_time(time_s=1.0, flops=300 * make.GIGA))
    (result,) = results(make.profile(ops=fast))
    assert result.verdict == "suspect"
    assert "150 % of the compute ceiling by its algorithmic FLOP" in result.problems[0]


def test_the_worst_of_a_profiles_findings_is_its_verdict():
    def verdict(level, outcome="ok", **changes):
        found = Verdict(level=level, findings=(Finding(code="x", level=level, message="no"),))
        reason = None if outcome == "ok" else "no"
        return results(make.profile(verdict=found, outcome=outcome, reason=reason, **changes))[0]

    assert verdict("suspect").verdict == "suspect"
    assert verdict("invalid").problems == ("invalid: no",)
    assert verdict("invalid", "oom").verdict == "no result"
    assert results(make.profile(verdict=None))[0].verdict == "not judged"


def test_a_profile_without_a_roof_says_so_and_keeps_its_kernels():
    (result,) = results(make.profile(), ceilings=[])
    assert result.problems[0].startswith("not held against a roof: no ceilings were measured")
    assert len(result.kernels.kernels) == 2


def test_profiles_are_numbered_by_the_runs_they_explain():
    runs = [make.run_record("b", config=RunConfig(arch="vgg16", batch_size=10)), make.run_record()]
    of_vgg = make.profile("v", config=runs[0].config, timed_record_id="b")
    of_none = make.profile("n", config=RunConfig(arch="alexnet"), timed_record_id=None)
    found = results(of_none, of_vgg, make.profile(), runs=runs)
    assert [(each.number, each.record.record_id) for each in found] == [
        (1, "profile-1"),
        (2, "v"),
        (3, "n"),
    ]
    assert found[2].runs == ()
