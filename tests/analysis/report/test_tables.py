"""Tables: numbers for people, what columns say, what rows hold, and how they are written."""

from datetime import datetime, timezone

import factories as make
import pytest
import samples

from analysis import place_runs
from analysis.presentation.columns import C, both_sides, columns, csv_only, table
from analysis.presentation.table import (
    Column,
    RunList,
    RunNumbers,
    Table,
    latex_text,
    markdown_text,
)
from analysis.presentation.words import (
    as_fast_as,
    interval,
    percent,
    percent_interval,
    plus_minus,
    three_digits,
    times,
)
from analysis.report.run_tables import configuration_tables, run_tables
from analysis.report.write import markdown_fence
from analysis.runs.groups import configurations

NOON = datetime(2025, 6, 1, 12, tzinfo=timezone.utc)
SHOWN = (
    Column("a_b", ("a",)),
    Column("n", ("n",), numeric=True),
    Column("ends", ("low", "high"), lambda low, high: f"{low}..{high}", numeric=True),
)
ROWS = [{"a": "x|y", "n": 2 / 3, "low": 1, "high": 2}, {"a": "#", "other": 7}]
WHOLE = Table("t", "50 %", ROWS, SHOWN, shown=1)


def test_what_joins_devices_is_a_row_beside_their_roof():
    links = (samples.all_reduce(1024, 2e-5), samples.all_reduce(2**20, 2**20 / 1e9))
    runs = place_runs([samples.run_record()], [samples.ceilings_record(all_reduces=links)])
    link, roof = run_tables(runs)["ceilings"].rows
    assert roof["peak_gflops"] > 0
    assert (link["peak_gb_per_s"], link["peak_gflops"]) == (pytest.approx(1), None)
    assert link["math_mode"] == "all-reduce, 2 devices, gloo"
    assert link["ceiling_source"] == "1 GB/s on the bus at 1 MiB, 20 us at 1 KiB"


def test_a_column_that_people_have_elsewhere_is_in_the_csv_alone():
    shown = Table("t", "", ROWS, (SHOWN[0], *csv_only(SHOWN[1])))
    assert (shown.keys, [column.heading for column in shown.visible]) == (["a", "n"], ["a_b"])


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (three_digits(1234567), "1230000"),
        (three_digits(999999), "1000000"),
        (three_digits(0.00012345), "0.000123"),
        (percent(-1.234), "-123 %"),
        (percent(-0.0512), "-5.1 %"),
        (percent(0.0995), "10 %"),
        (percent_interval(0.003, 0.004), "0.3 to 0.4 %"),
        (percent_interval(0.187, 0.341), "19 to 34 %"),
        (percent_interval(0.5, 0.501), "50 %"),
        (plus_minus(1234.5, 0.9), "1234.5 \N{PLUS-MINUS SIGN} 0.9"),
        (plus_minus(1234.5, 120), "1230 \N{PLUS-MINUS SIGN} 120"),
        (plus_minus(10.0, 0.0), "10 \N{PLUS-MINUS SIGN} 0"),
        (plus_minus(10.0, None), "10"),
        (interval(1231, 1234), "1231 to 1234"),
        (interval(1.004, 1.0049), "1.004 to 1.0049"),
        (interval(0.288, 11.3), "0.288 to 11.3"),
        (interval(2.0, 2.0 + 1e-9), "2"),
        (times(1.004), "1.004x"),
        (times(1.8312), "1.83x"),
        (times(1.0), "1x"),
        (as_fast_as(1.0, 1.0), "as fast as"),
        (as_fast_as(5 / 3, 5 / 3 + 1e-9), "1.67 times as fast as"),
        (as_fast_as(1.0004, 1.0004), "1.0004 times as fast as"),
        (as_fast_as(1.0, 1.004), "1 to 1.004 times as fast as"),
        (markdown_text("a|b\nc"), r"a\|b c"),
        (markdown_text("mobilenet_v2"), "mobilenet_v2"),
        (markdown_text("_a_ <b> & `c`"), r"\_a\_ &lt;b&gt; &amp; \`c\`"),
        (
            latex_text("50 % of a_b & \\x{y} <z>"),
            r"50 \% of a\_b \& \textbackslash{}x\{y\} \textless{}z\textgreater{}",
        ),
        (markdown_fence("a ```` b"), "`````"),
        (RunNumbers({"a": 1, "b": 2, "c": 4, "d": 5, "e": 6}).words("fedcba"), "1, 2, 4 to 6"),
    ],
)
def test_a_number_is_as_long_as_it_needs_to_be_and_a_text_is_shown_as_it_stands(shown, expected):
    assert shown == expected


# The table


def test_a_table_is_one_thing_for_programs_and_another_for_people():
    assert WHOLE.csv() == "a,n,low,high\nx|y,0.6666666666666666,1,2\n#,,,\n"
    assert WHOLE.facts()[1] == {"a": "#", "n": None, "low": None, "high": None}
    assert (WHOLE.cells, WHOLE.hidden) == ([["x|y", "0.667", "1..2"]], 1)
    assert Table("t", "none", [], SHOWN).csv() == "a,n,low,high\n"
    assert WHOLE.without("n").keys == ["a", "low", "high"]
    assert WHOLE.markdown().splitlines()[2:] == [
        *("| a_b | n | ends |", "| --- | ---: | ---: |"),
        *(r"| x\|y | 0.667 | 1..2 |", r"| \# | - | - |"),
    ]
    assert WHOLE.latex().splitlines() == [
        *(r"\begin{table}", r"\caption{50 \%}\label{tab:t}", r"\begin{tabular}{lrr}", r"\toprule"),
        *(r"a\_b & n & ends \\", r"\midrule", r"x\textbar{}y & 0.667 & 1..2 \\", r"\# & - & - \\"),
        *(r"\bottomrule", r"\end{tabular}", r"\end{table}"),
    ]
    empty = Table("t", "", [{"a": "x", "low": ()}], SHOWN)
    assert make.cells_of(empty) == [{"a_b": "x"}]  # people see no column that is empty
    assert empty.keys == ["a", "n", "low", "high"]


def test_what_is_no_number_and_no_text_has_a_form_for_each_reader():
    rows = [{"at": NOON, "runs": RunList(("one", "two")), "low": ("p", "q")}]
    shown = tuple(Column(key, (key,)) for key in ("at", "runs", "low"))
    held = Table("t", "", RunNumbers({"one": 3, "two": 4}).put_in(rows), shown)
    assert held.cells == [["2025-06-01 12:00 UTC", "3, 4", "p; q"]]
    assert held.facts() == [{"at": NOON.isoformat(), "runs": ["one", "two"], "low": ["p", "q"]}]
    assert held.csv().splitlines()[1] == f"{NOON.isoformat()},one two,p; q"


# Columns


def test_a_column_speaks_of_the_sample_that_the_runs_train_on():
    shown = table("t", "per {sample}", [], (C.rate, C.per_sample_ms), "image")
    assert (shown.title, shown.keys) == ("per image", ["images_per_s", "per_image_ms"])
    rate, each = columns((C.rate, C.per_sample_ms), "sequence")
    assert (rate.keys, rate.heading) == (("samples_per_s",), "sequences/s")
    assert (each.keys, each.heading) == (("per_sample_ms",), "ms a sequence")
    ours, theirs = both_sides((C.rate,), "image", ("", "reference_"), ("", "lab"))
    assert (ours.keys, ours.heading) == (("images_per_s",), "images/s")
    assert (theirs.keys, theirs.heading) == (("reference_images_per_s",), "images/s lab")


# The tables of runs and configurations


def placed(*records):
    return place_runs(records, [make.ceilings_record()])


def test_the_summary_has_a_row_per_configuration_and_one_for_each_that_only_failed():
    records = [make.run_record(f"run-{n}", step_s=0.9 + n / 100) for n in range(3)]
    again = make.failed_record("again", settings={"repeat": 9})
    runs = placed(*records, again, make.failed_record("oom", settings={"arch": "vgg16"}))
    assert [len(one.runs) for one in configurations(runs)] == [3, 1]
    first, failed = make.rows_of(configuration_tables(runs)["summary"])
    assert (first["repeats"], first["verdict"], first["bound"]) == ("3", "clean", "compute")
    attained = 10 * float(first["images_per_s"])
    assert float(first["attained_gflops"]) == pytest.approx(attained, rel=1e-9)
    shown = make.cells_of(configuration_tables(runs)["summary"])[0]
    assert shown["images/s, mean ± SD"] == "10.99 \N{PLUS-MINUS SIGN} 0.12"
    assert (failed["arch"], failed["verdict"], failed["images_per_s"]) == ("vgg16", "oom", "")
