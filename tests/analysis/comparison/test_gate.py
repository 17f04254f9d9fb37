"""`mlproject compare` as a gate: what fails it, what it says, and how often it is wrong."""

import re

import factories as make
import numpy as np
import pytest
from observed import LONG, invoke, observation, repeated
from test_compare_command import measured, on_disk

import commands.compare
from analysis.comparison import METRICS, compare_pairs, pair_runs
from analysis.comparison.judgement import judge_gate
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


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("options", "fails_on"),
    [
        ((), ALL),
        (("--fail-on", "slower,missing,crashed"), ALL),
        (("--fail-on", "worse", "--fail-on", "missing, crashed"), ALL),
        (("--fail-on", "crashed"), {"crashed"}),
        (("--fail-on", "none"), set()),
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
        (many("b", range(25)), "25 configurations"),
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
