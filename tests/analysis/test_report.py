"""The report: complete, numbered, escaped, self-contained, and nothing typed by hand."""

import csv
import re
import shlex
from datetime import datetime, timezone
from html.parser import HTMLParser

import factories as make
import pytest
import samples
from observed import published

from analysis import place_profiles, place_runs
from analysis.report import write_report
from analysis.report.sentences import run_command, summary
from analysis.report.tables.group_tables import scaling_table
from analysis.report.tables.machines.machine_tables import environments_table
from analysis.report.tables.run_tables import imported_table
from analysis.report.write import markdown_fence
from analysis.table import (
    latex_text,
    make_table,
    markdown_text,
    number,
    number_runs,
    text,
)
from bench.config import RunConfig, parse_config
from bench.errors import UserError
from bench.records import Finding

WRITTEN = datetime(2025, 6, 2, 9, 30, tzinfo=timezone.utc)
EVIL = "a|b\n<script>alert('x')</script> `c` **d** [e](javascript:f)"


def report(
    folder, measurements=None, ceilings=None, profiles=(), run_ids=None, imported=(), **options
):
    measurements = [make.run_record()] if measurements is None else measurements
    ceilings = [make.ceilings_record()] if ceilings is None else ceilings
    runs = place_runs(measurements, ceilings, profiles, run_ids=run_ids)
    placed = place_profiles(profiles, runs, ceilings, run_ids=run_ids)
    path = write_report(
        [*runs, *imported], folder, profiles=placed, run_ids=run_ids, written=WRITTEN, **options
    )
    assert path == folder / "report.html"
    markdown = (folder / "report.md").read_text(encoding="utf-8")
    return markdown, path.read_text(encoding="utf-8")


def rows(folder, name):
    with (folder / "tables" / f"{name}.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


class Page(HTMLParser):
    """Tags with their attributes, and the visible text."""

    def __init__(self, markup):
        super().__init__()
        self.tags, self.text = [], []
        self._silent = 0
        self.feed(markup)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._silent += tag in ("script", "style")

    def handle_endtag(self, tag):
        self._silent -= tag in ("script", "style")

    def handle_data(self, data):
        if not self._silent:
            self.text.append(data)


def assert_evil_is_text(markdown, html):
    page = Page(html)
    assert "<script>alert('x')</script>" in " ".join("".join(page.text).split())
    assert "alert" not in "".join(str(tag) for tag in page.tags)
    assert "<script>alert" not in html
    blocks = re.findall(r"(?:^\|.*\n)+", markdown, flags=re.M)
    assert len(blocks) >= 9
    for block in blocks:  # one line per row, no cell broken out
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
        assert len(widths) == 1
    prose = markdown[: markdown.index("```")]
    assert "<script" not in prose
    assert "[e](" not in prose


def rendered(tmp_path_factory, *data, **options):
    """A report's folder, its Markdown and its HTML."""
    folder = tmp_path_factory.mktemp("rendered") / "r"
    return folder, *report(folder, *data, **options)


@pytest.fixture(scope="module")
def simple(tmp_path_factory):
    """One run under one ceiling."""
    return rendered(tmp_path_factory, run_ids={"run-1": "abc123", "ceilings-1": "def456"})


@pytest.fixture(scope="module")
def repeated(tmp_path_factory):
    """Two precisions at three batch sizes, three repeats each."""
    records = [
        make.run_record(
            f"{precision}-{batch}-{repeat}",
            batch,
            (0.1 + 0.09 * batch) * speed * (1 + 0.01 * repeat),
            settings={"precision": precision, "repeat": repeat},
            complexity=make.complexity(batch_size=batch, step_flops=batch * 10**9),
        )
        for precision, speed in (("fp32", 1.0), ("amp", 0.5))
        for batch in (8, 16, 32)
        for repeat in (1, 2, 3)
    ]
    return rendered(tmp_path_factory, records)


@pytest.fixture(scope="module")
def troubled(tmp_path_factory):
    """Runs of three machines, all but the first with a problem of their own or hostile text."""
    drift = Finding(code="drift", level="suspect", message="it drifted")
    other = make.environment(label="other", device=make.device(name="Other CPU"))
    evil = make.environment(os=EVIL, device=make.device(name=EVIL))
    records = [
        make.run_record("fine", step_s=0.7, settings={"data": "=HYPERLINK(1)"}),
        make.run_record("drifts", environment=other, verdict=make.suspect(drift)),
        make.failed_record("oom"),
        make.run_record("fast", step_s=0.4),
        make.run_record("roofless", environment=make.environment(machine="arm64")),
        make.run_record(EVIL, settings={"data": EVIL}, environment=evil),
        make.failed_record("evil", reason=EVIL),
    ]
    ceilings = [
        make.ceilings_record(str(number), environment=machine, ceilings=(roof,))
        for number, (machine, roof) in enumerate(
            [
                (make.environment(), make.ceiling()),
                (other, make.ceiling(device="Other CPU")),
                (evil, make.ceiling(device=EVIL, source=EVIL)),
            ]
        )
    ]
    unreadable = ["gone (r9): no record.json"]
    return rendered(tmp_path_factory, records, ceilings, unreadable=unreadable)


@pytest.mark.slow
def test_every_section_and_number_is_there(simple):
    _, markdown, html = simple
    sections = [
        "Analysis",
        "Rooflines",
        "Measurements",
        "Complexity",
        "Environment and reproduction",
        "Limits",
        "References",
    ]
    assert re.findall(r"^## (.*)$", markdown, flags=re.M) == sections
    assert re.findall(r"<h2>(.*?)</h2>", html) == sections
    for heading in ("Ceilings", "Profiles"):
        assert f"### {heading}\n" in markdown
        assert f"<h3>{heading}</h3>" in html
    assert "1 run on 1 machine, on 2025-06-01 12:00 UTC." in markdown
    assert "Written 2025-06-02 09:30 UTC" in markdown
    first = next(line for line in markdown.split("\n") if line.startswith("| lab |"))
    assert [cell.strip() for cell in first.strip("|").split("|")] == [
        "lab", "resnet18", "fp32", "10", "1", "10", "-", "100", "4 to 10", "50 %", "compute",
        "clean", "1",
    ]  # fmt: skip
    assert "| 1 | abc123 | lab |" in markdown
    assert f"| Example CPU | fp32 | 200 | 50 | 4 | measured | {make.MEASURED}" in markdown
    assert "def456" in markdown
    assert "Problems" not in markdown
    assert "Problems" not in html
    assert "No run was profiled. `mlproject profile`" in markdown
    assert "No run was profiled." in "".join(Page(html).text)


def test_tables_and_figures_are_numbered_from_one(simple):
    _, markdown, html = simple
    for page, mark in ((markdown, r"\*\*"), (html, "<strong>")):
        tables = [int(n) for n in re.findall(rf"{mark}Table (\d+)\.", page)]
        figures = [int(n) for n in re.findall(rf"{mark}Figure (\d+)\.", page)]
        assert tables == list(range(1, 9))
        assert figures == list(range(1, len(figures) + 1))
        assert len(figures) == 3
    assert html.count('class="plotly-graph-div"') == html.count("<img src=") == 3


def test_files_that_the_markdown_links_exist(simple):
    folder, markdown, _ = simple
    links = re.findall(r"\]\(([^)]+)\)", markdown)
    assert len(links) >= 7
    assert all((folder / link).is_file() for link in links)


@pytest.mark.slow
def test_csv_tables_hold_all_digits_and_no_formula(troubled):
    row = next(row for row in rows(troubled[0], "measurements") if row["run"] == "fine")
    assert float(row["throughput_images_per_s"]) == pytest.approx(10 / 0.7, rel=1e-12)
    place = next(row for row in rows(troubled[0], "points") if row["run"] == "fine")
    assert float(place["fraction_of_roof_min"]) == pytest.approx(1 / 1.4, rel=1e-12)
    run = next(row for row in rows(troubled[0], "runs") if row["run"] == "fine")
    assert run["measured"] == "2025-06-01T12:00:00+00:00"
    assert run["data"] == "'=HYPERLINK(1)"


@pytest.mark.slow
def test_problems_stand_at_the_top(troubled):
    _, markdown, html = troubled
    box = markdown[: markdown.index("## Analysis")]
    assert box.count("\n> - ") == 6
    for words in (
        "record not read: gone (r9): no record.json",
        "suspect: it drifted",
        "not placed: outcome oom: CUDA out of memory at batch 512",
        "invalid: 125 % of the compute ceiling",
        "not placed: no ceiling: no ceilings were measured on this device",
    ):
        assert words in box
        assert words in "".join(Page(html).text)
    assert "7 runs (2 without a result)" in markdown
    assert html.index('class="problems"') < html.index("<h2>Analysis")


@pytest.mark.slow
def test_hostile_text_is_shown_not_run(troubled):
    assert_evil_is_text(*troubled[1:])


def test_the_html_needs_no_network(simple):
    _, _, html = simple
    page = Page(html)
    sources = [attrs.get("src") for tag, attrs in page.tags if "src" in attrs]
    assert sources
    assert all(re.match(r"data:image/(svg\+xml|png);base64,", source) for source in sources)
    assert not [tag for tag, attrs in page.tags if tag == "link" or "href" in attrs]
    policy = next(a["content"] for t, a in page.tags if a.get("http-equiv"))
    assert policy.startswith("default-src 'none'")
    assert html.count("plotly.js v") == 1  # the script is there, once


@pytest.mark.slow
def test_a_roofline_per_machine_and_one_of_all(simple, troubled):
    for title in ("Roofline, all machines", "Roofline of lab", "Roofline of other"):
        assert f"![{title}]" in troubled[1]
    assert {path.stem for path in (simple[0] / "figures").glob("roofline*")} == {"roofline"}
    named = {path.stem for path in (troubled[0] / "figures").glob("roofline*")}
    assert named >= {"roofline", "roofline-lab", "roofline-other"}


def test_no_run_with_a_place_is_a_report_too(tmp_path):
    markdown, html = report(tmp_path / "r", [make.failed_record()], [])
    for words in ("None of 1 run ended with a measurement", "No run has a place under a roof"):
        assert words in markdown
        assert words in "".join(Page(html).text)
    assert "![Roofline]" not in markdown
    assert {"summary", "runs"} <= {path.stem for path in (tmp_path / "r" / "tables").iterdir()}


def test_environments_of_one_label_are_numbered():
    runs = [
        make.run_record("a"),
        make.run_record("b", environment=make.environment(torch="2.11.0")),
    ]
    table = environments_table(place_runs(runs, []))
    facts = {row["fact"]: row for row in csv.DictReader(table.csv().splitlines())}
    assert facts["PyTorch"]["lab (1)"] == "2.15.0"
    assert facts["PyTorch"]["lab (2)"] == "2.11.0"
    assert "driver" not in facts  # no machine has one


@pytest.mark.parametrize(
    "config",
    [
        RunConfig(),
        RunConfig(arch="vgg16", precision="amp", batch_size=32, augment=True, max_seconds=1.5),
        RunConfig(data="/my data/it's", workers=0, persistent_workers=False, campaign="night-1"),
    ],
)
def test_the_command_repeats_the_run(config):
    words = shlex.split(run_command(config))
    assert words[:2] == ["mlproject", "run"]
    pairs = zip(words[2::2], words[3::2], strict=True)
    given = {name.removeprefix("--").replace("-", "_"): value for name, value in pairs}
    assert parse_config(given).config_id == config.config_id
    assert given["arch"] == config.arch


def test_a_folder_with_other_files_is_refused(tmp_path):
    (tmp_path / "secrets.env").write_text("x")
    with pytest.raises(UserError, match=r"holds other files \(secrets.env\)"):
        report(tmp_path)


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="cannot write the report there"):
        report(tmp_path / "file" / "r")
    with pytest.raises(UserError, match="no measurements to report"):
        report(tmp_path / "r", [])


def test_a_profile_without_any_run_is_a_report_of_itself(tmp_path):
    profile = place_profiles([samples.profile_record()], [], [])
    text = write_report([], tmp_path / "r", profiles=profile).with_suffix(".md").read_text("utf-8")
    assert "1 profile." in text
    assert "Profile 1:" in text
    assert "No run was profiled" not in text


def test_results_are_numbered_in_a_readable_order():
    runs = {"d": ("vgg16", 8), "b": ("resnet18", 64), "a": ("resnet18", 8), "c": ("resnet18", 128)}
    records = [make.run_record(n, batch, settings={"arch": a}) for n, (a, batch) in runs.items()]
    results = place_runs(records, [], run_ids={"a": "run-of-a"})
    assert [(r.number, r.name) for r in results] == [(1, "run-of-a"), (2, "b"), (3, "c"), (4, "d")]


@pytest.mark.parametrize(
    ("record", "verdict"),
    [
        (make.run_record(), "clean"),
        (make.run_record(verdict=None), "not judged"),
        (make.run_record(verdict=make.suspect()), "suspect"),
        (make.run_record(step_s=0.4), "invalid"),
        (make.run_record(step_s=0.4, verdict=make.suspect()), "invalid"),
        (make.failed_record(), "no result"),
    ],
)
def test_the_worse_verdict_counts(record, verdict):
    (result,) = place_runs([record], [make.ceilings_record()])
    assert result.verdict == verdict


def test_markdown_text_and_fences():
    assert markdown_text("a|b\nc") == r"a\|b c"
    assert markdown_text("mobilenet_v2") == "mobilenet_v2"
    assert markdown_text("_a_ <b> & `c`") == r"\_a\_ &lt;b&gt; &amp; \`c\`"
    assert markdown_fence("plain") == "```"
    assert markdown_fence("a ```` b") == "`````"


@pytest.mark.slow
def test_the_analysis_has_its_findings_tables_and_figures(repeated):
    folder, markdown, html = repeated
    for words in ("Precision uplift.", "Batch knee.", "amp-bf16 is 2 times as fast as fp32"):
        assert words in markdown
        assert words in "".join(Page(html).text)
    uplift = rows(folder, "uplift")
    assert [row["batch_size"] for row in uplift] == ["8", "16", "32"]
    assert [float(row["uplift"]) for row in uplift] == pytest.approx([2, 2, 2])
    assert uplift[0]["runs"] == "amp-8-1 amp-8-2 amp-8-3 fp32-8-1 fp32-8-2 fp32-8-3"
    repeats = rows(folder, "summary")
    assert len(repeats) == 6
    deviation = float(repeats[3]["sd_images_per_s"]) / float(repeats[3]["mean_images_per_s"])
    assert deviation == pytest.approx(0.0098, abs=1e-4)
    (model,) = (row for row in rows(folder, "predictions") if row["precision"] == "fp32")
    # 0.1 s a step and 0.09 s an image, by the geometric mean of 1.01, 1.02 and 1.03
    assert float(model["fixed_ms"]) == pytest.approx(102, rel=1e-3)
    assert float(model["per_image_ms"]) == pytest.approx(91.8, rel=1e-3)
    assert float(model["held_out_error"]) == pytest.approx(0, abs=1e-9)
    for name in ("uplift", "complexity", "points", "environments", "batch-gains"):
        assert (folder / "tables" / f"{name}.md").read_text("utf-8").startswith("**Table ")
        assert r"\toprule" in (folder / "tables" / f"{name}.tex").read_text("utf-8")
    captions = [line for line in markdown.splitlines() if line.startswith("**Figure ")]
    assert len(captions) == 10
    kinds = ("throughput", "gain", "efficiency", "intensity", "memory", "prediction")
    files = {path.stem for path in (folder / "figures").glob("*.svg")}
    assert files == {*(f"{kind}-lab" for kind in kinds), "roofline", "variability",
                     "iteration-times", "iterations-in-order"}  # fmt: skip
    assert all(re.search(r"Runs [\d, to]+\. \(\[SVG", line) for line in captions)


def test_imported_runs_are_reported_as_far_as_they_go(tmp_path, monkeypatch):
    monkeypatch.setattr("analysis.report.write.draw_runs", lambda *_: [])  # see test_run_figures
    folder = tmp_path / "r"
    markdown, html = report(folder, [], [], imported=published())
    assert "48 runs (48 imported) on 7 machines." in markdown
    assert "resnet50 fp32: from 398 images/s at batch 128 to 8.8 at batch 256" in markdown
    assert len(rows(folder, "imported")) == 48
    assert "No run has a place under a roof" in "".join(Page(html).text)
    assert not list((folder / "figures").glob("roofline-*"))
    assert not (folder / "tables" / "intensities.csv").exists()
    for line in markdown.splitlines():  # no number of what no one counted
        assert not re.search(r"\d\s*(GFLOP|FLOP/byte)", line)


def test_recorded_and_imported_runs_stand_side_by_side():
    runs = [*place_runs([make.run_record()], [make.ceilings_record()]), *published()[:3]]
    assert summary(runs, []) == "4 runs (3 imported) on 2 machines, on 2025-06-01 12:00 UTC."
    table = imported_table(runs, number_runs(runs))
    assert [row[0] for row in table.cells] == ["2", "3", "4"]


def test_devices_are_held_against_one_of_them():
    many = make.run_record(
        "two",
        settings={"devices": 2},
        measurement=make.measurement(step_s=1.25, images=20),
    )
    runs = place_runs([make.run_record("one"), many], [])
    (row,) = csv.DictReader(scaling_table(runs, number_runs(runs)).csv().splitlines())
    assert float(row["scaling_efficiency"]) == pytest.approx(0.8)  # 16 of 2 x 10 images/s
    assert row["runs"] == "two one"


COLUMNS = (
    text("a", "a_b", lambda row: row[0]),
    number("n", "n", lambda row: row[1]),
    number("low high", "ends", lambda row: row[2:], lambda low, high: f"{low}..{high}"),
)
ROWS = [("x|y", 2 / 3, 1, 2), ("#", None, None, None)]


def test_a_column_says_how_programs_and_people_read_it():
    table = make_table("t", "50 %", ROWS, *COLUMNS, shown=1)
    assert table.csv() == "a,n,low,high\nx|y,0.6666666666666666,1,2\n#,,,\n"
    assert [column.numeric for column in table.columns] == [False, True, True]
    assert table.cells == [["x|y", "0.667", "1..2"]]
    assert table.hidden == 1
    assert make_table("t", "none", [], *COLUMNS).csv() == "a,n,low,high\n"


def test_the_same_tables_for_latex_and_markdown_are_escaped():
    assert latex_text("50 % of a_b & \\x{y} <z>") == (
        r"50 \% of a\_b \& \textbackslash{}x\{y\} \textless{}z\textgreater{}"
    )
    table = make_table("t", "50 %", ROWS, *COLUMNS, shown=1)
    assert table.latex().splitlines() == [
        r"\begin{table}",
        r"\caption{50 \%}\label{tab:t}",
        r"\begin{tabular}{lrr}",
        r"\toprule",
        r"a\_b & n & ends \\",
        r"\midrule",
        r"x\textbar{}y & 0.667 & 1..2 \\",
        r"\# & - & - \\",
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    assert table.markdown().splitlines()[2:] == [
        "| a_b | n | ends |",
        "| --- | ---: | ---: |",
        r"| x\|y | 0.667 | 1..2 |",
        r"| \# | - | - |",
    ]
