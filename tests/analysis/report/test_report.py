"""The report: complete, numbered, escaped, self-contained, and nothing typed by hand."""

import csv
import re
import shlex
from datetime import datetime, timezone
from html.parser import HTMLParser

import factories as make
import pytest
import samples
from observed import observation, published

from analysis import place_runs
from analysis.comparison import METRICS, compare_pairs, pair_runs
from analysis.findings import conclusions
from analysis.findings.differences import uplifts
from analysis.presentation.words import percent, three_digits
from analysis.report.run_tables import configuration_tables
from analysis.report.sentences import commands, matrix, opening
from analysis.report.write import write_report
from analysis.runs.groups import Runs
from analysis.runs.place import place_profiles
from bench.config import THROUGHPUT, RunConfig, parse_config
from bench.errors import UserError
from bench.records import Finding
from campaigns.matrix import read_matrix

pytestmark = pytest.mark.usefixtures("unpainted")
WRITTEN = datetime(2025, 6, 2, 9, 30, tzinfo=timezone.utc)
EVIL = "a|b\n<script>alert('x')</script> `c` **d** [e](javascript:f)"


def report(folder, records=None, ceilings=None, profiles=(), imported=(), **options):
    records = [make.run_record()] if records is None else records
    ceilings = [make.ceilings_record()] if ceilings is None else ceilings
    runs = place_runs(records, ceilings, profiles)
    placed = place_profiles(profiles, runs, ceilings)
    path = write_report([*runs, *imported], folder, profiles=placed, written=WRITTEN, **options)
    return path.with_suffix(".md").read_text("utf-8"), path.read_text("utf-8")


def rows(folder, name):
    with (folder / "tables" / f"{name}.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


class Page(HTMLParser):
    """Tags with their attributes, and the visible text."""

    def __init__(self, markup):
        super().__init__()
        self.tags, self.text = [], ""
        self._silent = 0
        self.feed(markup)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._silent += tag in ("script", "style")

    def handle_endtag(self, tag):
        self._silent -= tag in ("script", "style")

    def handle_data(self, data):
        self.text += data * (not self._silent)


@pytest.fixture(scope="module")
def troubled(tmp_path_factory, unpainted):
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
    roofs = ((make.environment(), {}), (other, {"device": "Other CPU"}))
    ceilings = [
        make.ceilings_record(str(number), environment=machine, ceilings=(make.ceiling(**roof),))
        for number, (machine, roof) in enumerate([*roofs, (evil, {"device": EVIL, "source": EVIL})])
    ]
    profile = make.profile(
        EVIL,
        ops=samples.op_profile(samples.op_time(EVIL), method=EVIL),
        counters=samples.counters(samples.kernel(EVIL), source=EVIL),
        work=None,
    )
    folder = tmp_path_factory.mktemp("troubled") / "r"
    return folder, *report(folder, records, ceilings, [profile], unreadable=["gone (r9): no file"])


def test_both_forms_have_the_same_parts_in_the_same_order(troubled):
    folder, markdown, html = troubled
    headings = [(len(signs), words) for signs, words in re.findall(r"(?m)^(##+) (.*)$", markdown)]
    of_page = re.findall(r"<h([2-4])[^>]*>(.*?)</h", html)
    assert [(int(level), words) for level, words in of_page if "Problems" not in words] == headings
    for what in ("Table", "Figure"):
        numbers = re.findall(rf"\*\*{what} (\d+)\.", markdown)
        assert numbers == [str(n + 1) for n in range(len(numbers))]
        assert re.findall(rf"<strong>{what} (\d+)\.", html) == numbers
    assert html.count('class="plotly-graph-div"') == html.count("<img src=") == len(numbers)
    assert html.count("plotly.js v") == 1  # the script is there, once
    links = [link for link in re.findall(r"\]\(([^)]+)\)", markdown) if "javascript" not in link]
    assert len(links) > 2 * len(numbers)
    assert all((folder / link).is_file() for link in links)
    prose = re.findall(r"(?m)^- (.*)$", markdown[markdown.index("## Limits") :])
    assert all(line in Page(html).text for line in prose)
    box = re.findall(r"(?m)^> - (.*)$", markdown[: markdown.index("## Analysis")])
    assert (len(box), box[0]) == (6, "record not read: gone (r9): no file")
    on_page = html[html.index('class="problems"') : html.index('id="design"')]
    assert on_page.count("<li>") == 6


def test_hostile_text_is_shown_not_run(troubled):
    _, markdown, html = troubled
    page = Page(html)
    assert "<script>alert('x')</script>" in " ".join(page.text.split())
    assert "alert" not in "".join(str(tag) for tag in page.tags)
    assert "<script>alert" not in html
    blocks = re.findall(r"(?:^\|.*\n)+", markdown, flags=re.M)
    assert len(blocks) >= 9
    for block in blocks:  # one line per row, no cell broken out
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
        assert len(widths) == 1
    prose = markdown[: markdown.index("```")]
    assert not re.search(r"<script|\[e\]\(", prose)


def test_the_html_needs_no_network(troubled):
    page = Page(troubled[2])
    sources = [attrs.get("src") for tag, attrs in page.tags if "src" in attrs]
    assert sources
    assert all(re.match(r"data:image/(svg\+xml|png);base64,", source) for source in sources)
    led_to = {attrs["href"] for _, attrs in page.tags if "href" in attrs}
    assert {"#design", "#run-1"} < led_to <= {f"#{attrs.get('id')}" for _, attrs in page.tags}
    assert not [tag for tag, _ in page.tags if tag == "link"]
    policy = next(a["content"] for t, a in page.tags if a.get("http-equiv"))
    assert policy.startswith("default-src 'none'")


def test_csv_tables_hold_all_digits_and_no_formula(troubled):
    asked, measured = (
        next(row for row in rows(troubled[0], name) if row["run"] == "fine")
        for name in ("runs", "measurements")
    )
    rate = float(measured["throughput_images_per_s"])
    assert rate == pytest.approx(10 / 0.7, rel=1e-12)
    assert asked["started"] == "2025-06-01T12:00:00+00:00"
    assert asked["data"] == "'=HYPERLINK(1)"


def test_a_report_says_what_there_is_and_cites_what_it_uses(tmp_path):
    """Of nothing placed; of a profile alone; of imported runs; of a place; of a ratio."""
    roofs, no_place = [make.ceilings_record()], "No run has a place under a roof"
    amp = [
        make.run_record(f"{name}{n}", step_s=1 + n / 10, settings={"precision": name})
        for name in ("fp32", "amp")
        for n in (1, 2)
    ]
    profile = [samples.profile_record()]
    for number, (how, said, not_said) in enumerate(
        [
            ({"records": [make.failed_record()]}, (no_place,), ("References",)),
            ({"records": [], "profiles": profile}, ("1 profile.", "Profile 1:"), ("was profiled",)),
            (
                {"records": [], "imported": published()},
                ("48 runs (48 imported) on 7 machines.", no_place),
                ("GFLOP/s |", "FLOP/byte |", "Williams"),  # no number of what no one counted
            ),
            ({"records": amp[:1], "ceilings": roofs}, ("Williams",), (no_place, "Welch", "Holm")),
            ({"records": amp}, ("Welch", "Holm"), ("Williams",)),
        ]
    ):
        markdown, html = report(tmp_path / f"{number}", **{"ceilings": [], **how})
        for text in (markdown, Page(html).text):
            assert [words for words in said if words not in text] == []
        assert [words for words in not_said if words in markdown] == []


@pytest.mark.parametrize(
    ("files", "out", "records", "message"),
    [
        (["secrets.env"], "", 1, r"secrets.env was not written by a report"),
        (["file"], "file/r", 1, "cannot write the report there"),
        ([], "r", 0, "no measurements to report"),
    ],
)
def test_what_cannot_be_written_is_one_line(tmp_path, files, out, records, message):
    for name in files:
        (tmp_path / name).write_text("x")
    with pytest.raises(UserError, match=message):
        report(tmp_path / out, [make.run_record()] * records)


@pytest.mark.parametrize(
    "config",
    [
        RunConfig(),
        RunConfig(arch="vgg16", precision="amp", batch_size=32, augment=True, max_seconds=1.5),
        RunConfig(data="/my data/it's", workers=0, persistent_workers=False, campaign="night-1"),
    ],
)
def test_the_command_repeats_the_run(config):
    [(numbers, command)] = commands(place_runs([samples.run_record(config=config)], []))
    assert numbers == [1]
    words = shlex.split(command)
    assert words[:2] == ["mlproject", "run"]
    pairs = zip(words[2::2], words[3::2], strict=True)
    given = {name.removeprefix("--").replace("-", "_"): value for name, value in pairs}
    assert parse_config(given).config_id == config.config_id
    assert given["arch"] == config.arch


def test_the_matrix_of_a_report_makes_its_runs_and_no_others(tmp_path):
    asked = [
        {"arch": arch, "precision": precision, "batch_size": batch, "max_seconds": 2.5}
        for arch in ("resnet18", "vgg16")
        for precision in ("fp32", "amp")
        for batch in (4, 8)
        if (arch, precision, batch) != ("vgg16", "amp", 8)
    ]
    repeats = {"resnet18": 3, "vgg16": 1}
    records = [
        samples.run_record(
            record_id=f"{number}-{repeat}", config=RunConfig(**one, repeat=repeat + 1)
        )
        for number, one in enumerate(asked)
        for repeat in range(repeats[one["arch"]])
    ]
    script = samples.run_record(record_id="s", script={"arguments": "--lr 1"}, config=RunConfig())
    (tmp_path / "m.yaml").write_text(matrix(place_runs([*records, script], [])))
    blocks = read_matrix(tmp_path / "m.yaml").blocks
    made = [(config.config_id, block.repeats) for block in blocks for config in block.configs]
    expected = [(RunConfig(**one).config_id, repeats[one["arch"]]) for one in asked]
    assert sorted(made) == sorted(expected)
    assert len(blocks) == len(asked)


def test_a_watched_script_is_repeated_by_watching_it():
    config = RunConfig().model_copy(update={"arch": "script:train.py"})
    again = "mlproject watch --samples-per-step 4 -- torchrun train.py --lr 0.1"
    record = samples.run_record(config=config, script={"arguments": "--lr 0.1", "command": again})
    [(_, command)] = commands(place_runs([record], []))
    assert command == again


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


# The opening


def placed(*records, ceilings=None):
    return place_runs(records, [make.ceilings_record()] if ceilings is None else ceilings)


VGG16 = make.run_record("b", settings={"arch": "vgg16"})
WAITS = make.sequence_record(measurement=make.measurement(wait_s=0.6))
LOADER = observation(metrics={"loader_images_per_s": 900.0})


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        (
            placed(make.run_record()),
            "lab trains resnet18 in fp32 at batch 10 with 10 images/s. It reaches 100 GFLOP/s, 50 "
            "% of what the roof of its machine allows in fp32: arithmetic is what limits it. In "
            "doubt: none of 1 run; measured once, so that nothing is known of how much repeats "
            "differ: 1 of 1 configuration.",
        ),
        (
            placed(*(make.run_record(f"{n}", step_s=0.8 + n / 100) for n in (1, 2))),
            "12.3 images/s with a deviation of 0.87 % between its repeats",
        ),
        (
            placed(make.run_record(step_s=2.0), VGG16),
            "(the fastest of 2 configurations on 1 machine). It reaches 100 GFLOP/s, 50 % of",
        ),
        (
            placed(make.run_record(ops=samples.op_profile(step_time_s=1.5))),
            "the largest part of a step is not sure in 1 of 1 account",
        ),
        # the suspect one has no finding
        (placed(make.run_record(verdict=make.suspect()), make.failed_record()), "1 of 2 runs, for"),
        (placed(make.run_record("fast", step_s=0.01), VGG16), "vgg16 in fp32 at batch 10"),
        (placed(WAITS), "waiting for sequences is what limits it"),
        (placed(make.failed_record()), "None of 1 run ended with a measurement: oom (CUDA out"),
        (placed(VGG16, ceilings=[]), "It has no place under a roof: no ceiling: no ceilings were"),
        (published(), "It has no place under a roof: no complexity: not counted."),
        ([LOADER], "No model was trained: 1 run loaded images alone, with up to 900 images/s."),
    ],
)
def test_a_report_opens_with_speed_place_and_sureness_or_says_why_not(runs, words):
    assert words in " ".join(opening(Runs(runs)))


@pytest.mark.parametrize(
    ("fp32_s", "amp_s", "verdict"),
    [
        ((1.0, 1.001, 0.999), (0.5, 0.501, 0.499), "faster"),
        ((1.0, 1.001, 0.999), (0.998, 0.999, 0.997), "tie"),
        ((1.0, 1.01), (0.5, 0.6), "undecided"),
        ((1.0,), (0.5,), "undecided"),
    ],
)
def test_the_findings_the_table_and_compare_speak_of_an_uplift_alike(fp32_s, amp_s, verdict):
    fp32, amp = (
        placed(*(make.run_record(f"{name}{n}", step_s=step_s, settings={"precision": name})
                 for n, step_s in enumerate(steps)))
        for name, steps in (("fp32", fp32_s), ("amp", amp_s))
    )  # fmt: skip
    runs = Runs((*fp32, *amp))
    (found,) = compare_pairs(pair_runs(fp32, amp, THROUGHPUT).pairs, METRICS[THROUGHPUT])
    (uplift,), (row,) = uplifts(runs), make.rows_of(configuration_tables(runs)["uplift"])
    (finding,) = conclusions("precision uplift", runs)
    assert uplift.found == found
    assert row["verdict"] == found.word == verdict
    assert ("undecided" in finding.headline) == (verdict == "undecided")


def test_the_opening_and_the_first_table_have_one_number():
    """60 and 50 % of the roof in two repeats: the mean of both, and not the first."""
    runs = placed(make.run_record("a", step_s=0.8), make.run_record("b", step_s=1.0))
    roof = opening(runs)[1]
    (row,) = make.rows_of(configuration_tables(runs)["summary"])
    assert f"{percent(float(row['fraction_of_roof_min']))} of what" in roof
    assert f"{three_digits(float(row['attained_gflops']))} GFLOP/s" in roof
