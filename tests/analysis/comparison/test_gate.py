"""`mlproject compare` as a gate: what fails it, what it says, and how often it is wrong."""

import json
import re

import factories as make
import numpy as np
import pytest
from observed import LONG, invoke, observation, records_on_disk, repeated
from test_compare_command import measured, on_disk

import commands.compare
from analysis.comparison import METRICS, compare_pairs, pair_runs
from analysis.comparison.judgement import comparable, judge_gate
from analysis.comparison.shown import comment

THROUGHPUT = METRICS["throughput_images_per_s"]


def crashed(name, batch, **known):
    """A run that was killed before its machine was known."""
    return make.failed_record(f"{name}{batch}", settings={"batch_size": batch}, **known)


UNKNOWN = {"environment": None}
BOTH = measured("a", 10) + measured("a", 20)
#: The runs of B, and what is wrong with them.
CASES = {
    "same": (measured("b", 10) + measured("b", 20), set()),
    "faster": (measured("b", 10) + measured("b", 20, 0.9), set()),
    "slower": (measured("b", 10) + measured("b", 20, 1.1), {"slower"}),
    "crashed": ([*measured("b", 10), crashed("b", 20, **UNKNOWN)], {"crashed"}),
    "crashed on a known machine": ([*measured("b", 10), crashed("b", 20)], {"crashed"}),
    "all crashed": ([crashed("b", 10, **UNKNOWN), crashed("b", 20)], {"crashed"}),
    "another one ran": ([crashed("b", 10), *measured("b", 40)], {"crashed", "missing"}),
    "missing": (measured("b", 10), {"missing"}),
    "single run": ([*measured("b", 10), *measured("b", 20)[:1]], set()),
}
ALL = {"slower", "crashed", "missing"}


TORCH = make.environment(torch="2.99.0")
OTHER = make.environment(device=make.device(name="Other GPU"))


@pytest.mark.parametrize(
    ("unlike", "across", "because"),
    [
        (TORCH, ("--across", "versions"), r"torch [\d.]+ -> 2.99.0"),
        (OTHER, ("--across", "machine"), "device .* -> Other GPU"),
    ],
)
def test_another_machine_or_version_is_not_slower_but_not_comparable(
    tmp_path, unlike, across, because
):
    sides = on_disk(tmp_path, measured("a"), measured("b", step_s=1.5, environment=unlike))
    done = invoke(commands.compare, *sides, "--format", "json")
    [facts] = json.loads(done.output)["comparisons"]
    assert (done.return_value, facts["verdict"]) == (4, "not comparable")
    assert re.match(
        f"{because}: measure both alike, or compare {' '.join(across)}", facts["because"]
    )
    assert facts["ratio"] == pytest.approx(1 / 1.5, rel=1e-3)
    words = invoke(commands.compare, *sides).output
    assert words.splitlines()[-1] == "The gate decides nothing: of 1 configuration 1 not comparable"
    assert invoke(commands.compare, *sides, "--fail-on", "none").return_value == 0
    assert invoke(commands.compare, *sides, *across).return_value == 1


def test_a_machine_that_both_sides_name_is_meant(tmp_path):
    machines = [make.environment(label=name) for name in ("one", "two")]
    runs = [
        run for n, one in zip("ab", machines, strict=True) for run in measured(n, environment=one)
    ]
    folder = records_on_disk(tmp_path / "r", *runs)
    sides = [f"records={folder},env={name}" for name in ("one", "two")]
    assert invoke(commands.compare, *sides).return_value == 0


def test_one_machine_against_another_of_its_kind_is_not_comparable():
    a, b = (
        [observation(f"{side}{n}", rate, machine=side) for n, rate in enumerate((9.0, 10.0))]
        for side in "ab"
    )
    found = compare_pairs(pair_runs(a, b, THROUGHPUT.name).pairs, THROUGHPUT)
    assert [one.judgement for one in comparable(found)] == ["not comparable"]
    assert comparable(found, ["machine"]) == found


@pytest.mark.parametrize(
    ("case", "options", "fails_on"),
    [
        *((case, (), ALL) for case in CASES),
        ("another one ran", ("--fail-on", "slower,missing,crashed"), ALL),
        ("slower", ("--fail-on", "worse", "--fail-on", "missing, crashed"), ALL),
        *((case, ("--fail-on", "crashed"), {"crashed"}) for case in ("slower", "another one ran")),
        ("another one ran", ("--fail-on", "none"), set()),
    ],
)
def test_a_gate_fails_on_what_it_is_asked_for(tmp_path, case, options, fails_on):
    b, bad = CASES[case]
    found = bad & fails_on
    done = invoke(commands.compare, *on_disk(tmp_path, BOTH, b), *options)
    assert done.return_value == bool(found)
    last = done.output.splitlines()[-1]
    assert set(re.findall(r"\d (slower|crashed|missing)", last.split(";")[0])) >= found
    assert last.startswith("The gate fails: " if found else "The gate passes: of 2 configurations")


def test_a_run_that_ended_well_without_the_metric_is_missing_not_crashed():
    a = [*repeated("a", [100, 101]), *repeated("c", [100, 101], batch_size=20)]
    b = [*repeated("b", [100, 101]), observation("d", batch_size=20, metrics={})]
    pairing = pair_runs(a, b, THROUGHPUT.name)
    assert [one.verdict for one in pairing.alone] == ["only in A"]


def judged(a, b, threshold=0.02):
    pairing = pair_runs(a, b, THROUGHPUT.name)
    found = compare_pairs(pairing.pairs, THROUGHPUT, threshold=threshold)
    return found, pairing, judge_gate(found, pairing)


def as_comment(a, b):
    found, pairing, gate = judged(a, b)
    return comment(found, pairing, gate, sides=("baseline=main", "campaign=pr_7"), threshold=0.02)


def many(side, numbers, slow=()):
    rates = np.array([100, 100.1, 99.9])
    return [
        run
        for n in numbers
        for run in repeated(f"{side}{n}", rates * (0.9 if n in slow else 1), batch_size=n)
    ]


@pytest.mark.parametrize(
    ("b", "folded"),
    [
        (many("b", range(20), slow=[5]), None),  # a short table stays whole
        (many("b", range(25)), "25 other configurations"),
        (many("b", range(25), slow=[5]), "24 other configurations"),
        (many("b", range(25), slow=range(22)), "22 failing configurations"),
    ],
)
def test_a_comment_folds_above_20_rows(b, folded):
    text = as_comment(many("a", range(len(b) // 3)), b)
    assert ("<details>" in text) == bool(folded)
    assert f"<summary>{folded}</summary>" in text if folded else text.count("| lab") == 20
    assert text.count("<details>") == text.count("</details>")


def simulated(seed, deviation):
    """A and B of four configurations, ten repeats each, that differ in nothing but noise."""
    rng = np.random.default_rng(seed)
    return tuple(
        [
            run
            for batch in range(4)
            for run in repeated(
                f"{side}{batch}",
                100 * np.exp(deviation * rng.standard_normal(10)),
                batch_size=batch,
            )
        ]
        for side in "ab"
    )


@pytest.mark.slow
@pytest.mark.parametrize("deviation", [0.005, LONG(0.03)])
def test_a_gate_passes_a_against_a(deviation):
    """The threshold leaves noise no chance; without one it may fail 2.5 of 100 on B's bad side."""
    fails = {0.02: 0, 1e-9: 0}
    for seed in range(200):
        sides = simulated(seed, deviation)
        for threshold in fails:
            fails[threshold] += bool(judged(*sides, threshold)[2].failed)
    assert fails[0.02] == 0
    assert fails[1e-9] / 200 <= 0.05
