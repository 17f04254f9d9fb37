"""What a notebook calls: the same answers as the commands give, as tables and figures."""

import json
import subprocess
import sys
from io import StringIO

import factories as make
import pandas as pd
import pytest
from click.testing import CliRunner
from matplotlib.figure import Figure
from observed import Server

import commands.compare
import commands.predict
from analysis import (
    RecordSet,
    compare,
    place_runs,
    plot_roofline,
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
    assert only["because"] == said["why_only_a"][0] == "B has batch 10"
    assert pd.isna(only["ratio"])


@pytest.mark.slow
def test_a_notebook_imports_in_no_time_and_without_torch():
    code = (
        "import sys, analysis; early = set(sys.modules); "
        "[getattr(analysis, name) for name in analysis.__all__]; "
        "heavy = {'pandas', 'scipy', 'matplotlib', 'mlflow', 'torch'}; "
        "print(heavy & early, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set() False\n"
