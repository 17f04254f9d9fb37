"""What a notebook calls: the same answers as the commands give, as tables and figures."""

import json
from io import StringIO

import factories as make
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from matplotlib.figure import Figure
from observed import Server, curve, observation
from worker_processes import output_of

import commands.compare
import commands.predict
from analysis import (
    RecordSet,
    compare,
    place_runs,
    plot_roofline,
    predict,
    pull_points,
)
from bench.errors import UserError

PIXELS = b"\x89PNG"


def of_tracked(monkeypatch, *records):
    Server(monkeypatch, records=[*records, make.ceilings_record()])
    return pull_points()


def test_the_roofline_of_chosen_rows_of_a_file_and_of_placed_runs(monkeypatch):
    table = of_tracked(monkeypatch, make.run_record("a"), make.run_record("b", 20, 2.0))
    text = table.to_csv(index=False)
    again = pd.read_csv(StringIO(text))
    backends = ("numpy_nullable", "pyarrow")
    typed = [pd.read_csv(StringIO(text), dtype_backend=backend) for backend in backends]
    runs = place_runs([make.run_record("a")], [make.ceilings_record()])
    chosen = table[table["batch_size"] == 20]
    for points in (table, chosen, again, runs, table.iloc[:0], table.convert_dtypes(), *typed):
        figure = plot_roofline(points)
        assert isinstance(figure, Figure)
        assert figure._repr_png_().startswith(PIXELS)
    assert "batch 20" in plot_roofline(again, interactive=True).to_json()
    with pytest.raises(UserError, match="points: the table has no column peak_gflops; give one of"):
        plot_roofline(table.drop(columns="peak_gflops"))
    with pytest.raises(UserError, match="math_mode_ran='int8'"):
        plot_roofline(table.assign(math_mode_ran="int8"))


def test_compare_gives_the_commands_numbers(monkeypatch):
    before = [make.run_record(f"a{n}", step_s=1 + n / 100) for n in range(3)]
    after = [make.run_record(f"b{n}", step_s=0.5 + n / 100) for n in range(3)]
    alone = make.run_record("a9", 20)
    a, b = (RecordSet.of(side).runs() for side in ([*before, alone], after))
    table = compare(a, b)
    monkeypatch.setattr("analysis.comparison.read_sides", lambda *_: (a, b))
    done = CliRunner().invoke(commands.compare.Compare.command(), ["a", "b", "--format", "json"])
    said = json.loads(done.output)
    [told] = said["comparisons"]
    row, only = table.iloc[0], table.iloc[1]
    assert (row["configuration"], row["verdict"]) == (told["configuration"], told["verdict"])
    for name in ("ratio", "ratio_low", "ratio_high", "p_corrected"):
        assert row[name] == told[name]
    assert (row["a_repeats"], row["b_repeats"], row["a_runs"]) == (3, 3, told["a_runs"])
    rate = "throughput_images_per_s"
    assert row[f"b_{rate}"] / row[f"a_{rate}"] == pytest.approx(row["ratio"])
    assert [row["batch_size"], row["a_env"], row["b_arch"]] == [10, "lab", "resnet18"]
    assert [only["batch_size"], only["a_env"], only["verdict"]] == [20, "lab", "only in A"]
    assert only["because"] == said["why_only_a"][0] == "B ran with batch_size 10"
    assert pd.isna(only["ratio"])


def test_compare_of_single_runs_has_no_interval_and_says_why():
    table = compare([observation("a", 100)], [observation("b", 150)])
    assert table.loc[0, "ratio"] == pytest.approx(1.5)
    assert table[["ratio_low", "ratio_high", "p_corrected"]].add(1).isna().all(axis=None)
    assert table.loc[0, "verdict"] == "undecided"
    assert "variance unknown" in table.loc[0, "because"]
    for wrong, message in (
        ({"metric": "speed"}, "metric='speed': compare one of"),
        ({"threshold": -0.5}, "threshold=-0.5: give a share of at least 0"),
    ):
        with pytest.raises(UserError, match=message):
            compare([observation("a")], [observation("b")], **wrong)


def test_predict_gives_the_commands_numbers(monkeypatch):
    runs = curve({8: 80.0, 16: 130.0, 32: 180.0, 64: 230.0})
    table = predict(runs, "resnet18", [24, 48])
    monkeypatch.setattr(RecordSet, "runs", lambda _: runs)
    Server(monkeypatch, records=[make.run_record()])
    arguments = ["--arch", "resnet18", "--batch-size", "24", "--batch-size", "48"]
    done = CliRunner().invoke(
        commands.predict.Predict.command(), [*arguments, "--format", "json"], catch_exceptions=False
    )
    for row, told in zip(table.to_dict("records"), json.loads(done.output), strict=True):
        assert row.items() <= told.items()
    for one in (24, np.int64(24)):  # a cell of a table is numpy's
        assert predict(runs, "resnet18", one)["images_per_s"][0] == table["images_per_s"][0]
    with pytest.raises(UserError, match="vgg16"):
        predict(runs, "vgg16", 24)


@pytest.mark.slow
def test_a_notebook_imports_in_no_time_and_without_torch():
    code = (
        "import sys, analysis; early = set(sys.modules); "
        "[getattr(analysis, name) for name in analysis.__all__]; "
        "heavy = {'pandas', 'scipy', 'matplotlib', 'mlflow', 'torch'}; "
        "print(heavy & early, 'torch' in sys.modules)"
    )
    assert output_of(code) == "set() False\n"
