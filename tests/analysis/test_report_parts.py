"""What a report opens with, what a person adds, and that nothing which a person wrote is lost."""

import csv
import hashlib
from pathlib import Path

import factories as make
import pytest
import samples
from observed import observation, published
from test_analysis_commands import invoke, records_on_disk

import commands.analyse.report
from analysis import place_runs
from analysis.comparison import METRICS, compare_pairs, pair_runs
from analysis.findings.differences import find_precision_uplift, uplifts
from analysis.report.front_matter import front_matter
from analysis.report.opening import opening
from analysis.report.report_folder import begin_report, end_report, file_names
from analysis.report.tables.group_tables import matrix_table, scatter_table, uplift_table
from analysis.report.tables.machines.machine_tables import (
    environments_table,
    processes_table,
    telemetry_table,
)
from analysis.report.tables.run_tables import phases_table, runs_table
from analysis.report.tables.summary_table import answers, summary_table
from analysis.runs.quantities import percent, three_digits
from analysis.table import number_runs
from bench.config import THROUGHPUT
from bench.errors import UserError
from bench.records import ProcessFigures, Series, Telemetry


def placed(*records, ceilings=None):
    return place_runs(records, [make.ceilings_record()] if ceilings is None else ceilings)


def parsed(table):
    return list(csv.DictReader(table.csv().splitlines()))


# The opening


def test_a_report_opens_with_speed_place_and_sureness():
    (run,) = placed(make.run_record())
    assert opening([run]) == (
        "lab trains resnet18 in fp32 at batch 10 with 10 images/s.",
        "It reaches 100 GFLOP/s, 50 % of what the roof of its machine allows in fp32: "
        "arithmetic is what limits it.",
        "No run is in doubt; it ran once, so nothing is known of how much repeats would differ.",
    )


def test_the_opening_of_many_runs_names_the_fastest_the_ends_and_the_doubts():
    vgg16 = {"arch": "vgg16"}
    records = [
        make.run_record("slow", step_s=2.0, verdict=make.suspect()),
        *(make.run_record(f"fast-{n}", step_s=0.8 + n / 100, settings=vgg16) for n in (1, 2)),
    ]
    speed, roof, sureness = opening(placed(*records, make.failed_record()))
    assert speed.startswith("Of 2 configurations, vgg16 in fp32 at batch 10 on lab trains fastest")
    assert "12.3 images/s with a deviation of 0.87 % between its repeats" in speed
    assert roof.endswith(
        "over all configurations the share is from 25 % (resnet18 in fp32 at batch 10) to "
        "61 % (vgg16 in fp32 at batch 10)."
    )
    alike = opening(placed(make.run_record(), make.run_record("b", settings=vgg16)))[1]
    assert alike.endswith("arithmetic is what limits it; that share is the same in all "
                          "configurations.")  # fmt: skip
    assert sureness.startswith("1 of 4 runs needs care")  # the suspect one has no finding
    assert sureness.endswith("1 of the configurations ran once, so differences of a few percent "
                             "between them say nothing.")  # fmt: skip


@pytest.mark.parametrize(
    ("steps_s", "words"),
    [
        (((1.0, 1.001, 0.999), (0.5, 0.501, 0.499)), "2 times as many as in fp32"),
        (((1.0, 1.001, 0.999), (0.998, 0.999, 0.997)), "as many as in fp32"),
        (((1.0, 1.01), (0.5, 0.6)), "undecided"),
        (((1.0,), (0.5,)), "undecided: 2x (single runs, no interval)"),
    ],
)
def test_the_opening_the_findings_and_compare_speak_of_an_uplift_alike(steps_s, words):
    sides = [
        [make.run_record(f"{name}{n}", step_s=s, settings={"precision": name}) for n, s in
         enumerate(steps)]
        for name, steps in zip(("fp32", "amp"), steps_s, strict=True)
    ]  # fmt: skip
    runs = placed(*sides[0], *sides[1])
    fp32, amp = ([run for run in runs if run.precision.startswith(name)] for name in ("fp32", "a"))
    (found,) = compare_pairs(pair_runs(fp32, amp, THROUGHPUT).pairs, METRICS[THROUGHPUT])
    (uplift,) = uplifts(runs)
    assert uplift.found == found
    assert words in opening(runs)[0]
    assert ("undecided" in words) == (found.word == "undecided")
    (row,) = parsed(uplift_table(runs, number_runs(runs)))
    assert row["verdict"] == found.word
    (finding,) = find_precision_uplift(runs)
    assert ("undecided" in finding.headline) == (found.word == "undecided")


def test_the_opening_and_the_first_table_have_one_number():
    """60 and 50 % of the roof in two repeats: the mean of both, and not the first."""
    runs = placed(make.run_record("a", step_s=0.8), make.run_record("b", step_s=1.0))
    roof = opening(runs)[1]
    (row,) = parsed(summary_table(runs, number_runs(runs)))
    assert f"{percent(float(row['fraction_of_roof_min']))} of what" in roof
    assert f"{three_digits(float(row['attained_gflops']))} GFLOP/s" in roof


def test_a_model_of_sequences_waits_for_sequences():
    waits = make.sequence_record(measurement=make.measurement(wait_s=0.6))
    assert "waiting for sequences is what limits it" in opening(placed(waits))[1]


def test_the_opening_says_why_there_is_no_number():
    nothing = opening(placed(make.failed_record()))
    assert nothing[0] == (
        "None of 1 run ended with a measurement: oom (CUDA out of memory at batch 512)."
    )
    roofless = opening(placed(make.run_record(), ceilings=[]))[1]
    assert roofless.startswith(
        "It has no place under a roof: no ceiling: no ceilings were measured"
    )
    assert opening(published())[1] == "It has no place under a roof: no complexity: not counted."
    loader = observation(metrics={"loader_images_per_s": 900.0})
    assert opening([loader]) == (
        "No model was trained: 1 run loaded images alone, with up to 900 images/s.",
    )


# Tables


def test_the_summary_has_a_row_per_configuration_and_one_for_each_that_only_failed():
    records = [make.run_record(f"run-{n}", step_s=0.9 + n / 100) for n in range(3)]
    again = replace_config(make.failed_record("again"), repeat=9)
    runs = placed(*records, again, make.failed_record("oom", settings={"arch": "vgg16"}))
    assert [len(one.runs) for one in answers(runs)] == [3, 1]
    first, failed = parsed(summary_table(runs, number_runs(runs)))
    assert (first["repeats"], first["verdict"], first["bound"]) == ("3", "clean", "compute")
    assert float(first["attained_gflops"]) == pytest.approx(
        10 * float(first["mean_images_per_s"]), rel=1e-9
    )
    assert summary_table(runs, number_runs(runs)).cells[0][5] == "10.99 \N{PLUS-MINUS SIGN} 0.12"
    assert (failed["arch"], failed["verdict"], failed["mean_images_per_s"]) == ("vgg16", "oom", "")


def replace_config(record, **settings):
    config = record.config.model_copy(update=settings)
    return record.model_copy(update={"config": config})


def test_no_table_repeats_another():
    runs = placed(make.run_record("a"), make.run_record("b", step_s=1.1))
    numbers = number_runs(runs)
    assert scatter_table(runs, numbers).rows == ()  # one configuration: the summary has its SD
    assert len(matrix_table(runs, numbers).rows) == 1
    assert matrix_table(runs[:1], numbers).rows == ()  # as many rows as the table of runs


def test_what_ended_early_is_in_the_table_of_runs():
    why = "max_seconds=9.5 after 8 of 10"
    also = "max_seconds=3.2 after 2 of 3"
    reasons = {"ended_early": why, "warmup_ended_early": also}
    cut = samples.measurement((1.0,) * 8, 10, warmup_times_s=(1.0, 1.0), **reasons)
    settings = {"iters": 10, "warmup_iters": 3}
    whole = samples.measurement((1.0,) * 10, 10, warmup_times_s=(1.0,) * 3)
    runs = placed(
        make.run_record("a", settings=settings, measurement=cut),
        make.run_record("b", settings=settings, measurement=whole),
    )
    table = runs_table(runs)
    headings = [column.heading for column in table.visible]
    cells = [dict(zip(headings, row, strict=True)) for row in table.cells]
    assert [row["warm-up"] for row in cells] == ["2 of 3", "3"]
    assert [row["iterations"] for row in cells] == ["8 of 10", "10"]
    assert [row["window ended early"] for row in cells] == [why, "-"]
    assert [row["warm-up ended early"] for row in cells] == [also, "-"]
    alone = runs_table(runs[1:])
    assert not any("early" in column.heading for column in alone.visible)


def test_phases_processes_telemetry_and_storage_are_there_where_a_run_has_them():
    phases = {"data": 0.1, "forward": 0.3, "backward": 0.5, "optimizer": 0.05}
    split = {name: (time_s,) * 10 for name, time_s in phases.items()}
    timed = samples.measurement((1.0,) * 10, 10, phase_times_s=split)
    process = samples.facts(
        ProcessFigures, real_s=20.0, user_s=30.0, system_s=10.0, max_rss_bytes=3 * 10**9
    )
    idle = {"gpu_utilization_percent": (0.0,), "cpu_utilization_percent": (50.0,)}
    series = {"gpu_power_w": (100.0, 300.0), "cpu_frequency_mhz": (3000.0,), **idle}
    telemetry = samples.facts(
        Telemetry,
        interval_s=1.0,
        series=tuple(
            Series(name=name, source="test", times_s=tuple(range(len(values))), values=values)
            for name, values in series.items()
        ),
        energy_j=500.0,
        throttle_share={"thermal": 0.25},
    )
    full = make.run_record(
        "full",
        measurement=timed,
        process=process,
        telemetry=telemetry,
        environment=make.environment(storage="ext4"),
    )
    bare = make.run_record("bare", batch=20, process=None)
    full, bare = sorted(placed(full, bare), key=lambda run: run.name, reverse=True)
    (row,) = parsed(phases_table([full, bare]))
    assert [float(row[f"{name}_ms"]) for name in phases] == pytest.approx([100, 300, 500, 50])
    assert float(row["other_share"]) == pytest.approx(0.05)
    (row,) = parsed(processes_table([full, bare]))
    assert [float(row[name]) for name in ("real_s", "cores_busy", "max_rss_mb")] == [20, 2, 3000]
    table = telemetry_table([full, bare])
    (row,) = parsed(table)
    means = [float(row[name]) for name in ("power_w", "clock_mhz", "energy_j", "throttled_share")]
    assert means == [200, 3000, 500, 0.25]
    assert float(row["energy_j_per_image"]) == 5
    assert (row["temperature_c"], float(row["utilisation_percent"])) == ("", 0)
    headings = [column.heading for column in table.visible]
    assert "power (W)" in headings
    assert not any("temperature" in heading for heading in headings)
    for tabled in (phases_table, processes_table, telemetry_table):
        assert tabled([bare]).rows == ()
    facts = {row["fact"]: row for row in parsed(environments_table([full, bare]))}
    assert facts["storage"]["lab (1)"] == "ext4"


def test_names_of_files_last_and_differ():
    labels = ["amd-epyc (1)", "amd-epyc", "AMD-EPYC", "a/b\\..", "..", "x" * 200]
    assert file_names(labels) == [
        "amd-epyc-1", "amd-epyc", "AMD-EPYC-2", "a-b", "unnamed", "x" * 80,
    ]  # fmt: skip


# What a person adds

NOTES = """# Aim

Is **amp** worth it? <script>alert(1)</script> [no](javascript:alert(1)) [yes](https://example.org)

Setext
------

| a | b |
| - | - |
| 1 | 2 |

```sh
# no heading
mlproject run
```
"""


@pytest.fixture
def notes_file(tmp_path):
    path = tmp_path / "notes.md"
    path.write_text(NOTES, encoding="utf-8")
    return path


def test_title_author_and_notes_stand_in_both_forms_and_cannot_break_them(
    tmp_path, notes_file, monkeypatch
):
    monkeypatch.setattr("analysis.report.write.draw_runs", lambda *_: [])
    records = records_on_disk(tmp_path / "records", make.run_record(), make.ceilings_record())
    words = ("--title", "a|b <b>*T*</b>", "--author", "A_\n<i>", "--notes", notes_file)
    out = tmp_path / "out"
    assert (
        invoke(commands.analyse.report, "--records", records, "--out", out, *words).return_value
        == 0
    )
    markdown = (out / "report.md").read_text("utf-8")
    html = (out / "report.html").read_text("utf-8")
    assert markdown.startswith("# a\\|b &lt;b&gt;\\*T\\*&lt;/b&gt;\n\nA\\_ &lt;i&gt;\n")
    assert "<h1>a|b &lt;b&gt;*T*&lt;/b&gt;</h1>" in html
    mine = markdown[markdown.index("<!-- notes: begin -->") : markdown.index("<!-- notes: end -->")]
    assert "\n### Aim\n" in mine
    assert "\n#### Setext\n" in mine
    assert "\n# no heading\n" in mine
    mine = html[html.index("<!-- notes: begin -->") : html.index("<!-- notes: end -->")]
    assert "<h3>Aim</h3>" in mine
    assert "<strong>amp</strong>" in mine
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in mine
    assert 'href="https://example.org"' in mine
    assert 'href="javascript' not in mine
    assert "<td>1</td>" in mine
    assert html.index("<table>") < html.index("<h2>Notes</h2>") < html.index("<h2>Analysis</h2>")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read"),
        (b"\xff\xfe", "is not UTF-8 text; save it as UTF-8"),
        (b" \n", "is empty; write something"),
        (b"text\n\n```sh\nmlproject run\n", "is not closed; close it"),
        (b"text\n\n<!-- later\n", "is not closed; close it"),
    ],
)
def test_notes_that_cannot_be_put_in_are_one_line(tmp_path, content, message):
    path = tmp_path / "notes.md"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=message) as refusal:
        front_matter(None, None, path)
    assert "\n" not in str(refusal.value)
    assert "notes.md" in str(refusal.value)


def test_an_empty_title_is_refused():
    with pytest.raises(UserError, match="title='': is empty"):
        front_matter("", None, None)


# What a person edited


def written(folder, text="ours", names=("report.md", "tables/summary.tex")):
    """A folder as a report leaves it."""
    new, moved = begin_report(folder)
    assert moved is None
    for name in names:
        (new / name).write_text(text, encoding="utf-8")
    end_report(new)
    (folder / "report.pdf").touch()
    return [folder / name for name in names]


def test_a_report_that_was_not_edited_is_replaced(tmp_path):
    paths = written(tmp_path / "r", names=("report.md", "tables/summary.tex", "tables/old.csv"))
    (tmp_path / "r" / "figures").mkdir()
    (tmp_path / "r" / "figures" / "mine.png").touch()
    paths[1].unlink()  # moved elsewhere by a person
    other = tmp_path / "other.txt"
    other.write_text("mine", encoding="utf-8")
    with (tmp_path / "r" / "report.sha256").open("a") as sums:
        for name in (f"{other}", "../other.txt"):  # written by somebody else
            sums.write(f"{hashlib.sha256(b'mine').hexdigest()}  {name}\n")
    new, moved = begin_report(tmp_path / "r")
    assert moved is None
    assert paths[0].read_text("utf-8") == "ours"  # until the new one is whole
    (new / "report.md").write_text("newer", encoding="utf-8")
    end_report(new)
    assert other.exists()
    assert paths[0].read_text("utf-8") == "newer"
    left = {path.name for path in (tmp_path / "r").rglob("*") if path.is_file()}
    assert left == {"report.md", "report.sha256", "mine.png"}


@pytest.mark.parametrize("last", range(5))
def test_a_report_cut_short_leaves_a_whole_one_that_does_not_look_edited(
    tmp_path, monkeypatch, last
):
    """There are five renames: the sums of both, three files, the sums of the new one."""
    names = ("report.html", "report.md", "tables/summary.tex")
    paths = written(tmp_path / "r", "older", names)
    real, renames = Path.replace, iter(range(last))

    def rename(path, target):
        next(renames)
        return real(path, target)

    monkeypatch.setattr(Path, "replace", rename)
    with pytest.raises(StopIteration):
        written(tmp_path / "r", "newer", names)
    monkeypatch.undo()
    newer = min(max(last - 1, 0), 3)
    assert sorted(path.read_text("utf-8") for path in paths) == (
        ["newer"] * newer + ["older"] * (3 - newer)
    )
    written(tmp_path / "r", "newest", names)
    assert {path.read_text("utf-8") for path in paths} == {"newest"}


@pytest.mark.parametrize("place", [0, 1])
def test_an_edited_report_is_refused_and_kept(tmp_path, place):
    paths = written(tmp_path / "r")
    paths[place].write_text("ours and mine", encoding="utf-8")
    with pytest.raises(UserError, match="was edited since it was written; give your own text"):
        begin_report(tmp_path / "r")
    assert [path.read_text("utf-8")[:4] for path in paths] == ["ours", "ours"]
    assert "mine" in paths[place].read_text("utf-8")


def test_a_report_that_was_interrupted_is_written_over(tmp_path):
    (begin_report(tmp_path / "r")[0] / "tables" / "half.csv").touch()
    new, moved = begin_report(tmp_path / "r")
    assert moved is None
    assert not list((new / "tables").iterdir())


def test_a_report_of_an_earlier_version_is_moved_aside(tmp_path):
    """It kept no sums, so nobody can know whether it was edited."""
    for number in (1, 2):
        (tmp_path / "r").mkdir(exist_ok=True)
        (tmp_path / "r" / "report.md").write_text(f"my words {number}", encoding="utf-8")
        (tmp_path / "r" / "report.sha256").unlink(missing_ok=True)
        _, aside = begin_report(tmp_path / "r")
        assert aside == tmp_path / f"r-earlier-{number}"
        assert (aside / "report.md").read_text("utf-8") == f"my words {number}"
        assert not (tmp_path / "r" / "report.md").exists()
