"""One machine beside another: like with like, the mean, shares, energy, prices and costs."""

import json
from datetime import date

import factories as make
import numpy as np
import pytest
from observed import curve, observation, published, repeated
from test_analysis_commands import invoke, records_on_disk

import commands.analyse.report
from analysis.comparison.machines.across import across_machines
from analysis.comparison.machines.efficiency import efficiency_of
from analysis.comparison.machines.prices import Price, gather_prices
from analysis.comparison.machines.speedups import choose_reference, machine_pairs
from analysis.figures.charts.interactive_chart import interactive_chart
from analysis.figures.charts.speed_up_chart import speed_up_charts
from analysis.figures.charts.static_chart import draw_chart
from analysis.findings import find_all
from analysis.report.tables.machines.speed_up_tables import against_table, prices_table
from analysis.runs.groups import Group, group_runs
from analysis.runs.placed import place_runs
from analysis.table import number_runs
from bench.errors import UserError

TODAY = date(2026, 11, 23)
WOBBLE = np.exp([-0.01, 0.0, 0.01])


def prices(*options, table=None):
    return gather_prices(options, table, TODAY)


def two_machines(**settings):
    """`fast` trains 300 images/s where `slow` trains 100, three repeats each."""
    return [
        *repeated("s", 100 * WOBBLE, env="slow", batch_size=8, **settings),
        *repeated("f", 300 * WOBBLE, env="fast", batch_size=8, **settings),
    ]


def rented(record_id="run-1", machine_type="g2-standard-4", zone="europe-west4-a", **changes):
    machine = make.environment(
        cloud_provider="gcp", cloud_machine_type=machine_type, cloud_zone=zone
    )
    return make.run_record(record_id, environment=machine, **changes)


# Prices


def test_a_price_may_be_of_a_machine_whose_runs_all_failed():
    runs = [*two_machines(), observation("x", env="away", outcome="crashed", metrics={})]
    across = across_machines(runs, prices("away=1/h", "slow=1/h"))
    assert across.against[0].shared[0].a.cost is not None


def test_an_option_is_read_and_the_cost_follows_by_hand():
    """0.72 USD an hour at 100 images/s: 0.0002 USD a second, 10,000 s for a million images."""
    (group,) = group_runs(repeated("a", [100.0], env="gcp-l4"))
    known = prices("gcp-l4=0.72/h", "GCP-L4 = 0.36 EUR/h spot 2026-11-20")
    cost, spot = known.cost(group), known.cost(group, spot=True)
    assert (cost.per_million_samples, cost.price.currency) == (pytest.approx(2), "USD")
    assert f"{spot}" == "1 EUR"
    assert cost.price.words(TODAY) == "0.72 USD/h, undated, given by --price"
    assert spot.price.words(TODAY) == (
        "0.36 EUR/h spot, of 2026-11-20 (3 days ago), given by --price"
    )


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ("gcp-l4", "no price per hour"),
        ("gcp-l4=0.72", "no price per hour"),
        ("=0.72/h", "no price per hour"),
        ("gcp-l4=cheap/h", "'cheap' is no positive number"),
        ("gcp-l4=0/h", "'0' is no positive number"),
        ("gcp-l4=inf/h", "'inf' is no positive number"),
        ("gcp-l4=1/h usd", "write its three capital letters"),
        ("gcp-l4=1/h 2026-13-01", "write it as 2026-11-01"),
        ("gcp-l4=1/h 2026-11-24", "lies in the future"),
        ("gcp-l4=1 USD/h EUR", "'EUR' is neither spot nor a date"),
    ],
)
def test_what_is_no_price_is_refused_with_an_example(option, why):
    with pytest.raises(UserError, match=f"{why}.*write --price gcp-l4=0.71/h") as refusal:
        prices(option)
    assert "\n" not in str(refusal.value)


def test_two_prices_of_one_machine_are_refused():
    with pytest.raises(UserError, match="given twice"):
        prices("lab=1/h", "LAB=2/h")
    assert prices("lab=1/h", "lab=0.5/h spot")


TABLE = """machine,zone,price_per_h,spot_price_per_h,currency,date,source
g2-standard-4,,0.71,0.28,USD,2026-09-01,list of prices
g2-standard-4,europe-west4,0.75,,USD,2026-08-01,older list
g2-standard-4,europe-west4,0.78,,USD,2026-09-01,list of prices
Example CPU,,0.05,,EUR,2026-11-01,"power, by a meter"
"""


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "prices.csv"
    path.write_text(TABLE, encoding="utf-8")
    return path


def test_a_table_is_keyed_by_machine_type_and_zone_else_device(table):
    known = prices(table=table)

    def price(record, **how):
        cost = known.cost(Group(tuple(place_runs([record], []))), **how)
        return cost if isinstance(cost, str) else (cost.price.per_h, cost.price.currency)

    assert price(rented()) == (0.78, "USD")  # of its zone, and of two the newer
    assert price(rented(zone="us-central1-a")) == (0.71, "USD")
    assert price(rented(), spot=True) == (0.28, "USD")
    assert price(rented(machine_type=None)) == (0.05, "EUR")
    assert price(rented(machine_type=None), spot=True) == (
        "no spot price was given for its label, machine type or device"
    )
    cost = known.cost(Group(tuple(place_runs([rented()], []))))
    assert cost.price.words(TODAY) == (
        "0.78 USD/h, of 2026-09-01 (83 days ago), list of prices (prices.csv)"
    )
    by_option = prices("lab=2/h", table=table)  # goes before the table
    assert by_option.cost(Group(tuple(place_runs([rented()], [])))).price.per_h == 2


def test_a_price_says_that_it_is_old():
    def words(day, spot):
        return Price("lab", 1, "USD", spot, day, "list").words(TODAY)

    assert "old" not in words(date(2026, 8, 25), spot=False)
    assert "(91 days ago, old: look it up again)" in words(date(2026, 8, 24), spot=False)
    assert "(8 days ago, old: look it up again)" in words(date(2026, 11, 15), spot=True)


def test_the_table_in_json_is_the_same(table, tmp_path):
    rows = [
        {"machine": "g2-standard-4", "price_per_h": 0.71, "spot_price_per_h": 0.28,
         "currency": "USD", "date": "2026-09-01", "source": "list of prices"},
    ]  # fmt: skip
    path = tmp_path / "prices.json"
    path.write_text(json.dumps(rows), encoding="utf-8")
    found = prices(table=path).of_table
    assert [(one.per_h, one.spot) for one in found] == [(0.71, False), (0.28, True)]
    path.write_text(json.dumps({"machine": "x"}), encoding="utf-8")
    with pytest.raises(UserError, match="a list of objects is needed"):
        prices(table=path)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (",list of prices", ",", "line 2: source is empty"),
        ("0.71,0.28", ",", "line 2: no price: fill in price_per_h or spot_price_per_h"),
        ("0.71", "free", "line 2: 'free' is no positive number"),
        ("2026-09-01", "1.9.2026", "line 2: date '1.9.2026': write it as 2026-11-01"),
        ("price_per_h,", "price,", "line 2: unknown column 'price'"),
        ("2026-08-01,older", "2026-09-01,older", "line 4: .* stands in line 3 too"),
        (",USD,", ",US$,", "line 2: currency"),
        ("list of prices\n", "list, of prices\n", "line 2: unknown column"),
    ],
)
def test_a_bad_table_is_refused_by_its_line(table, old, new, why):
    table.write_text(TABLE.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(UserError, match=why) as refusal:
        prices(table=table)
    assert "\n" not in str(refusal.value)


def test_a_table_that_is_not_there_or_empty_is_one_line(tmp_path):
    with pytest.raises(UserError, match="cannot be read"):
        prices(table=tmp_path / "none.csv")
    (tmp_path / "empty.csv").write_text("machine,price_per_h,currency,date,source\n")
    with pytest.raises(UserError, match="holds no price"):
        prices(table=tmp_path / "empty.csv")


# Shares and energy


def test_shares_energy_and_cost_of_a_group_by_hand():
    """A step of 1 s does 100 of 200 GFLOP/s; intensity 4 to 10 over a ridge of 4."""
    (run,) = place_runs([make.run_record()], [make.ceilings_record()])
    found = efficiency_of(Group((run,)), prices("lab=3.6/h"))
    assert found.mfu == pytest.approx(0.5)
    assert found.fraction_of_roof == pytest.approx((0.5, 0.5))
    assert found.ceiling_kind == "measured"
    assert found.cost.per_million_samples == pytest.approx(100)  # 10 images/s, 0.001 USD a second
    assert found.energy_j_per_sample is None
    assert found.missing.keys() == {"energy_j_per_image", "spot_cost"}
    (alone,) = place_runs([make.run_record()], [])
    assert "no ceiling" in efficiency_of(Group((alone,))).missing["mfu"]
    (joules,) = group_runs(
        [
            observation(str(place), metrics={"throughput_images_per_s": 1, "energy_j_per_image": j})
            for place, j in enumerate((2.0, 4.0))
        ]
    )
    assert efficiency_of(joules).energy_j_per_sample == 3
    assert efficiency_of(joules).missing["cost"] == "no price was given"


def test_the_price_of_a_machine_counts_for_each_of_them():
    (one,) = group_runs([observation(env="lab")])
    (two,) = group_runs([observation(env="lab", nodes=2)])
    costs = [prices("lab=1/h").cost(group).per_million_samples for group in (one, two)]
    assert costs[1] == pytest.approx(2 * costs[0])


# Like with like


def test_a_batch_that_spilled_is_shown_and_enters_no_mean():
    runs = [
        observation(f"{env}{batch}", rate, env=env, batch_size=batch, backend="cuda")
        for env, rates in (("slow", (100, 100)), ("fast", (300, 30)))
        for batch, rate in zip((8, 16), rates, strict=True)
    ]
    (pair,) = machine_pairs(runs)
    assert [one.note for one in pair.shared] == [None, "memory spilled on fast"]
    assert pair.mean.ratio == pytest.approx(3)
    (finding,) = [one for one in find_all(runs) if one.kind == "machine speed-up"]
    assert "resnet18 fp32 batch 16: memory spilled on fast" in finding.evidence


def test_several_devices_of_one_label_are_several_machines():
    runs = [
        observation("a", 10, env="box", device="CPU", backend="cpu"),
        observation("b", 100, env="box", device="GPU", backend="cuda"),
    ]
    (pair,) = machine_pairs(runs)
    assert (pair.a, pair.b) == ("box CPU", "box GPU")


def test_the_reference_is_the_machine_with_most_in_common_else_the_one_asked_for():
    runs = published()
    across = across_machines(runs)
    assert across.reference == "mac_mps"
    assert across.sentences[0] == (
        "The reference is mac_mps, which has most configurations in common with others: 14 "
        "comparisons. Nothing in common with it: i9_cpu."
    )
    asked = across_machines(runs, reference="rtx4090")
    assert {pair.a for pair in asked.against} == {"rtx4090"}
    of_t4 = next(pair for pair in asked.against if pair.b == "colab_t4")
    by_speed = next(p for p in asked.pairs if {p.a, p.b} == {"rtx4090", "colab_t4"})
    assert of_t4.mean.ratio == pytest.approx(1 / by_speed.mean.ratio)
    assert across_machines(runs, reference="i9_cpu").reference is None
    with pytest.raises(UserError, match=r"reference='h100'.*there are colab_t4, gcp_l4"):
        across_machines(runs, reference="h100")
    assert choose_reference(machine_pairs(two_machines()), ["fast", "slow"]) == "slow"


# The report


def test_one_machine_and_machines_without_a_common_configuration_say_so():
    assert across_machines(curve({8: 1, 16: 2})).sentences == []
    apart = [observation("a", env="a"), observation("b", env="b", batch_size=99)]
    across = across_machines(apart)
    assert across.sentences == [
        "a and b share no configuration: measure the same model, precision and batch size on each."
    ]
    assert against_table(across, number_runs(apart)).rows == ()
    assert speed_up_charts(across.against, {}) == []


def test_the_table_has_each_configuration_the_mean_and_what_costs_rest_on():
    runs = [
        *two_machines(),
        *repeated("s16", 100 * WOBBLE, env="slow", batch_size=16),
        *repeated("f16", 1200 * WOBBLE, env="fast", batch_size=16),
    ]
    across = across_machines(runs, prices("slow=0.36/h 2026-11-01", "fast=0.72/h"))
    table = against_table(across, number_runs(runs))
    headings = [column.heading for column in table.visible]
    first, _, mean = (dict(zip(headings, cells, strict=True)) for cells in table.cells)
    assert first["images/s"] == "300 ± 3 (3)"
    assert first["images/s slow"] == "100 ± 1 (3)"
    assert (first["times as fast"], first["verdict"]) == ("3", "faster")
    assert first["cost of 1e6"] == "0.667 USD"
    assert first["cost of 1e6 slow"] == "1 USD"
    assert first["times the cost"] == "0.667"
    assert (mean["model"], mean["times as fast"]) == ("geometric mean of 2", "6")
    assert mean["note"] == "from 3 to 12"
    assert mean["times the cost"] == "0.333"  # twice the price, six times as fast
    assert not {"MFU", "J/image", "at spot"} & set(headings)
    header, *rows = table.csv().splitlines()
    beside = dict(zip(header.split(","), rows[0].split(","), strict=True))
    assert beside["reference_price_date"] == "2026-11-01"
    assert beside["price_source"] == "given by --price"
    assert [cells[:5] for cells in prices_table(across).cells] == [
        ["fast", "0.72 USD", "on demand", "-", "-"],
        ["slow", "0.36 USD", "on demand", "2026-11-01", "22 days"],
    ]
    (finding,) = [one for one in find_all(runs, across.prices) if one.kind == "machine speed-up"]
    assert finding.headline.endswith(
        "(2 common configurations); an image costs 0.333 times as much."
    )
    assert "price of slow: 0.36 USD/h, of 2026-11-01 (22 days ago), given by --price" in (
        finding.evidence
    )


def test_the_sentence_about_one_configuration_has_the_interval_and_both_costs():
    known = prices("slow=0.36/h", "fast=0.72/h spot")
    (finding,) = [one for one in find_all(two_machines(), known) if "speed-up" in one.kind]
    assert finding.headline == (
        "fast trains resnet18 fp32 batch 8 3 (95 %: 2.93 to 3.07) times as fast as slow; "
        "a million images cost 0.667 USD (spot) against 1 USD."
    )


def test_two_currencies_are_not_set_against_each_other():
    across = across_machines(two_machines(), prices("slow=0.36 EUR/h", "fast=0.72/h"))
    (pair,) = across.against
    assert pair.cost_ratio is None
    assert pair.shared[0].a.cost.price.currency == "EUR"
    assert across.sentences[-1] == "Costs in EUR and USD are not set against each other."


def test_the_chart_groups_models_and_shows_intervals_where_there_are_any():
    across = across_machines(published(), reference="rtx4080")
    (page,) = speed_up_charts(across.against, {})
    (panel,) = page.chart.panels
    assert panel.y.names[0] == "mobilenet_v2 fp32 batch 128, colab_t4"
    lines = [one for one in panel.series if one.group and one.shape is None]
    markers = [one for one in panel.series if one.shape is not None]
    counted = sum(len(pair.counted) for pair in across.against)
    assert len(markers) == len(panel.y.names) == counted
    assert len(lines) == sum(one.filled for one in markers) < counted
    gaps = np.diff(panel.y.ticks)
    assert sum(gaps > 1) == len({one.group for one in markers}) - 1
    assert "times as fast as rtx4080" in markers[0].hover[0][1]
    draw_chart(page.chart).draw_without_rendering()
    interactive_chart(page.chart).to_json()


def test_many_rows_go_to_further_pages_of_one_axis():
    runs = [
        observation(f"{env}{batch}", rate, env=env, batch_size=batch)
        for env, rate in (("a", 10), ("b", 20), ("c", 40))
        for batch in range(1, 31)
    ]
    pages = speed_up_charts(across_machines(runs).against, {})
    assert [len(page.chart.panels[0].y.names) for page in pages] == [40, 20]
    assert len({page.chart.panels[0].x.limits for page in pages}) == 1


@pytest.mark.slow
def test_the_command_takes_prices_and_a_reference(tmp_path, table):
    records = [
        make.run_record(
            f"{label}-{repeat}",
            step_s=step_s * wobble,
            environment=make.environment(label=label),
            settings={"repeat": repeat},
        )
        for label, step_s in (("one", 1.0), ("two", 0.5))
        for repeat, wobble in enumerate((0.99, 1.0, 1.01), 1)
    ]
    folder = records_on_disk(tmp_path / "records", *records, make.ceilings_record())
    out = tmp_path / "out"
    arguments = ("--records", folder, "--out", out, "--reference", "two", "--prices", table)
    assert invoke(commands.analyse.report, *arguments, "--price", "two=1/h").return_value == 0
    text = (out / "report.md").read_text("utf-8")
    assert "The reference is two, asked for" in text
    assert "Costs in EUR and USD are not set against each other" in text
    assert "times-as-fast.png" in text
    with pytest.raises(UserError, match=r"--price three=\.\.\.: no run is of a machine"):
        invoke(commands.analyse.report, *arguments, "--price", "three=1/h")


@pytest.mark.parametrize(
    ("rates", "ticks"),
    [((100, 103), (1.0, 1.01, 1.02, 1.03)), ((100, 210), (1.0, 1.5, 2.0, 2.5)), ((1, 30), None)],
)
def test_a_short_axis_has_ticks_between_its_ends(rates, ticks):
    runs = [observation(env, rate, env=env) for env, rate in zip("ab", rates, strict=True)]
    (page,) = speed_up_charts(across_machines(runs).against, {})
    assert page.chart.panels[0].x.ticks == ticks
