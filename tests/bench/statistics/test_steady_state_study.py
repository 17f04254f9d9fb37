"""The rules of warm-up and window on pseudo-runs of real series.

`python -m pytest -s -m long` of this file prints the table of docs/statistics.md. The series are of
two cores of a virtual machine with other work on it; a pseudo-run draws blocks of six of their
iterations. The product's own window measures them, on a scripted clock.
"""

import gc
import json
import math
from pathlib import Path
from random import Random
from statistics import fmean, median

import pytest
import samples
import torch
from fakes import QueueingDevice, ScriptedClock

from bench.config import RunConfig, TimeLimits
from bench.records.journal import ignore
from bench.records.verdict import judge
from bench.statistics.steady_state import pace_half_width
from bench.training.team import Team
from bench.training.window import Window

RUNS, BLOCK = 300, 6
LOSS = torch.tensor(1.0)
SERIES = json.loads((Path(__file__).parents[2] / "data/iteration_times_s.json").read_text())


def _recorded(times_s):
    """The median, the first iterations and the others, both relative to it."""
    pace_s = median(times_s[5:])
    first = 4 if times_s[1] > 1.3 * pace_s else 2
    return pace_s, [t / pace_s for t in times_s[:first]], [t / pace_s for t in times_s[first:]]


def _quiet(pace_s, *first):
    rng = Random(1)
    return pace_s, list(first), [1 + 0.01 * rng.gauss(0, 1) for _ in range(60)]


#: By name: seconds of an iteration, and what the first ones and the others take of it.
KINDS = {f"{name}, disturbed": _recorded(times_s) for name, times_s in SERIES.items()} | {
    "quiet, 0.2 s": _quiet(0.2, 4.0, 1.1),
    "quiet, 8 s": _quiet(8.0, 2.5, 1.05),
    "quiet, 5 ms": _quiet(0.005, 100.0, 1.3),
}
SHAPES = {
    "steady": lambda done: 1.0,
    "+30 % that fades over 15": lambda done: 1 + 0.3 * math.exp(-done / 15),
    "throttled by 8 % after 30": lambda done: 1 + 0.08 * (done > 30),
}


def iterations(kind, shape, rng):
    """Yield the seconds of each iteration of one pseudo-run, without an end."""
    pace_s, first, others = KINDS[kind]
    yield from (share * pace_s for share in first)
    done = 0
    while True:
        begin = rng.randrange(len(others))
        for place in range(begin, begin + BLOCK):
            yield others[place % len(others)] * pace_s * SHAPES[shape](done)
            done += 1


def measured(times_s):
    """The product's window, verdict and pace."""
    clock, limits = ScriptedClock(), TimeLimits.of(RunConfig(), "cpu")
    window = Window(clock, QueueingDevice(clock))

    def step():
        clock.pass_s(next(times_s))
        return LOSS

    window.warm_up(step, limits, ignore)
    window.measure(step, Team().plan(limits, window.warmup_times_s))
    found = window.measurement(samples_per_iteration=1, startup_s={})
    verdict = judge(samples.run_record(measurement=found))
    width = pace_half_width(found.steady_times_s)
    return {one.code for one in verdict.findings if one.level == "suspect"}, found.pace_s, width


def study(kind, shape="steady"):
    """Shares of runs called not warm and drifting, median error, share of intervals that hold."""
    rng = Random(2)
    pace_s, _, others = KINDS[kind]
    truth_s = pace_s * median(others) * SHAPES[shape](1000)
    found = [measured(iterations(kind, shape, rng)) for _ in range(RUNS)]
    errors = [abs(time_s / truth_s - 1) for _, time_s, _ in found]
    held = [error <= width for error, (*_, width) in zip(errors, found, strict=True) if width]
    called = [fmean(code in codes for codes, *_ in found) for code in ("not-warm", "drift")]
    # windows of less than six iterations have no interval
    shares = *called, median(errors), fmean(held) if held else math.nan
    print(f"| {kind}, {shape} | " + " | ".join(f"{100 * share:.1f} %" for share in shares) + " |")
    return shares


@pytest.fixture(autouse=True)
def no_collections(monkeypatch):
    """Each of thousands of windows would collect the garbage of the whole test run."""
    for name in ("collect", "freeze", "unfreeze"):
        monkeypatch.setattr(gc, name, lambda: None)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_sound_runs_are_not_suspect_and_their_pace_is_near_the_truth(kind):
    not_warm, drift, error, held = study(kind)
    assert not_warm <= 0.03
    assert drift <= 0.03
    assert error <= (0.04 if "disturbed" in kind else 0.02)
    assert math.isnan(held) if "8 s" in kind else 0.88 <= held <= 0.99


@pytest.mark.long
@pytest.mark.parametrize(
    ("shape", "most"), list(zip(list(SHAPES)[1:], (0.009, 0.005), strict=True))
)
def test_a_quiet_run_that_changes_at_first_has_the_pace_that_lasts(shape, most):
    not_warm, drift, error, _ = study("quiet, 0.2 s", shape)
    assert (not_warm, drift) == (0, 0)
    assert error <= most
