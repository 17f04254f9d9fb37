"""Counted bytes on a run's point: whose they are, when they are taken, and what follows.

The run does 100 GFLOP in 1 s and moves 10 GB fused to 25 GB eager, 5 GB at the least, under
200 GFLOP/s and 50 GB/s; the profile counted 20 GB.
"""

from datetime import timedelta

import factories as make
import pytest
import samples

from analysis import place_runs
from analysis.profiles import explains
from analysis.runs.place import place_profiles
from analysis.runs.points import roofline_point
from bench.config import RunConfig
from bench.records import Finding, Verdict, worst


def point(*profiles, run=None, **roofs):
    return roofline_point(run or make.run_record(), [make.ceilings_record(**roofs)], profiles)


def counted(dram_gb=20.0, executed_gflop=110.0, seconds=0.8, **changes):
    kernels = make.kernels(dram_gb, executed_gflop, seconds)
    return make.profile(counters=samples.counters(*kernels), work=None, **changes)


def work(gflop, eager_gb, **changes):
    return make.complexity(
        step_flops=gflop * make.GIGA, eager_bytes=eager_gb * make.GIGA, **changes
    )


#: Little arithmetic, 0.05 s: without counters nobody can say whether 10 to 40 GB, 0.2 to 0.8 s,
#: are the bound.
LITTLE = work(10, 40)
THREE = RunConfig(arch="resnet18", batch_size=10, grad_accum_steps=3)
BUSY = samples.op_profile(step_time_s=2.0, device_busy_share=0.25)


SAME = make.measurement(work=make.WORK)
FASTER = {"measurement": make.measurement(step_s=0.4)}
#: By case: the profile, of what run, and what its point says.
BY_HAND = {
    "whole": (
        make.profile(),
        {},
        {
            "intensity_counted": 5,  # 100 GFLOP over 20 GB: algorithmic, not executed
            **{"intensity_min": 4, "intensity_max": 10, "traffic_amplification": 2},
            "executed_per_algorithmic_flop": pytest.approx(1.1),
            **{"intensity_counted_missing": "", "level": "clean"},
        },
    ),
    "attainable: 20 GFLOP over 20 GB, where the interval would say 40 to 100": (
        counted(executed_gflop=20, complexity=work(20, 25)),
        {"complexity": work(20, 25)},
        {
            **{"attainable_min_flops_per_s": 50e9, "attainable_max_flops_per_s": 50e9},
            **{"fraction_of_roof_min": 0.4, "fraction_of_roof_max": 0.4},
        },
    ),
    "modelled": (None, {"complexity": LITTLE}, {"bound": "memory", "bound_sure": False}),
    "busy for a quarter of a profiled step of 2 s: less than the 0.8 s of eager traffic": (
        make.profile(ops=BUSY, counters=None, complexity=LITTLE),
        {"complexity": LITTLE},
        {"device_busy_s": 0.5, "bound": "memory", "bound_sure": False, "intensity_counted": None},
    ),
    "the same work": (make.profile(), {"measurement": SAME}, {"intensity_counted": 5}),
    "unknown work": (make.profile(work=None), {"measurement": SAME}, {"intensity_counted": 5}),
    "much traffic": (
        counted(30, 10, complexity=LITTLE),
        {"complexity": LITTLE},
        {
            **{"bound": "memory", "bound_sure": True},
            "bound_because": "counted memory traffic alone takes 60 % of the step",
        },
    ),
    "little traffic": (
        counted(15, 10, complexity=LITTLE),
        {"complexity": LITTLE},
        {"bound": "not known", "bound_sure": True},
    ),
    "three batches: 300 GFLOP over 50 GB, 3 x (4 + 4) + 2 GB fused": (
        counted(50, 300, 2.0, config=THREE),
        {"config": THREE, "measurement": make.measurement(images=30, step_s=2.0)},
        {"intensity_counted": 6, "traffic_amplification": pytest.approx(50 / 26)},
    ),
    "125 % of the roof": (None, FASTER, {"level": "invalid"}),
    "but Winograd executed 60": (counted(10, 60), FASTER, {"level": "clean"}),
}


@pytest.mark.parametrize("case", BY_HAND)
def test_a_point_with_what_was_counted(case):
    profile, run, expected = BY_HAND[case]
    placed = point(*filter(None, [profile]), run=make.run_record(**run))
    level = worst(one.level for one in placed.findings)
    known = {"level": level, **vars(placed.times), **vars(placed)}
    assert {name: known[name] for name in expected} == expected


ABSENT = samples.counters(*make.kernels(), dram_bytes=None, why_missing="n/a in A.csv")
NOTHING = make.complexity(compulsory_bytes=0)
OTHER = make.measurement(work=make.WORK.model_copy(update={"counts": {"conv": 4, "add": 1}}))


@pytest.mark.parametrize(
    ("profile", "run", "executed", "reason"),
    [
        (None, {}, None, "not profiled: mlproject profile counts the bytes of one step"),
        (make.profile(counters=None), {}, None, "no counters: not in this sample"),
        (counted(4), {}, None, "profile profile-1 rejected: 4 GB counted, under the 5 GB"),
        (counted(60), {}, None, "kernel conv at 180 % of the memory ceiling"),
        (counted(60, seconds=2), {}, None, "step's duration would be 120 % of the memory ceiling"),
        (counted(executed_gflop=300), {}, None, "kernel conv at 225 % of the compute ceiling"),
        # what was not counted leaves the rest
        (make.profile(counters=ABSENT), {}, 1.1, "no DRAM bytes: n/a in A.csv"),
        (
            counted(0, complexity=NOTHING),
            {"complexity": NOTHING},
            1.1,
            "saw no DRAM traffic at all",
        ),
        (
            make.profile(),
            {"measurement": OTHER},
            None,
            "did other work than the timed run (conv: 3",
        ),
    ],
)
def test_without_sound_counters_the_reason_is_given_and_the_interval_stays(
    profile, run, executed, reason
):
    placed = point(*filter(None, [profile]), run=make.run_record(**run))
    assert placed.intensity_counted is placed.traffic_amplification is None
    assert placed.executed_per_algorithmic_flop == executed
    assert reason in placed.intensity_counted_missing
    assert not placed.findings  # the run's own numbers are true


def test_a_sound_profile_is_taken_before_a_newer_one_without_counters_or_with_a_fault():
    newer = make.NOON + timedelta(hours=9)
    without = make.profile("without", counters=None, created=newer)
    faulty = counted(4).model_copy(update={"record_id": "faulty", "created": newer})
    placed = point(without, faulty, make.profile())
    assert placed.intensity_counted == 5
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


def results(*profiles, runs=None, ceilings=None):
    ceilings = [make.ceilings_record()] if ceilings is None else ceilings
    found = place_runs(runs or [make.run_record()], ceilings, profiles)
    return place_profiles(profiles, found, ceilings, run_ids={"profile-1": "tracked"})


def judged(level, **changes):
    finding = Finding(code="x", level=level, message="no")
    return make.profile(verdict=Verdict(level=level, findings=(finding,)), **changes)


FAST_OP = samples.op_profile(samples.op_time(time_s=1.0, flops=300 * make.GIGA))


@pytest.mark.parametrize(
    ("profile", "verdict", "problems"),
    [
        (make.profile(), "clean", ()),
        (make.profile(verdict=None), "not judged", ()),
        (judged("suspect"), "suspect", ("suspect: no",)),
        (judged("invalid"), "invalid", ("invalid: no",)),
        (judged("invalid", outcome="oom", reason="no"), "no result", ("invalid: no",)),
        (
            counted(60),
            "invalid",
            (
                "kernel conv at 180 % of the memory ceiling",
                "the counts in the timed step's duration would be 120 % of the memory ceiling",
            ),
        ),
        (
            make.profile(ops=FAST_OP),
            "suspect",
            ("150 % of the compute ceiling by its algorithmic FLOP",),
        ),
    ],
)
def test_the_worst_of_a_profiles_findings_is_its_verdict(profile, verdict, problems):
    (result,) = results(profile)
    assert result.verdict == verdict
    assert len(result.problems) == len(problems)
    for found, problem in zip(result.problems, problems, strict=True):
        assert problem in found
