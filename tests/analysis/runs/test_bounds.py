"""The bound's rule, by hand for each outcome, then by properties that no numbers may break."""

import math
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.account import Part, StepAccount
from analysis.roofs import Roof
from analysis.runs.bounds import Bound, StepTimes, decide_bound

SECONDS = st.floats(min_value=1e-6, max_value=1e3)
SHARES = st.floats(min_value=0, max_value=1)


def bound(measured=1.0, wait=0.0, compute=0.0, low=0.0, high=None, busy=None):
    times = StepTimes(measured, wait, compute, low, low if high is None else high, busy)
    return decide_bound(times)[:2]


@pytest.mark.parametrize(
    ("times", "expected", "sure"),
    [
        # arithmetic fills at least half, unless unfused traffic would take longer
        ({"compute": 0.5, "low": 0.2, "high": 0.5}, "compute", True),
        ({"compute": 0.499, "low": 0.2, "high": 0.4}, "not known", True),
        ({"compute": 0.6, "low": 0.2, "high": 0.9}, "compute", False),
        # fused traffic alone fills half; only unfused traffic does; fused traffic cannot be
        ({"compute": 0.3, "low": 0.5, "high": 0.9}, "memory", True),
        ({"compute": 0.2, "low": 0.3, "high": 0.5}, "memory", False),
        ({"compute": 0.2, "low": 1.02, "high": 2.0}, "memory", True),
        ({"compute": 0.2, "low": 1.04, "high": 2.0}, "memory", False),
        # not even unfused traffic explains half; an idle device moves no bytes
        ({"compute": 0.2, "low": 0.3, "high": 0.49}, "not known", True),
        ({"compute": 0.2, "low": 0.3, "high": 0.9, "busy": 0.4}, "not known", True),
        # a wait that the device worked through costs nothing
        ({"wait": 0.5, "compute": 0.98}, "compute", True),
        ({"wait": 0.5, "compute": 0.6, "busy": 1.0}, "compute", True),
    ],
)
def test_the_larger_part_of_the_step_gives_the_bound(times, expected, sure):
    assert bound(**times) == (expected, sure)


@pytest.mark.parametrize(
    ("wait", "compute", "expected"),
    [
        (0.05, 0.93, "compute"),  # not over 5 %
        (0.06, 0.93, "input"),  # 6 % to input, 1 % to everything else
        (0.06, 0.85, "compute"),  # 6 % to input, 9 % to everything else
        (0.40, 0.20, "input"),  # 40 % to input, 40 % to everything else
        (0.39, 0.20, "not known"),  # 39 % to input, 41 % to everything else
        (1.00, 0.00, "input"),
    ],
)
def test_input_when_it_is_the_largest_loss(wait, compute, expected):
    assert bound(wait=wait, compute=compute)[0] == expected
    # the sentence names the numbers
    because = decide_bound(StepTimes(2.0, 0.0, 1.5, 0.1, 0.2))[2]
    assert because == "arithmetic at the roof takes 75 % of the step"


@pytest.mark.parametrize(
    ("kinds", "traced_s", "expected"),
    [
        ({"ops": 0.4, "host": 0.3}, 1.0, "slow kernels"),
        ({"ops": 0.2, "host": 0.3}, 1.09, "host"),
        ({"ops": 0.2, "host": 0.3}, 1.11, "not known"),  # disturbed
        ({"idle": 0.5, "communication": 0.3}, 1.0, "idle"),
        ({"idle": 0.3, "communication": 0.5}, 1.0, "communication"),
        ({"traffic": 0.3, "ops": 0.2}, 1.0, "memory"),
        ({"not explained": 0.4, "ops": 0.3}, 1.0, "not known"),
        ({"unknown work": 0.4, "ops": 0.3}, 1.0, "not known"),
        ({"roof": 0.3, "cache": -0.1, "profiling": 0.4, "ops": 0.2}, 1.0, "slow kernels"),
    ],
)
def test_what_no_roof_explains_the_account_names(kinds, traced_s, expected):
    parts = tuple(Part(kind, kind, time_s) for kind, time_s in kinds.items())
    account, step = StepAccount(1.0, parts, traced_s), StepTimes(1.0, 0.0, 0.3, 0.2, 0.2)
    assert decide_bound(step, account)[0] == expected
    by_roof = StepTimes(1.0, 0.0, 0.6, 0.2, 0.2)  # which comes first
    assert decide_bound(by_roof, account)[0] == "compute"


@given(SECONDS, SHARES, SECONDS, SECONDS, st.floats(1, 50), st.none() | SHARES)
def test_every_step_has_a_bound(measured, wait, compute, low, spread, busy):
    busy_s = None if busy is None else busy * measured
    times = StepTimes(measured, wait * measured, compute, low, low * spread, busy_s)
    found, _, because = decide_bound(times)
    assert found in get_args(Bound)
    assert "nan" not in because


@given(SECONDS, SHARES, SHARES, SHARES, st.floats(1, 10), st.integers(-20, 20))
def test_the_unit_of_time_does_not_matter(measured, wait, compute, low, spread, power):
    def times(scale):
        t = measured * scale
        return StepTimes(t, wait * t, compute * t, low * t, low * spread * t)

    assert decide_bound(times(1)) == decide_bound(times(2.0**power))


@given(SHARES, SHARES, SHARES, st.floats(1, 10), SHARES)
def test_waiting_longer_never_ends_being_input_bound(wait, compute, low, spread, more):
    before = decide_bound(StepTimes(1.0, wait, compute, low, low * spread))[0]
    longer = wait + more * (1 - wait)
    after = decide_bound(StepTimes(1.0, longer, compute, low, low * spread))[0]
    assert before != "input" or after == "input"


@given(st.floats(1e3, 1e18), st.floats(1e3, 1e15), st.floats(1e-3, 1e6), st.floats(1, 1e3))
def test_more_intensity_never_attains_less(flops, bandwidth, intensity, factor):
    roof = Roof(flops, bandwidth)
    low, high = (roof.attainable_flops_per_s(x) for x in (intensity, intensity * factor))
    assert 0 < low <= high <= flops
    # the corner is at the ridge: below it memory is the limit
    ridge = roof.ridge_flop_per_byte
    assert math.isclose(roof.attainable_flops_per_s(ridge), flops)
    assert math.isclose(roof.attainable_flops_per_s(ridge / factor), flops / factor)
