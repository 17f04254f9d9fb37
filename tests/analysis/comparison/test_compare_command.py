"""`mlproject compare` as a user calls it: records, campaigns, run ids; its gate and its files."""

import json

import factories as make
import pytest
from observed import invoke, records_on_disk

import commands.compare
from analysis.comparison import read_sides
from bench.errors import UserError


def measured(name, batch=10, step_s=1.0, environment=None, **settings):
    """Three repeats of a configuration."""
    return [
        make.run_record(
            f"{name}{batch}-{repeat}",
            batch,
            step_s * wobble,
            settings={"repeat": repeat, **settings},
            environment=environment or make.environment(),
        )
        for repeat, wobble in enumerate((0.999, 1.0, 1.001), 1)
    ]


def on_disk(folder, a, b):
    """The two sides as the command takes them."""
    return [f"records={records_on_disk(folder / n, *runs)}" for n, runs in (("a", a), ("b", b))]


def words_of(*arguments):
    return " ".join(invoke(commands.compare, *arguments).output.split())


def test_the_files_hold_the_table_and_the_picture(tmp_path):
    sides = on_disk(tmp_path, measured("a"), measured("b", step_s=0.9, channels_last="false"))
    done = invoke(commands.compare, *sides, "--out", tmp_path / "out", "--format", "json")
    facts = json.loads(done.output)
    assert facts["told_apart_by"] == ["channels_last"]
    assert facts["comparisons"][0]["ratio"] == pytest.approx(1 / 0.9, rel=1e-3)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    table = {f"comparison.{suffix}" for suffix in ("csv", "md", "tex", "png", "svg")}
    assert names == table | {"compare.json", "compare.md"}
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="cannot write there"):
        invoke(commands.compare, *sides, "--out", tmp_path / "file" / "x")


def test_machines_of_one_label_are_told_apart_across_the_sides(tmp_path):
    """Two processors call themselves the same: neither is the other's baseline."""
    machines = (make.environment(cpu_signature=f"family 25 model {n}") for n in (17, 2))
    sides = on_disk(
        tmp_path, *([make.run_record(f"r{n}", environment=m)] for n, m in enumerate(machines))
    )
    (one,), (other,) = read_sides(*sides)
    assert {one.env, other.env} == {"lab (1)", "lab (2)"}
    assert "differ in env" in words_of(*sides)


def test_of_two_machines_shares_energy_and_cost_stand_beside_the_speed(tmp_path):
    environments = {label: make.environment(label=label) for label in ("one", "two")}
    sides = on_disk(
        tmp_path,
        *(
            [make.ceilings_record(label, environment=own), *measured(label, 10, step_s, own)]
            for (label, own), step_s in zip(environments.items(), (1.0, 0.8), strict=True)
        ),
    )
    prices = ("--price", "one=3.6/h 2025-01-01", "--price", "two=3.6/h")
    text = words_of(*sides, *prices, "--out", tmp_path / "out")
    assert "B is 1.25 times as fast as A (95 %: " in text
    assert "an image costs 0.8 times as much" in text
    assert "80 USD 100 USD 0.8" in text
    assert "MFU B MFU A" in text
    assert "No energy of one and two (" in text
    assert "price of one: 3.6 USD/h, of 2025-01-01, given by --price" in text
    header, row = (tmp_path / "out" / "machines.csv").read_text("utf-8").splitlines()
    assert row.split(",")[header.split(",").index("reference_price_date")] == "2025-01-01"
    facts = json.loads(invoke(commands.compare, *sides, "--format", "json").output)["machines"]
    assert facts["mean_ratio"] == pytest.approx(1.25, rel=1e-3)
    (one,) = facts["configurations"]
    assert one["reference_fraction_of_peak"] == pytest.approx(0.5, rel=1e-2)
    assert one["fraction_of_peak"] == pytest.approx(0.625, rel=1e-2)
    assert one["cost_ratio"] is None
    assert facts["missing"][0]["a"]["cost"] == "no price was given"
    markdown = invoke(commands.compare, *sides, *prices, "--format", "markdown").output
    assert "| two | resnet18 | fp32 | 10 |" in markdown
    assert "- price of two: 3.6 USD/h, undated, given by --price" in markdown


def test_one_machine_has_its_cost_where_a_price_is_given_and_only_by_images_per_s(tmp_path):
    sides = on_disk(tmp_path, measured("a"), measured("b", step_s=0.9))
    plain = words_of(*sides)
    assert "differ in no setting" in plain
    assert "MFU" not in plain
    priced = (*sides, "--price", "lab=1/h")
    assert "an image costs 0.9 times as much" in words_of(*priced)
    with pytest.raises(UserError, match="a cost follows from images/s"):
        invoke(commands.compare, *priced, "--metric", "real_s")
    with pytest.raises(UserError, match="no run is of a machine"):
        invoke(commands.compare, *sides, "--price", "other=1/h")
