"""A point by the device's own count of its window: when it is taken, and who is at odds with it.

The run does 100 GFLOP in a step of 1 s, ten in a window of 10 s, and moves 10 GB fused to 25 GB
eager, 5 GB at the least, under 200 GFLOP/s and 50 GB/s.
"""

import factories as make
import pytest
import samples

from analysis.runs.points import roofline_point
from bench.records import CounterCheck


def check(share=1.01, counter="GPM", quantity="bytes", why=None):
    counted = {"missing": {"counted": why}} if why else {}
    return CounterCheck(
        counter=counter, work="copy 1 MiB x 10", quantity=quantity, known=1e9, took_s=2.0,
        counted=None if why else share * 1e9, **counted,
    )  # fmt: skip


RIGHT = (check(),)


def point(step_gb, *profiles, checks=RIGHT, times_s=(1.0,) * 10, foreign=(), **changes):
    telemetry = samples.telemetry(
        dram_bytes=len(times_s) * step_gb * 1e9, foreign_processes=foreign
    )
    measured = make.measurement(times_s=times_s)
    run = make.run_record(telemetry=telemetry, measurement=measured, **changes)
    return roofline_point(run, [make.ceilings_record(counter_checks=checks)], profiles)


def codes(placed):
    return [(one.code, one.level) for one in placed.findings]


def test_the_bytes_of_the_window_over_its_steps_place_the_run():
    placed = point(20)
    assert (placed.intensity_counted, placed.counted_by) == (5, "GPM")  # 100 GFLOP over 20 GB
    assert (placed.times.memory_min_s, placed.times.memory_max_s) == (0.4, 0.4)  # at 50 GB/s
    assert placed.traffic_amplification == 2  # of 10 GB fused
    assert placed.row["counted_dram_gb"] == 20
    assert codes(placed) == []


def test_it_goes_before_ncu_which_may_disagree():
    placed = point(21, make.profile())  # which counted 20 GB: 5 % are no matter
    assert (placed.row["counted_dram_gb"], placed.counted_by, codes(placed)) == (21, "GPM", [])
    placed = point(16, make.profile())
    assert codes(placed) == [("counts-apart", "note")]
    assert placed.findings[0].sentence == (
        "the device counted 16 GB a step, against 20 GB of ncu: one is wrong"
    )
    unproven = point(16, make.profile(), checks=())
    assert (unproven.counted_by, unproven.row["counted_dram_gb"]) == ("ncu", 20)
    assert codes(unproven) == [("not-counted", "note")]


@pytest.mark.parametrize(
    ("step_gb", "whose"), [(4, "5 GB of the cost model"), (26, "25 GB of the cost model")]
)
def test_a_count_that_the_cost_model_contradicts_is_said(step_gb, whose):
    placed = point(step_gb)
    assert codes(placed)[0] == ("counts-apart", "suspect")
    assert whose in placed.findings[0].sentence


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"checks": ()}, "no known bytes prove"),
        ({"checks": (check(counter="ncu"), check(quantity="flops"))}, "no known bytes prove"),
        ({"checks": (check(), check(0.94))}, "GPM counted 94.0 % of the bytes of copy"),
        ({"checks": (check(1.06),)}, "GPM counted 106.0 % of the bytes of copy"),
        ({"checks": (check(why="Not Supported"),)}, "GPM counted nothing of the bytes of copy"),
        ({"times_s": (0.1,) * 19}, "windows of 2 s and more"),
        ({"foreign": ("1 python",)}, "others' bytes"),
    ],
)
def test_a_count_that_is_not_proved_is_not_used_and_the_run_says_so(changes, reason):
    placed = point(20, **changes)
    assert placed.intensity_counted is placed.counted_by is None
    assert reason in placed.intensity_counted_missing
    assert placed.times.memory_min_s < placed.times.memory_max_s
    assert [one for one in placed.findings if one.code == "not-counted" and reason in one.sentence]


def test_off_by_just_under_5_percent_is_right():
    assert point(20, checks=(check(0.951), check(1.049))).counted_by == "GPM"


def test_a_device_that_counts_nothing_is_placed_as_before():
    placed = roofline_point(make.run_record(), [make.ceilings_record()], ())
    assert (codes(placed), placed.counted_by) == ([], None)
    assert placed.intensity_counted_missing.startswith("not profiled")
