"""The noise floor of a machine: its scatter, and the smallest change that it leaves to be found."""

import json
from datetime import timedelta

import factories as make
import numpy as np
import pytest
from observed import observation, repeated
from test_analysis_commands import invoke, records_on_disk

import commands.analyse.compare
from analysis.comparison import METRICS, compare_pairs
from analysis.comparison.noise_floor import (
    noise_floor,
    noise_sentences,
    noise_table,
    smallest_change,
)
from analysis.runs.groups import Group
from analysis.runs.placed import place_runs
from bench.errors import UserError

THROUGHPUT = METRICS["throughput_images_per_s"]


def noisy(name, count, deviation, seed, **settings):
    rng = np.random.default_rng(seed)
    return repeated(name, 100 * np.exp(deviation * rng.standard_normal(count)), **settings)


@pytest.mark.slow
@pytest.mark.parametrize(("count", "deviation"), [(3, 0.01), (5, 0.005), (20, 0.03)])
def test_the_smallest_change_is_found_in_80_of_100_comparisons(count, deviation):
    change = smallest_change(deviation, count)
    rng = np.random.default_rng(3)
    pairs = []
    for number in range(600):
        rates = 100 * np.exp(deviation * rng.standard_normal((2, count)))
        pairs.append(
            (
                Group(tuple(repeated(f"a{number}", rates[0]))),
                Group(tuple(repeated(f"b{number}", rates[1] / (1 + change)))),
            )
        )
    found = compare_pairs(pairs, THROUGHPUT, correction="none")
    share = sum(one.word == "slower" for one in found) / len(found)
    assert share == pytest.approx(0.8, abs=0.05)


def test_more_repeats_and_fewer_configurations_find_smaller_changes():
    by_repeats = [smallest_change(0.01, count) for count in (3, 5, 10, 20)]
    assert by_repeats == sorted(by_repeats, reverse=True)
    assert smallest_change(0.01, 5, among=10) > smallest_change(0.01, 5)
    assert smallest_change(0.0, 3, threshold=0.05) == pytest.approx(0.05)


def test_scatter_is_pooled_over_the_configurations_of_a_machine():
    runs = [
        *repeated("a", np.exp([-0.01, 0, 0.01]), env="one"),
        *repeated("b", np.exp([-0.03, 0, 0.03]), env="one", batch_size=20),
        *repeated("c", [1.0, 1.0], env="other"),
        observation("d", batch_size=40),
    ]
    floor = noise_floor(runs, THROUGHPUT)
    assert [one.deviation for one in floor.configurations] == pytest.approx([0.01, 0.03, 0])
    one, other = floor.machines
    assert one.deviation == pytest.approx(np.sqrt((2 * 0.01**2 + 2 * 0.03**2) / 4))
    # chi-squared with 4 degrees of freedom: 0.4844 and 11.143
    assert (one.low / one.deviation, one.high / one.deviation) == pytest.approx(
        (np.sqrt(4 / 11.143), np.sqrt(4 / 0.4844)), rel=1e-4
    )
    assert (one.env, one.configurations, one.repeats, other.env) == ("one", 2, 6, "other")
    assert floor.single == (Group((runs[-1],)),)
    assert one.changes[0] == smallest_change(one.deviation, 3, among=4)
    text = noise_sentences(floor)
    assert "found in 80 % of comparisons of 4 configurations" in text[0]
    assert text[1:] == [
        "halves: four runs of one configuration would be needed",
        "one repeat, which shows no scatter: lab resnet18 fp32 batch 40",
    ]
    assert [row[0] for row in noise_table(floor).cells] == [
        "one resnet18 fp32 batch 10",
        "one resnet18 fp32 batch 20",
        "other resnet18 fp32 batch 10",
        "one all configurations",
        "other all configurations",
    ]
    assert noise_table(floor).cells[0][-1] == "-"


def test_halves_of_noise_are_rarely_called_different():
    runs = noisy("a", 10, 0.01, seed=1) + noisy("b", 10, 0.01, seed=2, batch_size=20)
    floor = noise_floor(runs, THROUGHPUT, threshold=1e-9, correction="none")
    (machine,) = floor.machines
    assert machine.halvings == 200
    assert 0 < machine.called_different < 30  # 5 % for either configuration, both directions
    assert machine.called_different >= max(one.called_different for one in floor.configurations)
    assert floor.failed <= machine.called_different
    assert noise_floor(runs, THROUGHPUT).failed == 0


def test_repeats_of_two_kinds_are_called_different():
    """Half of the runs are 30 % slower, as where two machines carry one label."""
    wobble = np.exp([-0.001, 0.001])
    floor = noise_floor(repeated("a", [*(100 * wobble), *(70 * wobble)]), THROUGHPUT)
    assert floor.configurations[0].called_different > 30


def test_a_machine_that_changed_between_repeats_is_named():
    records = [
        make.run_record(f"r{n}", step_s=step_s, settings={"repeat": n + 1},
                        created=make.NOON + timedelta(minutes=n))
        for n, step_s in enumerate([1, 1.001, 0.999, 1.1, 1.101, 1.099])
    ]  # fmt: skip
    text = noise_sentences(noise_floor(place_runs(records, []), THROUGHPUT))
    assert text[-1].startswith("later against earlier half: lab resnet18 fp32 batch 10 is slower")


def test_a_noise_floor_on_the_command_line(tmp_path):
    records = [
        make.run_record(f"r{n}", step_s=step_s, settings={"repeat": n + 1})
        for n, step_s in enumerate([0.999, 1, 1.001, 1.0005, 0.9995])
    ]
    side = f"records={records_on_disk(tmp_path / 'records', *records)}"
    done = invoke(commands.analyse.compare, "--aa", side)
    assert done.return_value == 0
    assert "0.079 %" in done.output
    assert "in 0 of 200 comparisons something was called slower" in done.output
    done = invoke(commands.analyse.compare, "--aa", side, "--format", "json", "--out", tmp_path)
    facts = json.loads(done.output)
    assert facts["change_at_repeats"] == [3, 5, 10, 20]
    assert facts["machines"][0]["repeats"] == 5
    assert (
        (tmp_path / "noise_floor.csv").read_text().startswith("env,configuration,repeats,scatter")
    )
    for words, message in (
        (("--aa", side, side), "aa: takes one side"),
        (("--aa", side, "--price", "lab=1/h"), "aa: the noise floor has no cost"),
        ((side,), "B is missing: compare"),
        (("--aa", f"{side},run=r1"), "none of 1 configuration has two repeats"),
        (("--aa", side, "--metric", "energy_j"), "none of 5 runs has a energy_j"),
    ):
        with pytest.raises(UserError, match=message) as refusal:
            invoke(commands.analyse.compare, *words)
        assert "\n" not in str(refusal.value)
