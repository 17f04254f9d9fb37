"""Pairs that agree in all but one thing, judged without being fooled by noise or by many tries."""

import math

import factories as make
import numpy as np
import pytest
from observed import observation, published, published_records, repeated
from test_statistics import LONG, PHI, windows

from analysis.comparison import METRICS, compare_pairs, compared_metric, pair_runs
from analysis.comparison.shown import comparison_table, covered, in_doubt
from analysis.runs.imported import imported_run
from analysis.runs.placed import place, place_runs
from analysis.statistics import mean_ratio, repeats_of
from analysis.statistics.ratios import deciding_repeats, smallest_change
from bench.errors import UserError
from bench.records import Finding

THROUGHPUT = METRICS["throughput_images_per_s"]


def compare(a, b, metric=THROUGHPUT, **options):
    return compare_pairs(pair_runs(a, b, metric.name).pairs, metric, **options)


def test_configurations_are_paired_where_only_the_precision_differs():
    a = [observation("a1", batch_size=32), observation("a2", batch_size=64)]
    b = [
        observation("b1", batch_size=64, precision="amp"),
        observation("b2", batch_size=128, precision="amp"),
    ]
    found = pair_runs(a, b, THROUGHPUT.name)
    assert found.differing == ("precision",)
    assert [(x.names, y.names) for x, y in found.pairs] == [(("a2",), ("b1",))]
    assert [group.names for group in found.only_a] == [("a1",)]
    assert [group.names for group in found.only_b] == [("b2",)]


def test_a_batch_size_is_paired_with_the_same_alone():
    a = [observation("a4", batch_size=4), observation("a8", batch_size=8)]
    b = [observation("b16", batch_size=16, precision="amp")]
    with pytest.raises(UserError, match="A has batch 4, 8 and B batch 16: different batch sizes"):
        pair_runs(a, b, THROUGHPUT.name)
    found = pair_runs(a, [*b, observation("b4", batch_size=4, precision="amp")], THROUGHPUT.name)
    assert [(x.names, y.names) for x, y in found.pairs] == [(("a4",), ("b4",))]
    assert found.why_alone == {("a8",): "B has batch 4, 16", ("b16",): "A has batch 4, 8"}


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
    assert ("ran with" in [column.heading for column in row.columns]) == (
        bool(differs) and "backend" not in pairing.differing
    )


def test_what_follows_from_the_data_is_no_difference_of_its_own():
    """Synthetic data has no loader, so none of its settings distinguishes the two."""
    ours = place_runs([recorded_run("a", "lab", {}, {})], [])
    theirs = place_runs([recorded_run("b", "lab", {"data": "/images"}, {"workers": 2})], [])
    pairing = pair_runs(ours, theirs, THROUGHPUT.name)
    assert pairing.differing == ("data",)
    (found,) = compare_pairs(pairing.pairs, THROUGHPUT)
    assert found.also_differs(("data",)) == ""


def test_a_setting_that_had_no_effect_on_one_side_reads_none_there():
    limited = make.environment(variables={"ONEDNN_MAX_CPU_ISA": "AVX2"})
    ours = place_runs([make.run_record("a")], [])
    theirs = place_runs([make.run_record("b", environment=limited)], [])
    pairing = pair_runs(ours, theirs, THROUGHPUT.name)
    table = comparison_table(compare_pairs(pairing.pairs, THROUGHPUT), pairing)
    assert table.columns[1].heading == "instructions"
    assert table.cells[0][1] == "none -> avx2"


def test_on_one_machine_only_what_ran_pairs():
    one, two, four = ({"threads": count} for count in (1, 2, 4))
    ours = place_runs(
        [recorded_run("a", "lab", {}, one), recorded_run("a4", "lab", four, four)], []
    )
    theirs = place_runs(
        [recorded_run("b", "lab", {}, two), recorded_run("b4", "lab", {}, four)], []
    )
    found = pair_runs(ours, theirs, THROUGHPUT.name)
    assert [(x.names, y.names) for x, y in found.pairs] == [(("a4",), ("b4",))]
    assert found.why_alone == {("a",): "B ran with threads 2", ("b",): "A ran with threads 1"}


def test_repeats_stand_together_and_a_shared_value_distinguishes_nothing():
    found = pair_runs(repeated("a", [1, 2, 3]), repeated("b", [1, 2], env="other"), THROUGHPUT.name)
    assert found.differing == ("env",)
    ((a, b),) = found.pairs
    assert (a.names, b.names) == (("a-1", "a-2", "a-3"), ("b-1", "b-2"))
    a = [observation("a1", precision="amp")]
    b = [observation("b1", precision="amp"), observation("b2", precision="fp32")]
    found = pair_runs(a, b, THROUGHPUT.name)
    assert found.differing == ()
    assert [(x.names, y.names) for x, y in found.pairs] == [(("a1",), ("b1",))]


def test_two_values_on_one_side_are_not_mixed_up_as_repeats():
    a = [observation("a1", 10, precision="fp32")]
    b = [observation("b1", 20, precision="amp"), observation("b2", 15, precision="tf32")]
    ratios = {one.b.first.precision: one.estimate.ratio for one in compare(a, b)}
    assert ratios == pytest.approx({"amp": 2.0, "tf32": 1.5})


def test_what_else_differs_failed_runs_and_runs_without_the_metric_are_named():
    old, new = ({"software": {"torch": torch, "driver": "570"}} for torch in ("2.11.0", "2.15.0"))
    failed = {"outcome": "oom", "reason": "out of memory", "metrics": {}}
    a = [observation("a1", **old), observation("a2", **old, **failed)]
    b = [
        observation("b1", **new),
        observation("b2", **new, metrics={}),
        observation("b3", float("nan"), **new),
    ]
    found = pair_runs(a, b, THROUGHPUT.name)
    assert found.software == ("torch: A 2.11.0, B 2.15.0",)
    assert found.left_out == (
        "a2 (lab resnet18 fp32 batch 10): oom, out of memory",
        "b2 (lab resnet18 fp32 batch 10): no throughput_images_per_s",
        "b3 (lab resnet18 fp32 batch 10): throughput_images_per_s is nan, which has no ratio",
    )


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ([observation("x")], [observation("x")], "run x is in A and in B"),
        (
            [place(make.run_record("x"), [])],
            [place(make.run_record("x"), [], run_id="id-of-x")],
            "run id-of-x is in A and in B",
        ),
        ([], [observation("b")], r"A: none of its 0 runs has a .* \(no run matches\)"),
        (
            [observation("a", arch="vgg16"), observation("a2", precision="amp")],
            [observation("b", outcome="oom", reason="no memory", metrics={})],
            r"B: none of its 1 runs .*b \(lab resnet18 fp32 batch 10\): oom, no memory",
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


def test_a_judgement_by_hand():
    """Means 100 and 110 with a relative deviation of 1 %: 1.1 within a half-width of 2.3 %."""
    wobble = np.exp([-0.01, 0.0, 0.01])
    (found,) = compare(repeated("a", 100 * wobble), repeated("b", 110 * wobble))
    assert found.estimate.ratio == pytest.approx(1.1)
    half = 2.77645 * 0.01 * np.sqrt(2 / 3)
    assert np.log(found.estimate.low) == pytest.approx(np.log(1.1) - half, rel=1e-4)
    assert (found.judgement, found.word) == ("better", "faster")


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
    wobble = np.exp(spread * np.array([-1.0, 0.0, 1.0]))
    (found,) = compare(repeated("a", 100 * wobble), repeated("b", 100 * ratio * wobble))
    low, high = found.estimate.low, found.estimate.high
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


def test_less_is_better_where_it_is():
    wobble = np.exp([-0.001, 0.0, 0.001])

    def compared(metric, ours, theirs):
        sides = (
            [observation(f"{side}{x}", metrics={metric: value * x}) for x in wobble]
            for side, value in (("a", ours), ("b", theirs))
        )
        return compare(*sides, METRICS[metric])[0]

    found = compared("iteration_time_ms_p50", 10, 8)
    assert found.estimate.ratio == pytest.approx(0.8)
    assert (found.judgement, found.word) == ("better", "faster")
    assert compared("peak_memory_mb", 100, 120).word == "worse"


def test_single_runs_decide_nothing_and_say_why():
    rng = np.random.default_rng(1)
    times = windows(rng, (2,), 0.3, noise=0.02)
    (found,) = compare(
        [observation("a", 100, times_s=times[0])], [observation("b", 200, times_s=times[1])]
    )
    assert found.judgement == "undecided"
    assert found.p_different is None
    assert found.because.startswith("one run on each side: repeat-to-repeat variance unknown")
    # ln 2 - ln 1.02 = 0.673 over 1.96 sqrt(2) is 24 %
    assert "would hold for repeats that scatter by less than 24 %" in found.because
    # without iterations there is no window to speak of
    (found,) = compare([observation("a", 100)], [observation("b", 101)])
    assert found.because == "one run on each side: repeat-to-repeat variance unknown"
    a, b = ([observation(name, rate, count=3)] for name, rate in (("a", 100.0), ("b", 90.0)))
    (found,) = compare(a, b)
    assert found.because == (
        "repeats summed up without their scatter: repeat-to-repeat variance unknown; would hold "
        "for repeats that scatter by less than 5.3 %"
    )


def test_one_new_run_against_a_repeated_baseline_can_be_judged():
    (found,) = compare(repeated("a", [100, 101, 99, 100]), [observation("b", 80)])
    assert found.word == "slower"
    assert found.estimate.method.startswith("pooled t")


@PHI
@pytest.mark.parametrize(
    ("ours", "theirs"), [(1, 1), (3, 3), (1, 3), LONG(5, 5), LONG(3, 5), LONG(2, 5)]
)
@pytest.mark.slow
def test_noise_is_called_faster_in_fewer_than_5_of_100(phi, ours, theirs):
    """No effect, correlated iterations, repeats that scatter by 3 %, and no margin to hide in."""
    rng = np.random.default_rng(21)
    pairs = []
    for number in range(1500):
        a, b = (windows(rng, (count,), phi, between=0.03) for count in (ours, theirs))
        runs = [
            repeated(f"{side}{number}", 10 / times.mean(axis=1), seed=number)
            for side, times in (("a", a), ("b", b))
        ]
        pairs.append(pair_runs(*runs, THROUGHPUT.name).pairs[0])
    found = compare_pairs(pairs, THROUGHPUT, threshold=1e-9, correction="none")
    words = [one.word for one in found]
    assert words.count("faster") / len(words) < 0.05
    assert words.count("slower") / len(words) < 0.05
    if (ours, theirs) == (1, 1):
        assert set(words) == {"undecided"}
        assert all("repeat-to-repeat variance unknown" in one.because for one in found)


@pytest.mark.parametrize("correction", ["holm", LONG("bh")])
@pytest.mark.slow
def test_among_many_configurations_chance_finds_nothing(correction):
    """Of 40 families of 25 configurations without an effect at most 5 % may hold a finding."""
    rng = np.random.default_rng(22)
    families = 0
    for _ in range(200):
        pairs = []
        for batch in range(25):
            rates = 100 * np.exp(0.02 * rng.standard_normal((2, 3)))
            pairs += pair_runs(
                repeated("a", rates[0], batch_size=batch),
                repeated("b", rates[1], batch_size=batch),
                THROUGHPUT.name,
            ).pairs
        found = compare_pairs(pairs, THROUGHPUT, threshold=1e-9, correction=correction)
        families += any(one.judgement in ("better", "worse") for one in found)
    assert families / 200 <= 0.05


def test_what_repeats_leave_open_says_how_many_would_decide():
    """27.6 ± 0.2 against 15.2 ± 0.5 images/s in two repeats each, among four configurations."""
    a = [r for n in range(4) for r in repeated(f"a{n}", [14.85, 15.55], batch_size=n)]
    b = [r for n in range(4) for r in repeated(f"b{n}", [27.46, 27.74], batch_size=n)]
    (found, *_) = compare(a, b)
    assert found.word == "undecided"
    assert "about 3 repeats on each side would decide" in found.because
    # of machines of a kind it is the machines that decide
    fleets = (
        on_machines(side, {f"{side}1": [level] * 2, f"{side}2": [level * 1.1] * 2}, env=side)
        for side, level in (("a", 100.125), ("b", 110.125))
    )
    assert "more machines would decide" in compare(*fleets)[0].because


@pytest.mark.parametrize("among", [1, 20])
def test_so_many_repeats_find_the_change_that_is_there(among):
    """One fewer finds only a larger change: the two formulas are one."""
    a, b = repeats_of([100.0, 103.0, 97.0]), repeats_of([106.0, 109.0, 103.0])
    number = deciding_repeats(a, b, 1.02, 0.025 / among)
    deviation = math.sqrt((a.log_variance + b.log_variance) / 2)
    change = math.exp(b.log_mean - a.log_mean) - 1
    assert number > 3
    assert smallest_change(deviation, number, among=among) <= change
    assert smallest_change(deviation, 3, among=among) > change
    assert deciding_repeats(a, a, 1.0, 0.025) is None  # no number decides for equal sides


def test_a_verdict_that_many_configurations_take_away_says_so():
    wobble = np.exp([-0.012, 0.0, 0.012])
    a = [r for n in range(20) for r in repeated(f"a{n}", 100 * wobble, batch_size=n)]
    b = [r for n in range(20) for r in repeated(f"b{n}", 106 * wobble, batch_size=n)]
    assert compare(a, b, correction="none")[0].word == "faster"
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


def test_an_interval_says_which_machines_it_is_of():
    """Means of machines of 100 and 104 scatter, however alike the repeats of each are."""
    one = on_machines("a", {"m1": [100.0, 100.1, 99.9]})
    other = on_machines("b", {"m9": [110.0, 110.1, 109.9]}, env="other")
    (found,) = compare(one, other)
    assert found.estimate.covers == "this machine"
    assert list(covered([found])) == [
        "the intervals are of repeats on one machine, and say nothing of others of its kind"
    ]
    fleet = on_machines("c", {"m1": [100.0, 100.1], "m2": [104.0, 104.1]})
    (found,) = compare(fleet, on_machines("d", {"m8": [110.0], "m9": [111.0]}, env="other"))
    assert found.estimate.covers == "this kind of machine"
    assert list(covered([found])) == [
        "the intervals are of machines of this kind (A ran on 2, B on 2)"
    ]
    spread = np.log(104.05 / 100.05) ** 2 / 4 + np.log(111 / 110) ** 2 / 4
    assert found.estimate.deviation == pytest.approx(np.sqrt(spread), rel=1e-3)
    (found,) = compare(fleet, repeated("e", [110.0, 110.1], env="other"))
    assert found.estimate.covers == "these runs"
    (found,) = compare(fleet, other)
    assert found.estimate.covers == "one machine against a kind"
    assert "(A ran on 2, B on 1)" in next(covered([found]))
    assert "one machine against" in mean_ratio([found.estimate]).covers
    assert list(covered(compare([one[0]], [other[0]]))) == []  # single runs have no interval


def test_on_the_same_machines_what_they_differ_in_does_not_count():
    """Ratios 1.10 and 1.11 on machines that differ by half: Student's t with 1 degree."""
    a = on_machines("a", {"m1": [100.0, 100.0], "m2": [150.0]})
    (found,) = compare(a, on_machines("b", {"m2": [166.5], "m1": [110.0]}, precision="amp"))
    assert found.estimate.ratio == pytest.approx(np.sqrt(1.10 * 1.11))
    assert found.estimate.degrees == 1
    assert found.estimate.deviation == pytest.approx(np.log(1.11 / 1.10) / 2)
    assert found.estimate.covers == "this kind of machine"


def test_published_repeats_are_used_as_they_were_summed_up():
    """RTX 4090, resnet50, batch 64: 807.54 over 415.22 is 1.945; deviations 0.49 % and 0.44 %."""
    runs = [run for run in published() if run.env == "rtx4090" and run.arch == "resnet50"]
    a = [run for run in runs if run.precision == "fp32"]
    b = [run for run in runs if run.precision == "amp"]
    pairing = pair_runs(a, b, THROUGHPUT.name)
    assert pairing.differing == ("precision",)
    found = {one.a.batch_size: one for one in compare(a, b)}
    assert sorted(found) == [64, 128, 256]
    estimate = found[64].estimate
    assert estimate.ratio == pytest.approx(807.54 / 415.22)
    expected = np.hypot(3.98 / 807.54, 1.82 / 415.22) / np.sqrt(3)
    assert estimate.deviation == pytest.approx(expected)
    assert all(one.word == "faster" for one in found.values())


def test_a_recorded_run_is_observed_with_its_settings():
    record = make.run_record(settings={"arch": "vgg16", "repeat": 2, "campaign": "night"})
    (seen,) = place_runs([record], [], run_ids={"run-1": "abc"})
    assert (seen.name, seen.arch, seen.batch_size, seen.env) == ("abc", "vgg16", 10, "lab")
    assert (seen.campaign, seen.device) == ("night", "Example CPU")
    assert not {"repeat", "campaign"} & seen.settings.keys()
    assert seen.samples_per_s == 10
    assert len(seen.iteration_times_s) == 10


def test_an_imported_run_is_what_was_written_down():
    seen = imported_run(published_records()["line-2"])
    assert seen.label == "mac_cpu mobilenet_v2 fp32 batch 16"
    assert seen.imported_from == "published_runs.csv"
    assert (seen.count, seen.deviations) == (3, {"throughput_images_per_s": 0.19})
    assert seen.iteration_times_s == ()
    assert "iters" not in seen.settings


def test_the_table_names_runs_values_and_sides():
    wobble = np.exp([-0.001, 0.0, 0.001])
    a, b = repeated("a", 100 * wobble), repeated("b", 110 * wobble, precision="amp")
    pairing = pair_runs(a, b, THROUGHPUT.name)
    table = comparison_table(compare_pairs(pairing.pairs, THROUGHPUT), pairing)
    (row,) = table.cells
    assert row[:4] == ["lab resnet18 fp32 -> amp batch 10", "100 (3)", "110 (3)", "1.1"]
    header, values = table.csv().splitlines()
    assert header.startswith("configuration,a_throughput_images_per_s,a_repeats,")
    assert values.endswith("a-1 a-2 a-3,b-1 b-2 b-3")
