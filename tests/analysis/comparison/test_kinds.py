"""A machine that is unlike the others of its kind is named, and none by chance."""

from dataclasses import replace

import numpy as np
import pytest
from observed import observation

from analysis.comparison import METRICS, compare_pairs, pair_runs
from analysis.comparison.machines import same_kinds
from analysis.comparison.shown import notes
from analysis.findings import conclusions
from bench.statistics.series import chances_of_outlying


def kind(slow=0.96, machines=12, **changes):
    """Machines that scatter by 0.1 %, two repeats each; the fourth is slow in amp alone."""
    rng = np.random.default_rng(5)
    return [
        observation(
            f"{precision}-{machine}-{repeat}",
            rate * (slow if precision == "amp" and machine == 3 else 1)
            * np.exp(0.001 * rng.standard_normal()),
            env=f"node-{machine}",
            precision=precision,
            **changes,
        )
        for precision, rate in (("fp32", 400.0), ("amp", 2800.0))
        for machine in range(machines)
        for repeat in range(2)
    ]  # fmt: skip


def find(runs):
    return list(conclusions("odd machine", runs))


def test_a_machine_that_is_slow_in_all_is_one_finding_and_one_note():
    """4 % in amp, and 2.5 % in fp32 of the same machine."""
    runs = [
        replace(run, metrics={name: 0.975 * value for name, value in run.metrics.items()})
        if run.env == "node-3" and run.precision == "fp32"
        else run
        for run in kind()
    ]
    (found,) = find(runs)
    assert "in resnet18 amp batch 10 and 1 more (p" in found.headline
    assert len(found.runs) == 4
    b = [replace(run, name=f"b-{run.name}", campaign="b") for run in runs]
    pairing = pair_runs(kind(slow=1.0), b, "throughput_images_per_s")
    comparisons = compare_pairs(pairing.pairs, METRICS[pairing.metric])
    (line,) = (line for line in notes(comparisons, pairing) if line.startswith("odd"))
    assert line.startswith("odd in B: node-3 has 4")
    assert line.endswith("in resnet18 amp batch 10 and 1 more")


@pytest.mark.parametrize("slow", [1.0, 0.985])
def test_nothing_is_odd_where_none_is_or_where_it_is_of_no_consequence(slow):
    """1.5 % is surely different where machines scatter by 0.1 %, and below the threshold."""
    assert find(kind(slow)) == []
    (fp32, amp) = (one.p_value for one in same_kinds(kind(slow)) if one.machine == "node-3")
    assert fp32 > 0.05
    assert (amp < 0.01) == (slow < 1)


def test_a_third_may_be_odd_without_hiding_each_other():
    values = [0.0, 0.1, -0.1, 0.05, -0.05, 0.02, 3.0, 3.1, -0.02]
    chances = chances_of_outlying(values)
    assert [place for place, chance in enumerate(chances) if chance < 0.05] == [6, 7]
    assert min(chances_of_outlying([1.0, 1.0, 1.0, 1.0])) > 0.05
    with pytest.raises(ValueError, match="at least 4"):
        chances_of_outlying([1.0, 2.0, 3.0])


@pytest.mark.parametrize("machines", [4, 12, 39])
@pytest.mark.slow
def test_in_5_of_100_kinds_without_an_odd_machine_one_is_called_so(machines):
    """With one to five repeats a machine, which scatter three times as much as machines do."""
    rng = np.random.default_rng(6)
    alarms = 0
    for _ in range(1000):
        counts = rng.integers(1, 6, machines)
        errors = 0.003 / np.sqrt(counts)
        values = 0.001 * rng.standard_normal(machines) + errors * rng.standard_normal(machines)
        alarms += min(chances_of_outlying(values, errors)) <= 0.05
    assert 0.03 <= alarms / 1000 <= 0.075
