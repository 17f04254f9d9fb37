"""The report: complete, numbered, escaped, self-contained, and nothing typed by hand."""

import csv
import json
import re
import shlex
from datetime import datetime, timezone
from html.parser import HTMLParser

import factories as make
import pytest
import samples
from observed import invoke, observation, published, records_on_disk

from analysis import place_runs
from analysis.comparison import METRICS, compare_pairs, pair_runs
from analysis.findings import conclusions
from analysis.findings.differences import uplifts
from analysis.presentation.words import percent, three_digits
from analysis.report.run_tables import configuration_tables
from analysis.report.sentences import commands, matrix, opening, summary
from analysis.report.step_tables import step_sentences
from analysis.report.write import write_report
from analysis.runs.groups import Runs
from analysis.runs.place import place_profiles
from analysis.runs.run import problem_lines
from bench.config import THROUGHPUT, RunConfig, parse_config
from bench.errors import Unknown, UserError
from bench.records import Copies, Finding, Verdict
from bench.records.verdict import judge
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
DISTURBED = make.measurement(times_s=(1.0, 1.0, 1.6) * 10)  # 10 images of 10 GFLOP in 1.2 s
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
        (
            placed(make.run_record(measurement=DISTURBED)),
            "with 8.33 images/s. At its pace of 10 images/s it reaches 100 GFLOP/s, 50 % of what",
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


def test_a_run_without_a_device_is_on_no_machine_of_its_own():
    here, nowhere = observation("a"), observation("b", env="auto")
    assert "2 runs on 1 machine" in summary(Runs([here, nowhere]), [])


def test_a_reason_is_said_once_among_the_problems():
    reason = "no module named 'x' here"
    found = (Finding.of("refused", reason=reason), Finding.of("battery"))
    lines = problem_lines(found, Unknown(f"outcome refused: {reason}"), "not placed")
    assert lines == (f"not placed: outcome refused: {reason}", "suspect: measured on battery power")


# Profiles: what is not known of them, what fails the gate, and the command


COPY = Copies(direction="host to device", calls=2, bytes=10**7, time_s=0.001)
OPS = samples.op_profile(
    samples.op_time("convolution 1x1", "backward", 0.4),
    samples.op_time("relu", "forward", 0.1, flops=0, elementwise_flops=10**8, fused_bytes=0),
    samples.op_time("view", "forward", 0.05, flops=None, why_missing="only a view"),
    device_busy_share=0.8,
    launch_gap_s=0.002,
    copies=(COPY,),
)
#: What the files of the profile below are called.
NAME = "lab-resnet18-fp32-batch-10"
CPU = samples.cpu_counters(flops=2 * 10**11)


def whole_profile(**changes):
    return make.profile(**{"ops": OPS, "cpu_counters": CPU, **changes})


def measurement_with_work():
    return make.run_record(measurement=make.measurement(work=make.WORK))


def impossible(**changes):
    profile = make.profile(counters=samples.counters(*make.kernels(dram_gb=4)), **changes)
    return profile.model_copy(update={"verdict": judge(profile, measurement_with_work())})


def said(profile, roofs=None):
    runs = place_runs([make.run_record()], [])
    (placed,) = place_profiles([profile], runs, [roofs or make.ceilings_record()])
    return step_sentences(placed)


def test_what_a_tool_could_not_do_is_said_once_with_its_full_stop():
    bare = make.profile(counters=None).model_dump()
    bare["missing"] |= {"counters": "no permission. Ask the administrator.", "ops": "not asked for"}
    found = said(type(make.profile()).model_validate(bare))
    assert "Counters: no permission. Ask the administrator." in found
    assert "Ops: not asked for." in found


def test_levels_with_and_without_a_roof_are_named():
    roofs = make.ceilings_record(
        cache_roofs=(make.cache_roof("L1", 400e9), make.cache_roof("L2", None))
    )
    found = said(whole_profile(), roofs)
    assert f"L1: 400 GB/s by {make.MEASURED}." in found
    assert "No slope for L2: not in this sample." in found
    unmeasured = [line for line in said(whole_profile()) if "was not measured" in line]
    assert [line[:16] for line in unmeasured] == ["No slope for L1:", "No slope for L2:"]


def test_notes_of_the_gate_stand_in_the_profiles_section():
    profile = whole_profile(work=None)
    judged = profile.model_copy(update={"verdict": judge(profile, measurement_with_work())})
    assert "What the profiled step launched is not known: not in this sample." in said(judged)


def test_a_profile_that_fails_the_gate_stands_at_the_top_and_a_long_table_keeps_all_in_the_csv(
    tmp_path,
):
    folder = tmp_path / "r"
    ops = samples.op_profile(*(samples.op_time(f"op{n}", time_s=1 / (n + 1)) for n in range(60)))
    markdown, html = report(folder, profiles=[impossible(ops=ops)])
    box = markdown[: markdown.index("## Analysis")]
    assert "> - Profile 1, lab resnet18 fp32 batch 10: invalid: 4 GB counted, under" in box
    assert html.index("4 GB counted") < html.index('id="analysis"')
    (row,) = rows(folder, "points")
    assert row["intensity_counted"] == ""
    assert row["not_counted_because"].startswith("profile profile-1 rejected: 4 GB counted")
    (measured,) = rows(folder, "measurements")
    assert measured["verdict"] == "clean"
    assert f"And 35 more in [the CSV](tables/ops-{NAME}.csv)." in markdown
    assert f"and 35 more in tables/ops-{NAME}.csv" in html
    assert len(rows(folder, f"ops-{NAME}")) == 60
    assert "| op24 |" in markdown
    assert "| op25 |" not in markdown
    report(folder)  # a later report leaves no file of an earlier profile
    names = {path.name for path in folder.rglob("*.*")}
    assert not {name for name in names if name.startswith(("ops-", "kernels-"))}


def test_the_command_reads_profiles_from_a_folder_and_fails_on_an_impossible_one(tmp_path):
    verdict = Verdict(level="invalid", findings=())
    failed = make.profile(outcome="crashed", reason="no", counters=None, verdict=verdict)
    for name, profile, code, word in (
        ("good", whole_profile(), 0, "clean"),
        ("bad", impossible(), 1, "invalid"),
        ("failed", failed, 0, "no result"),
    ):
        records = make.run_record(), make.ceilings_record(), profile
        folder = records_on_disk(tmp_path / name, *records)
        arguments = ("--records", folder, "--out", tmp_path / f"{name}-out", "--format", "json")
        done = invoke("report", *arguments)
        assert done.return_value == code
        facts = json.loads(done.output)
        (one,) = facts["profiles"]
        assert (one["record_id"], one["verdict"]) == ("profile-1", word)
        assert one["explains"] == ["run-1"]
        counted = facts["runs"][0]["intensity_counted"]
        assert counted == (5 if name == "good" else None)
