"""One machine beside another: like with like, the mean, shares, energy, prices and costs."""

from dataclasses import replace

import factories as make
import numpy as np
import pytest
from observed import curve, invoke, observation, published, records_on_disk, repeated

import commands.compare
from analysis.comparison import METRICS, compare_pairs, pair_runs
from analysis.comparison.across import across_machines, efficiency_row, mean_row
from analysis.comparison.machines import gather_prices, noise_floor, same_kinds
from analysis.comparison.shown import notes
from analysis.findings import conclusions, find_all
from analysis.runs.groups import Group, group_runs
from analysis.runs.place import place_runs
from bench.errors import Unknown, UserError
from bench.statistics.ratios import smallest_change
from bench.statistics.series import chances_of_outlying

WOBBLE = np.exp([-0.01, 0.0, 0.01])


def prices(*options, table=None):
    return gather_prices(options, table)


def two_machines(**settings):
    """`fast` trains 300 images/s where `slow` trains 100, three repeats each."""
    return [
        *repeated("s", 100 * WOBBLE, env="slow", batch_size=8, **settings),
        *repeated("f", 300 * WOBBLE, env="fast", batch_size=8, **settings),
    ]


def observed(*records):
    return place_runs(records, [make.ceilings_record()])


# Pairs


def test_one_machine_against_another_by_hand():
    """2 and 8 times as fast at two batch sizes: 4 times in the geometric mean."""
    slow = curve({8: 100, 16: 100, 32: 100}, env="slow")
    fast = curve({8: 200, 16: 800, 64: 900}, env="fast", backend="cuda")
    runs = [*slow, *(replace(run, name=f"fast-{run.name}") for run in fast)]
    (found,) = across_machines(runs).pairs
    mean = mean_row(found.counted)
    assert (found.a, found.b) == ("slow", "fast")
    ratios = [mean[key] for key in ("ratio", "least_ratio", "largest_ratio")]
    assert ratios == pytest.approx([4, 2, 8])
    assert mean["ratio_low"] is None  # single runs
    (shown,) = conclusions("machine speed-up", runs)
    assert shown.headline == (
        "fast is 4 times as fast as slow (geometric mean of 2 configurations, 2 to 8)."
    )
    assert set(shown.runs) == {"b8", "b16", "fast-b8", "fast-b16"}
    # another model, precision or batch size is nothing in common
    other = curve({8: 1}, env="a") + curve({8: 2}, env="b", precision="amp")
    assert across_machines(other).pairs == ()
    assert across_machines(slow).pairs == ()


def test_machines_that_ran_otherwise_say_so():
    runs = observed(
        make.run_record(
            "a", environment=make.environment(label="a"), settings={"precision": "amp"}
        ),
        make.run_record(
            "b",
            step_s=0.5,
            settings={"precision": "amp"},
            environment=make.environment(label="b"),
            resolved=make.resolved(threads=8),
        ),
    )
    across = across_machines(runs)
    (found,) = across.pairs
    assert (found.a, found.b) == ("a", "b")
    (row,) = found.rows
    assert row["series"] == ("resnet18", "amp-bf16 -> fp32 (amp asked for)")
    assert row["note"] == "ran in amp-bf16 and fp32; ran with threads 4 -> 8"
    # like with like: another precision enters no mean but one that says so
    assert found.counted == []
    assert row["ratio"] == pytest.approx(2)
    assert list(conclusions("machine speed-up", runs)) == []


# Prices


def test_an_option_is_read_and_the_cost_follows_by_hand():
    """0.72 USD an hour at 100 images/s: 0.0002 USD a second, 10,000 s for a million images."""
    one, two = group_runs(observation(f"{n}", 100.0, env="gcp-l4", nodes=n) for n in (1, 2))
    known = prices("gcp-l4=0.72/h", "GCP-L4 = 0.36 EUR/h spot 2026-11-20")
    cost, spot = known.cost(one), known.cost(one, spot=True)
    assert (cost.per_million_samples, cost.price.currency) == (pytest.approx(2), "USD")
    assert known.cost(two).per_million_samples == pytest.approx(4)  # of each of two machines
    assert f"{spot}" == "1 EUR"
    assert f"{cost.price}" == "0.72 USD/h, undated, given by --price"
    assert f"{spot.price}" == "0.36 EUR/h spot, of 2026-11-20, given by --price"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        *(((option,), "no price per hour") for option in ("gcp-l4", "gcp-l4=0.72", "=0.72/h")),
        *(((f"gcp-l4={rate}/h",), f"per_h='{rate}'") for rate in ("cheap", "0", "inf", "nan")),
        (("gcp-l4=1 usd/h",), "currency='usd'"),
        (("gcp-l4=1/h 2026-13-01",), "date='2026-13-01'"),
        (("gcp-l4=1/h 2926-11-24",), "date='2926-11-24': .* to come"),
        (("gcp-l4=1 USD/h EUR 1",), "no price per hour"),
        (("lab=1/h", "LAB=2/h"), "given twice"),
    ],
)
def test_what_is_no_price_is_refused_with_an_example(options, why):
    with pytest.raises(UserError, match=why) as refusal:
        prices(*options)
    assert "\n" not in str(refusal.value)
    assert ("write --price gcp-l4=0.71/h" in str(refusal.value)) == (len(options) == 1)


TABLE = """machine,price_per_h,spot_price_per_h,currency,date,source
g2-standard-4,0.71,0.28,USD,2026-09-01,list of prices
g2-standard-4,0.75,,USD,2026-08-01,older list
Example CPU,0.05,,EUR,2026-11-01,"power, by a meter"
"""


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "prices.csv"
    path.write_text(TABLE, encoding="utf-8")
    return path


def test_a_table_is_keyed_by_machine_type_else_device(table):
    known = prices(table=table)

    def cost(known=known, spot=False, machine_type="g2-standard-4"):
        environment = make.environment(cloud_provider="gcp", cloud_machine_type=machine_type)
        runs = place_runs([make.run_record(environment=environment)], [])
        return known.cost(Group(tuple(runs)), spot=spot)

    assert cost().price.per_h == 0.71  # the newer of two
    assert cost(spot=True).price.per_h == 0.28
    assert cost(machine_type=None).price.currency == "EUR"
    reason = "no spot price was given for its label, machine type or device"
    assert cost(spot=True, machine_type=None) == Unknown(reason)
    assert f"{cost().price}" == "0.71 USD/h, of 2026-09-01, list of prices (prices.csv)"
    by_option = prices("lab=2/h", table=table)
    assert cost(by_option).price.per_h == 2  # goes before the table


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (",list of prices", ",", "line 2: source=''"),
        ("0.71,0.28", ",", "line 2: no price: fill in price_per_h or spot_price_per_h"),
        ("0.71", "free", "line 2: per_h='free'"),
        ("2026-09-01", "1.9.2026", "line 2: date='1.9.2026'"),
        ("price_per_h,", "price,", "line 2: unknown column 'price'"),
        ("2026-08-01,older", "2026-09-01,older", "line 3: .* is in line 2 too"),
        (",USD,", ",US$,", r"line 2: currency='US\$'"),
        ("list of prices\n", "list, of prices\n", "line 2: unknown column"),
        (TABLE[TABLE.index("\n") + 1 :], "", "line 1: no row follows: the columns are machine,pr"),
        ("machine", "\udcff", "cannot be read as UTF-8"),
    ],
)
def test_a_bad_table_is_refused_by_its_line(table, old, new, why):
    table.write_text(TABLE.replace(old, new, 1), encoding="utf-8", errors="surrogateescape")
    with pytest.raises(UserError, match=why) as refusal:
        prices(table=table)
    assert "\n" not in str(refusal.value)


# Shares and energy


def test_shares_energy_and_cost_of_a_group_by_hand():
    """A step of 1 s does 100 of 200 GFLOP/s; intensity 4 to 10 over a ridge of 4."""
    (run,) = place_runs([make.run_record()], [make.ceilings_record()])
    found = efficiency_row(Group((run,)), prices("lab=3.6/h"))
    shares = ("fraction_of_peak", "fraction_of_roof_min", "fraction_of_roof_max")
    assert [found[share] for share in shares] == pytest.approx([0.5] * 3)
    assert found["roof"] == "measured"
    # 10 images/s, 0.001 USD a second
    assert found["cost_per_million_images"] == pytest.approx(100)
    assert found["energy_j_per_image"] is None
    assert found["missing"].keys() == {"energy_j_per_image", "spot_cost"}
    (alone,) = place_runs([make.run_record()], [])
    assert "no ceiling" in efficiency_row(Group((alone,)))["missing"]["mfu"]
    (joules,) = group_runs(
        [
            observation(str(place), metrics={"throughput_images_per_s": 1, "energy_j_per_image": j})
            for place, j in enumerate((2.0, 4.0))
        ]
    )
    assert efficiency_row(joules)["energy_j_per_image"] == 3
    assert efficiency_row(joules)["missing"]["cost"].startswith("no price was given")


# Like with like


def test_the_reference_is_the_machine_with_most_in_common_else_the_one_asked_for():
    runs = published()
    across = across_machines(runs)
    assert across.reference == "mac_mps"
    assert across.sentences[0] == (
        "The reference is mac_mps, the slowest of those with most in common: 14 comparisons."
    )
    asked = across_machines(runs, reference="rtx4090")
    assert {pair.a for pair in asked.against} == {"rtx4090"}
    of_t4 = next(pair for pair in asked.against if pair.b == "colab_t4")
    by_speed = next(p for p in asked.pairs if {p.a, p.b} == {"rtx4090", "colab_t4"})
    assert mean_row(of_t4.counted)["ratio"] == pytest.approx(
        1 / mean_row(by_speed.counted)["ratio"]
    )
    assert across_machines(runs, reference="i9_cpu").reference is None
    with pytest.raises(UserError, match=r"reference='h100'.*there are colab_t4, gcp_l4"):
        across_machines(runs, reference="h100")
    assert across_machines(two_machines()).reference == "slow"


# The report


@pytest.mark.parametrize(
    ("options", "cost"),
    [
        (("slow=0.36/h", "fast=0.72/h"), "; an image costs 0.667 times as much"),
        # two currencies, and prices of two kinds, have no ratio
        (("slow=0.36/h", "fast=0.72/h spot"), ""),
        (("slow=0.36 EUR/h", "fast=0.72/h"), ""),
    ],
)
def test_the_sentence_about_one_configuration_has_the_interval_and_the_cost(options, cost):
    known = prices(*options)
    (finding,) = [one for one in find_all(two_machines(), known) if "speed-up" in one.kind]
    assert finding.headline == (
        f"fast is 3 times as fast as slow (95 %: 2.93 to 3.07) in resnet18 fp32 batch 8{cost}."
    )
    (pair,) = across_machines(two_machines(), known).pairs
    known_ratio = pair.rows[0]["cost_ratio"] is not None
    assert known_ratio == (mean_row(pair.counted)["cost_ratio"] is not None) == bool(cost)


# A machine that is unlike the others of its kind, and none by chance


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


# The noise floor


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
    found = [one for pair in pairs for one in compare_pairs([pair], THROUGHPUT)]
    share = sum(one.word == "slower" for one in found) / len(found)
    assert share == pytest.approx(0.8, abs=0.05)


def test_scatter_is_pooled_over_the_configurations_of_a_machine():
    runs = [
        *repeated("a", np.exp([-0.01, 0, 0.01]), env="one"),
        *repeated("b", np.exp([-0.03, 0, 0.03]), env="one", batch_size=20),
        *repeated("c", [1.0, 1.0], env="other"),
        observation("d", batch_size=40),
    ]
    floor = noise_floor(runs, THROUGHPUT)
    assert [row["scatter"] for row in floor["configurations"]] == pytest.approx([0.01, 0.03, 0])
    one, other = floor["machines"]
    assert one["scatter"] == pytest.approx(np.sqrt((2 * 0.01**2 + 2 * 0.03**2) / 4))
    # chi-squared with 4 degrees of freedom: 0.4844 and 11.143
    ends = (one["scatter_low"], one["scatter_high"])
    assert ends == pytest.approx(
        tuple(one["scatter"] * np.sqrt(4 / quantile) for quantile in (11.143, 0.4844)), rel=1e-4
    )
    assert (one["env"], one["repeats"], other["env"]) == ("one", 6, "other")
    assert floor["single"] == [runs[-1].label]
    assert one["smallest_change_3_repeats"] == smallest_change(one["scatter"], 3, among=4)


def test_halves_of_noise_are_rarely_called_different_and_of_two_kinds_often():
    runs = noisy("a", 10, 0.01, seed=3)
    floor = noise_floor(runs, THROUGHPUT, threshold=1e-9)
    (called,) = (row["called_different"] for row in floor["configurations"])
    assert floor["configurations"][0]["halvings"] == 200
    assert 0 < called < 20  # 5 %, both directions
    assert floor["failed"] <= called
    several = noise_floor(runs + noisy("b", 10, 0.01, seed=2, batch_size=20), THROUGHPUT)
    assert several["failed"] == 0
    # half of the runs are 30 % slower, as where two machines carry one label
    rates = np.outer((100, 70), np.exp([-0.001, 0.001])).ravel()
    floor = noise_floor(repeated("a", rates), THROUGHPUT)
    called_different = floor["configurations"][0]["called_different"]
    assert called_different > 30
    assert 0 < floor["failed"] < called_different  # half of them worse


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--aa", "{side}", "{side}"), "aa: takes one side"),
        (("--aa", "{side}", "--price", "lab=1/h"), "aa: the noise floor has no cost"),
        (("{side}",), "B is missing: compare"),
        (("--aa", "{side},run=r1"), "none of 1 configuration has two repeats"),
        (("--aa", "{side}", "--metric", "energy_j"), "none of 0 configurations has two repeats"),
    ],
)
def test_a_noise_floor_that_cannot_be_is_one_line(tmp_path, words, message):
    side = f"records={records_on_disk(tmp_path, *(make.run_record(f'r{n}') for n in (1, 2)))}"
    with pytest.raises(UserError, match=message) as refusal:
        invoke(commands.compare, *(word.format(side=side) for word in words))
    assert "\n" not in str(refusal.value)
