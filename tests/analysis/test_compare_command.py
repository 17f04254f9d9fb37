"""`mlproject compare` as a user calls it: records, campaigns, run ids; its gate and its files."""

import json

import factories as make
import numpy as np
import pytest
from observed import published, repeated
from test_analysis_commands import invoke, records_on_disk

import commands.analyse.compare
from analysis.comparison import METRICS, compare_pairs, pair_runs, read_sides
from analysis.figures import single_axes
from analysis.figures.charts.forest_plot import draw_forest, forest_height_in
from bench.errors import UserError

THROUGHPUT = METRICS["throughput_images_per_s"]


def runs_on_disk(folder, name, step_s, **config):
    records = [
        make.run_record(
            f"{name}-{repeat}", step_s=step_s * wobble, settings={"repeat": repeat, **config}
        )
        for repeat, wobble in enumerate((0.999, 1.0, 1.001), 1)
    ]
    return f"records={records_on_disk(folder / name, *records)}"


@pytest.mark.parametrize(("step_s", "word", "code"), [(0.9, "faster", 0), (1.1, "slower", 1)])
def test_the_gate_fails_where_b_is_slower(tmp_path, step_s, word, code):
    a, b = runs_on_disk(tmp_path, "a", 1.0), runs_on_disk(tmp_path, "b", step_s)
    done = invoke(commands.analyse.compare, a, b)
    assert done.return_value == code
    assert word in done.output
    assert "differ in no setting" in done.output


def test_the_files_hold_the_table_and_the_picture(tmp_path):
    a = runs_on_disk(tmp_path, "a", 1.0)
    b = runs_on_disk(tmp_path, "b", 0.9, channels_last="false")
    done = invoke(commands.analyse.compare, a, b, "--out", tmp_path / "out", "--format", "json")
    facts = json.loads(done.output)
    assert facts["told_apart_by"] == ["channels_last"]
    (one,) = facts["comparisons"]
    assert one["verdict"] == "faster"
    assert one["ratio"] == pytest.approx(1 / 0.9, rel=1e-3)
    assert one["a_runs"] == ["a-1", "a-2", "a-3"]
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {f"comparison.{suffix}" for suffix in ("csv", "md", "tex", "png", "svg")}
    assert r"\begin{tabular}" in (tmp_path / "out" / "comparison.tex").read_text("utf-8")


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    a, b = runs_on_disk(tmp_path, "a", 1.0), runs_on_disk(tmp_path, "b", 1.0)
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="cannot write there"):
        invoke(commands.analyse.compare, a, b, "--out", tmp_path / "file" / "x")


def test_machines_of_one_label_are_told_apart_across_the_sides(tmp_path):
    """Two processors call themselves the same: neither is the other's baseline."""
    folders = []
    for name, signature in (("a", "family 25 model 17"), ("b", "family 26 model 2")):
        machine = make.environment(cpu_signature=signature)
        record = make.run_record(name, environment=machine)
        folders.append(f"records={records_on_disk(tmp_path / name, record)}")
    (one,), (other,) = read_sides(*folders)
    assert {one.env, other.env} == {"lab (1)", "lab (2)"}
    done = invoke(commands.analyse.compare, *folders)
    assert "differ in env" in done.output


def forest(comparisons, threshold=0.02):
    figure, axes = single_axes(3.5, forest_height_in(len(comparisons)))
    draw_forest(axes, comparisons, threshold=threshold)
    figure.draw_without_rendering()
    return axes


def test_the_forest_shows_each_interval_at_its_ratio():
    runs = [run for run in published() if run.env == "rtx4090"]
    a = [run for run in runs if run.precision == "fp32"]
    b = [run for run in runs if run.precision == "amp"]
    comparisons = compare_pairs(pair_runs(a, b, THROUGHPUT.name).pairs, THROUGHPUT)
    axes = forest(comparisons)
    assert len(axes.get_yticks()) == len(comparisons) == 9
    ends = {tuple(line.get_xdata()) for line in axes.lines if len(line.get_xdata()) == 2}
    assert all((c.estimate.low, c.estimate.high) in ends for c in comparisons)


def test_the_forest_takes_nothing_one_and_too_many():
    assert [text.get_text() for text in forest([]).texts] == ["nothing to compare"]
    pairs = [
        pair
        for batch in range(80)
        for pair in pair_runs(
            repeated(f"a{batch}", [100.0], batch_size=batch),
            repeated(f"b{batch}", [100.0 + batch], batch_size=batch),
            THROUGHPUT.name,
        ).pairs
    ]
    axes = forest(compare_pairs(pairs, THROUGHPUT))
    assert len(axes.get_yticks()) == 60
    assert axes.get_title(loc="left") == "lab resnet18 fp32; and 20 nearer to 1"
    assert np.ptp(forest(compare_pairs(pairs[:1], THROUGHPUT)).get_xlim()) > 0.05


def two_machines_on_disk(tmp_path):
    sides = []
    for label, step_s in (("one", 1.0), ("two", 0.8)):
        machine = make.environment(label=label)
        runs = [
            make.run_record(
                f"{label}-{repeat}",
                step_s=step_s * wobble,
                environment=machine,
                settings={"repeat": repeat},
            )
            for repeat, wobble in enumerate((0.999, 1.0, 1.001), 1)
        ]
        roof = make.ceilings_record(label, environment=machine)
        sides.append(f"records={records_on_disk(tmp_path / label, roof, *runs)}")
    return sides


def test_of_two_machines_shares_energy_and_cost_stand_beside_the_speed(tmp_path):
    sides = two_machines_on_disk(tmp_path)
    prices = ("--price", "one=3.6/h 2025-01-01", "--price", "two=3.6/h")
    done = invoke(commands.analyse.compare, *sides, *prices, "--out", tmp_path / "out")
    text = " ".join(done.output.split())
    assert "B is 1.25 times as fast as A (95 %: " in text
    assert "an image costs 0.8 times as much" in text
    assert "80 USD 100 USD 0.8" in text
    assert "MFU B MFU A" in text
    assert "No energy of one and two (" in text
    assert "price of one: 3.6 USD/h, of 2025-01-01 (" in text
    assert "old: look it up again), given by --price" in text
    csv = (tmp_path / "out" / "machines.csv").read_text("utf-8")
    assert "reference_price_date" in csv
    assert "2025-01-01" in csv
    facts = json.loads(invoke(commands.analyse.compare, *sides, "--format", "json").output)
    assert facts["machines"]["mean_ratio"] == pytest.approx(1.25, rel=1e-3)
    (one,) = facts["machines"]["configurations"]
    assert one["a"]["mfu"] == pytest.approx(0.5, rel=1e-2)
    assert one["b"]["mfu"] == pytest.approx(0.625, rel=1e-2)
    assert one["a"]["cost"] is None
    assert one["a"]["missing"]["cost"] == "no price was given"
    markdown = invoke(commands.analyse.compare, *sides, *prices, "--format", "markdown").output
    assert "| two | resnet18 | fp32 | 10 |" in markdown
    assert "- price of two: 3.6 USD/h, undated, given by --price" in markdown


def test_one_machine_has_its_cost_where_a_price_is_given_and_only_by_images_per_s(tmp_path):
    sides = runs_on_disk(tmp_path, "a", 1.0), runs_on_disk(tmp_path, "b", 0.9)
    assert "MFU" not in invoke(commands.analyse.compare, *sides).output
    priced = (*sides, "--price", "lab=1/h")
    assert "an image costs 0.9 times as much" in " ".join(
        invoke(commands.analyse.compare, *priced).output.split()
    )
    with pytest.raises(UserError, match="a cost follows from images/s"):
        invoke(commands.analyse.compare, *priced, "--metric", "real_s")
    with pytest.raises(UserError, match="no run is of a machine"):
        invoke(commands.analyse.compare, *sides, "--price", "other=1/h")
