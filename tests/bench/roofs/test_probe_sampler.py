"""Turns, time and giving up, on a scripted clock; and the rule from repetitions to a roof."""

import pytest
import torch
from scripted_gpu import QueueingDevice

from bench import roofs
from bench.records import CeilingSample
from bench.roofs import ProbeGroup, ProbeSampler
from bench.roofs.roof_probes import MINIMUM_REPETITIONS, Probe, best_sample, sustained_rate

GROUP_S = 0.05


class Script:
    """Probes whose launches take scripted seconds, and a diary of what was launched when."""

    def __init__(self, monkeypatch, free_bytes=1000):
        self.device = QueueingDevice()
        self.clock = self.device.clock
        self.diary = []
        self.lines = []
        monkeypatch.setattr(roofs, "free_bytes", lambda device: free_bytes)

    def probe(self, name, seconds, work=1000, operand_bytes=0):
        """A probe that takes `seconds` a launch: a number, or a function of the launch's index."""
        count = iter(range(10**9))

        def launch():
            self.diary.append(name)
            cost = seconds(next(count)) if callable(seconds) else seconds
            self.device.queue(cost)

        return Probe(name, "fp32", work, operand_bytes, lambda: launch)

    def sample(self, *groups, budget_s=10.0):
        sampler = ProbeSampler(self.device, self.clock, GROUP_S, self.lines.append)
        started = self.clock()
        sampler.sample(groups, budget_s)
        return self.clock() - started

    def turns(self):
        """The diary with the launches of one turn as one."""
        return [a for a, b in zip(self.diary, [None, *self.diary], strict=False) if a != b]


@pytest.fixture
def script(monkeypatch):
    return Script(monkeypatch)


def group(title, *probes):
    return ProbeGroup(title, probes)


def test_rates_are_the_work_over_the_scripted_time_of_repetitions_of_the_group_time(script):
    one = group("fp32", script.probe("a", lambda index: 5.0 if index == 0 else 2.0**-9, 3 * 2**20))
    assert 20.0 <= script.sample(one, budget_s=20.0) <= 20.2
    [a] = one.probes
    assert len(a.rates) > 100
    assert a.rates == pytest.approx([3 * 2**29] * len(a.rates), rel=1e-9)  # but for a slow first
    assert a.launches * 2.0**-9 == pytest.approx(GROUP_S, rel=0.05)
    assert script.lines[:2] == ["a: 1.6 GFLOP/s", "round 1: fp32 1.6 GFLOP/s"]


def test_one_launch_before_each_repetition_is_not_timed(script):
    """A neighbour's probe has left its own data in the caches: the first launch pays for that."""
    seen = []

    def seconds(index):
        seen.append(script.clock())
        return 0.03 if len(seen) < 2 or seen[-1] != seen[-2] else 0.02

    one = group("fp32", script.probe("a", seconds, work=1))
    script.sample(one, budget_s=2.0)
    assert max(one.probes[0].rates) == min(one.probes[0].rates)


def test_probes_of_all_roofs_take_turns(script):
    first = group("fp32", script.probe("a", 0.03), script.probe("b", 0.03))
    second = group("memory", script.probe("m", 0.03))
    script.sample(first, second, budget_s=3.0)
    assert script.turns()[:9] == ["a", "m", "b"] * 3


def test_a_slower_probe_is_given_up_after_two_repetitions_and_one_close_to_the_leader_stays(script):
    seconds = {"slow": 0.0301, "close": 0.0260, "fast": 0.0250}
    one = group("fp32", *(script.probe(*each) for each in seconds.items()))
    script.sample(one)
    slow, close, fast = one.probes
    assert len(slow.rates) == 2
    assert not slow.live
    assert slow.launch is None  # its operands are freed
    assert len(fast.rates) > 50
    assert abs(len(close.rates) - len(fast.rates)) <= 1
    assert [sample.probe for sample in one.samples()] == ["slow", "close", "fast"]


def test_without_time_each_roof_still_has_its_least_repetitions(script):
    first = group("fp32", script.probe("a", 0.02), script.probe("b", 0.02))
    second = group("memory", script.probe("m", 0.02))
    script.sample(first, second, budget_s=0.0)
    assert [len(candidate.rates) for candidate in first.probes] == [MINIMUM_REPETITIONS, 0]
    assert len(second.probes[0].rates) == MINIMUM_REPETITIONS
    assert "b left out: the time was spent" in first.notes


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (torch.OutOfMemoryError("CUDA out of memory.\nmore"), "CUDA out of memory."),
        (NotImplementedError('"addmm" not for Half'), '"addmm" not for Half'),
    ],
)
def test_a_probe_that_cannot_run_is_left_out_with_a_note(script, error, reason):
    def prepare():
        raise error

    def failing():
        return Probe("huge", "fp32", 1, 0, prepare)

    alone = group("fp16", failing())
    assert script.sample(alone) == 0
    one = group("fp32", failing(), script.probe("a", 0.02))
    script.sample(one, budget_s=1.0)
    note = f"huge left out: {reason}"
    assert alone.notes == one.notes == [note]
    assert note in script.lines
    assert one.probes[0].rates == []
    assert len(one.probes[1].rates) > MINIMUM_REPETITIONS


def test_memory_that_runs_out_later_ends_the_probe_and_keeps_its_rates(script):
    def seconds(index):
        if index > 20:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return 0.02

    one = group("fp32", script.probe("a", seconds), script.probe("b", 0.02))
    script.sample(one, budget_s=3.0)
    assert one.notes == ["a left out: CUDA out of memory."]
    assert 2 < len(one.probes[0].rates) < len(one.probes[1].rates)


def test_operands_over_a_quarter_of_free_memory_and_launches_too_long_are_left_out(script):
    one = group(
        "fp32",
        script.probe("fits", 0.001, work=1, operand_bytes=250),
        script.probe("big", 0.001, work=1, operand_bytes=251),
        script.probe("long", 0.3, work=300),
    )
    script.sample(one, budget_s=1.0)
    assert set(script.diary) == {"fits"}
    assert one.notes == [
        "big left out: its operands need over a quarter of free memory",
        "long left out: one launch takes over 0.25 s",
    ]


def sample(name, *rates):
    return CeilingSample(probe=name, math_mode="fp32", quantity="flops_per_s", rates=rates)


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ((7.0,), 7.0),
        ((1.0, 2.0), 2.0),
        ((4.0, 1.0, 3.0, 2.0), 3.0),
        ((8.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0), 6.0),
        ((100.0, 100.0, 100.0, 100.0, 160.0), 100.0),  # a burst in one of five
        ((100.0, 40.0, 100.0, 100.0, 30.0, 50.0, 100.0, 20.0), 100.0),  # interference in half
    ],
)
def test_sustained_rate_is_the_upper_quartile_by_nearest_rank(rates, expected):
    assert sustained_rate(rates) == expected


def test_the_best_sample_is_of_the_highest_sustained_rate_of_enough_repetitions():
    steady = sample("steady", *[10.0] * MINIMUM_REPETITIONS)
    bursting = sample("bursting", *[9.0] * 7, 99.0)
    few = sample("few", *[99.0] * (MINIMUM_REPETITIONS - 1))
    assert best_sample([bursting, few, steady]) is steady
    assert best_sample([few]) is None
