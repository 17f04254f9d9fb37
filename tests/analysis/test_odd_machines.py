"""A machine that is unlike the others of its kind is named, and none by chance."""

import factories as make
import numpy as np
import pytest
from observed import observation

from analysis.comparison.odd_machines import fleets, odd_in
from analysis.findings import KINDS
from analysis.runs.placed import place_runs
from analysis.statistics.outlying import chances_of_outlying


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
    return list(KINDS["odd machine"](runs))


def test_a_machine_that_is_slow_in_amp_is_named_in_amp_alone():
    (found,) = find(kind())
    assert found.headline.startswith("node-3 is 4.")
    assert "% slower than 11 other machines of its kind in resnet18 amp batch 10." in found.headline
    assert "(p < 0.001)" in found.evidence[0]
    assert found.evidence[1].startswith("like the others in: resnet18 fp32 batch 10 (")
    assert found.runs == ("amp-3-0", "amp-3-1")
    assert found.advice.startswith("Its runs do not say with which software they ran: look at")
    (line,) = odd_in("B", kind(), "throughput_images_per_s")
    assert line.startswith("odd in B: node-3 has 4")


@pytest.mark.parametrize("slow", [1.0, 0.985])
def test_nothing_is_odd_where_none_is_or_where_it_is_of_no_consequence(slow):
    """1.5 % is surely different where machines scatter by 0.1 %, and below the threshold."""
    assert find(kind(slow)) == []
    (amp,) = (one for one in fleets(kind(slow)) if "amp" in one.label)
    assert (amp.chances[3] < 0.01) == (slow < 1)


def test_few_machines_other_devices_and_repeats_of_one_are_no_kind():
    assert fleets(kind(machines=3)) == []
    assert (
        fleets([observation(f"r{n}", 100 + n, machine="GPU-1", env=f"e{n}") for n in range(9)])
        == []
    )
    devices = [observation(f"r{n}", 100 + n, env=f"e{n}", device=f"GPU {n}") for n in range(9)]
    assert fleets(devices) == []


def gpus(limits, steps_s):
    return place_runs(
        [
            make.run_record(
                f"run-{number}",
                step_s=step_s,
                environment=make.environment(
                    device=make.gpu(uuid=f"GPU-{number}", power_limit_w=limit)
                ),
            )
            for number, (limit, step_s) in enumerate(zip(limits, steps_s, strict=True))
        ],
        [],
    )


def test_machines_of_one_label_are_told_apart_by_uuid_and_what_differs_is_named():
    (found,) = find(gpus([700.0] * 5 + [400.0], [1.0, 1.001, 0.999, 1.002, 0.998, 1.3]))
    assert found.headline.startswith("lab (GPU-5) is 23")
    assert found.advice == "It differs from all the others in power limit 400 W (others: 700 W)."
    (found,) = find(gpus([700.0] * 6, [1.0, 1.001, 0.999, 1.002, 0.998, 1.3]))
    assert "not differ from all the others in torch, driver, variables, power limit" in found.advice


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
