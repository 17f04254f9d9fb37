"""Pairs that agree in all but one thing, judged without being fooled by noise or by many tries."""

import factories as make
import numpy as np
import pytest
from observed import observation, repeated

from analysis.comparison import METRICS, compare_pairs, compared_metric, pair_runs
from analysis.comparison.shown import comparison_table, covered, in_doubt
from analysis.runs.place import place, place_runs
from bench.errors import UserError
from bench.records import Finding
from bench.statistics.ratios import mean_ratio

THROUGHPUT = METRICS["throughput_images_per_s"]


def compare(a, b, metric=THROUGHPUT, **options):
    return compare_pairs(pair_runs(a, b, metric.name).pairs, metric, **options)


def batches(side, *sizes, **settings):
    return [observation(f"{side}{size}", batch_size=size, **settings) for size in sizes]


def recorded_run(name, label, asked, ran):
    resolved = make.resolved(**{"batch_size": 10, **ran})
    return make.run_record(
        name, settings=asked, resolved=resolved, environment=make.environment(label=label)
    )


BF16 = {"math_mode": "bf16", "autocast_dtype": "bf16", "depthwise_fp32": True}
FP16 = {"math_mode": "fp16", "autocast_dtype": "fp16", "backend": "cuda"}
AMP, ON_CPU = {"precision": "amp"}, {"backend": "cpu"}


@pytest.mark.parametrize(
    ("a", "b", "precision", "differs"),
    [  # settings asked for and ran with, on one machine and on another
        (({}, {}), ({}, {"threads": 8}), "fp32", "threads 4 -> 8"),
        ((ON_CPU, {}), ({}, {"allocator": "retain"}), "fp32",
         "allocator system -> retain"),
        ((AMP, BF16), (AMP, FP16), "amp-bf16 -> amp-fp16",
         "backend cpu -> cuda"),
        ((AMP, BF16), (AMP, {}), "amp-bf16 -> fp32 (amp asked for)", ""),
        ((AMP, BF16), ({"precision": "amp-bf16"}, BF16), "amp-bf16", ""),
    ],
)  # fmt: skip
def test_machines_are_paired_by_what_was_asked_and_rows_say_what_ran(a, b, precision, differs):
    ours = place_runs([recorded_run("a", "one", *a)], [])
    # a second configuration of B is no counterpart
    other = recorded_run("c", "other", {**b[0], "compile": "default"}, b[1])
    theirs = place_runs([recorded_run("b", "other", *b), other], [])
    pairing = pair_runs(ours, theirs, THROUGHPUT.name)
    assert [(x.names, y.names) for x, y in pairing.pairs] == [(("a",), ("b",))]
    (found,) = compare_pairs(pairing.pairs, THROUGHPUT)
    assert found.label == f"one -> other resnet18 (compile none) {precision} batch 10"
    assert found.also_differs({"env", "precision", "depthwise_fp32"}) == differs
    row = comparison_table([found], pairing)
    assert ("ran with" in [column.heading for column in row.visible]) == (
        bool(differs) and "backend" not in pairing.differing
    )


def of_threads(name, ran, asked):
    """One that asked for nothing, and one of 4 threads."""
    records = [(name, {}, {"threads": ran}), (f"{name}4", asked, {"threads": 4})]
    return place_runs([recorded_run(n, "lab", *own) for n, *own in records], [])


@pytest.mark.parametrize(
    ("a", "b", "differing", "pairs", "alone"),
    [
        # no batch size is paired with another
        (batches("a", 32, 64), batches("b", 64, 128, **AMP), ("precision",), ["a64 b64"],
         ["only in A: a32 (B ran with batch_size 64)",
          "only in B: b128 (A ran with batch_size 32)"]),
        # on one machine only what ran pairs
        (of_threads("a", 1, {"threads": 4}), of_threads("b", 2, {}), (), ["a4 b4"],
         ["only in A: a (B ran with threads 2)", "only in B: b (A ran with threads 1)"]),
        # repeats stand together
        (repeated("a", [1, 2, 3]), repeated("b", [1, 2], env="other"), ("env",),
         ["a-1 a-2 a-3 b-1 b-2"], []),
        # a value of both sides distinguishes nothing, two of one side are no repeats
        (batches("a", 1, **AMP), [*batches("b", 1, **AMP), *batches("c", 1)], (), ["a1 b1"],
         ["only in B: c1 (A ran with precision amp)"]),
        (batches("a", 1), [*batches("b", 1, **AMP), *batches("c", 1, precision="tf32")],
         ("precision",), ["a1 b1", "a1 c1"], []),
    ],
)  # fmt: skip
def test_configurations_are_paired_where_all_that_is_shared_agrees(a, b, differing, pairs, alone):
    found = pair_runs(a, b, THROUGHPUT.name)
    assert found.differing == differing
    assert [" ".join((*x.names, *y.names)) for x, y in found.pairs] == pairs
    lines = [f"{one.verdict}: {' '.join(one.group.names)} ({one.because})" for one in found.alone]
    assert lines == alone


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        (batches("a", 4, 8), batches("b", 16, **AMP), "the nearest two differ in batch_size: "),
        ([observation("x")], [observation("x")], "run x is in A and in B"),
        (
            [place(make.run_record("x"), [])],
            [place(make.run_record("x"), [], run_id="id-of-x")],
            "run id-of-x is in A and in B",
        ),
        ([], [observation("b")], r"A: none of 0 runs has a .* \(no run matches\)"),
        (
            [observation("a", arch="vgg16"), observation("a2", precision="amp")],
            [observation("b", outcome="oom", reason="no memory", metrics={})],
            r"B: none of 1 run .*b \(lab resnet18 fp32 batch 10\): oom, no memory",
        ),
        (
            [observation("a", arch="vgg16"), observation("a2", precision="amp")],
            [observation("b", arch="vgg16", precision="amp")],
            "the nearest two differ in",
        ),
        (
            [observation("a", seed=1), observation("a2", env="b", arch="vgg16", seed=1)],
            [observation("b", arch="vgg16", seed=2)],
            "the nearest two differ in arch: choose",
        ),
    ],
)
def test_what_cannot_be_compared_is_one_line(a, b, message):
    with pytest.raises(UserError, match=message) as refusal:
        pair_runs(a, b, THROUGHPUT.name)
    assert "\n" not in str(refusal.value)
    with pytest.raises(UserError, match="metric='batch_size': compare one of throughput"):
        compared_metric("batch_size")


@pytest.mark.parametrize(
    ("ratio", "spread", "word"),
    [
        (1.10, 0.01, "faster"),
        (0.90, 0.01, "slower"),
        (1.001, 0.003, "tie"),
        (1.02, 0.003, "undecided"),  # right on the threshold
        (1.10, 0.10, "undecided"),
        (1.0, 0.05, "undecided"),  # no sign of a change is no proof of a tie
    ],
)
def test_each_verdict_has_its_interval(ratio, spread, word):
    """Student's t of four degrees of freedom, 2.776, by hand."""
    wobble = np.exp(spread * np.array([-1.0, 0.0, 1.0]))
    (found,) = compare(repeated("a", 100 * wobble), repeated("b", 100 * ratio * wobble))
    low, high = found.estimate.interval
    half = 2.77645 * spread * np.sqrt(2 / 3)
    assert np.log([low, high]) == pytest.approx(np.log(ratio) + half * np.array([-1, 1]), rel=1e-4)
    assert found.word == word
    assert {
        "faster": low > 1.02,
        "slower": high < 1 / 1.02,
        "tie": low > 1 / 1.02 and high < 1.02,
        "undecided": True,
    }[word]


def test_suspect_runs_are_named_and_invalid_ones_left_out():
    busy, broken = (
        Finding(code="code", level=level, message=f"{level} for a reason")
        for level in ("suspect", "invalid")
    )
    a = repeated("a", [100, 101, 102])
    b = [
        *repeated("b", [100, 101, 102], precision="amp"),
        observation("busy", 10, precision="amp", findings=(busy,)),
        observation("broken", 1, precision="amp", findings=(broken,)),
    ]
    pairing = pair_runs(a, b, THROUGHPUT.name)
    assert pairing.pairs[0][1].names == ("b-1", "b-2", "b-3", "busy")
    (left_out,) = pairing.left_out
    assert left_out.startswith("broken")
    assert "invalid for a reason" in left_out
    (doubt,) = in_doubt(compare_pairs(pairing.pairs, THROUGHPUT))
    assert "1 of 4 runs of B" in doubt
    assert "busy (suspect for a reason)" in doubt
    with pytest.raises(UserError, match="invalid for a reason"):
        pair_runs(a, b[-1:], THROUGHPUT.name)


@pytest.mark.parametrize(
    ("metric", "theirs", "judgement", "word"),
    [
        ("iteration_time_ms_p50", 80, "better", "faster"),
        ("iteration_time_ms_p50", 120, "worse", "slower"),
        ("attained_gflops", 80, "worse", "slower"),
        ("peak_memory_mb", 80, "better", "better"),
        ("peak_memory_mb", 120, "worse", "worse"),
    ],
)
def test_less_is_better_where_it_is(metric, theirs, judgement, word):
    sides = (
        [observation(f"{side}{x}", metrics={metric: rate * x}) for x in (0.999, 1.0, 1.001)]
        for side, rate in (("a", 100), ("b", theirs))
    )
    (found,) = compare(*sides, METRICS[metric])
    assert found.estimate.ratio == pytest.approx(theirs / 100)
    assert (found.judgement, found.word) == (judgement, word)


SINGLE = "one run on each side: repeat-to-repeat variance unknown"
SUMMED = "repeats summed up without their scatter: repeat-to-repeat variance unknown"


@pytest.mark.parametrize(
    ("count", "because"),
    [(1, SINGLE), (3, SUMMED)],
)
def test_what_has_no_scatter_decides_nothing_and_says_why(count, because):
    b = [observation("b", 200, count=count)]
    (found,) = compare([observation("a", 100, count=count)], b)
    assert (found.word, found.p_different, found.because) == ("undecided", None, because)
    # one new run against a repeated baseline can be judged
    (found,) = compare(repeated("c", [100, 101, 99, 100]), [observation("b", 80)])
    assert found.word == "slower"


def test_a_verdict_that_many_configurations_take_away_says_so():
    wobble = np.exp([-0.012, 0.0, 0.012])
    a = [r for n in range(20) for r in repeated(f"a{n}", 100 * wobble, batch_size=n)]
    b = [r for n in range(20) for r in repeated(f"b{n}", 106 * wobble, batch_size=n)]
    assert compare(a[:3], b[:3])[0].word == "faster"
    found = compare(a, b)[0]
    assert found.word == "undecided"
    assert "not among so many configurations" in found.because


def on_machines(name, rates, **changes):
    """One observation per rate of each machine: `rates` are by machine."""
    return [
        observation(f"{name}-{machine}-{number}", rate, machine=machine, **changes)
        for machine, own in rates.items()
        for number, rate in enumerate(own)
    ]


COVERED_MACHINE = "the machines that ran: another machine of the same kind may differ"
KIND = on_machines("c", {"m1": [100.0, 100.1], "m2": [104.0, 104.1]})
OTHER = on_machines("a", {"m9": [110.0, 110.1, 109.9]}, env="other")


@pytest.mark.parametrize(
    ("a", "b", "scope", "line"),
    [
        (on_machines("a", {"m1": [100.0, 100.1, 99.9]}), OTHER, "this machine",
         f"for {COVERED_MACHINE}"),
        (KIND, on_machines("d", {"m8": [110.0], "m9": [111.0]}, env="other"),
         "this kind of machine", "for machines of this kind (A ran on 2, B on 2)"),
        (KIND, OTHER, "one machine against a kind",
         "for one machine against machines of a kind (A ran on 2, B on 1)"),
        (KIND, repeated("e", [110.0, 110.1], env="other"), "these runs",
         "for these runs alone: not all of their records say which machine ran"),
    ],
)  # fmt: skip
def test_an_interval_says_which_machines_it_is_of(a, b, scope, line):
    (found,) = compare(a, b)
    assert found.estimate.scope == mean_ratio([found.estimate]).scope == scope
    assert list(covered([found])) == [f"the intervals hold {line}"]
    assert list(covered(compare(a[:1], b[:1]))) == []  # single runs have no interval


def test_on_the_same_machines_what_they_differ_in_does_not_count():
    """Ratios 1.10 and 1.11 on machines that differ by half: Student's t with 1 degree."""
    a = on_machines("a", {"m1": [100.0, 100.0], "m2": [150.0]})
    (found,) = compare(a, on_machines("b", {"m2": [166.5], "m1": [110.0]}, precision="amp"))
    assert found.estimate.ratio == pytest.approx(np.sqrt(1.10 * 1.11))
    assert found.estimate.error.degrees == 1
    assert found.estimate.error.deviation == pytest.approx(np.log(1.11 / 1.10) / 2)
    assert found.estimate.scope == "this kind of machine"
