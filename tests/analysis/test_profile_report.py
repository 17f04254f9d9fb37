"""The report's sections of profiles: complete, numbered, escaped, and empty where nothing is."""

import json
import re

import factories as make
import pytest
import samples
from test_analysis_commands import invoke, records_on_disk
from test_report import EVIL, assert_evil_is_text, report, rows

import commands.analyse.report
from analysis import place_profiles, place_runs
from analysis.report.sentences import profile_sentences
from bench.records import Copies, Verdict
from bench.records.verdict.profile_verdict import judge_profile

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
CPU = samples.cpu_counters(flops=2 * 10**11, dram_bytes=3 * 10**11)


@pytest.fixture(autouse=True, scope="module")
def without_figures_of_runs():
    """They take most of a report's time, and are drawn in the tests of the report itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("analysis.report.write.draw_runs", lambda *_: [])
        yield


def whole_profile(**changes):
    return make.profile(**{"ops": OPS, "cpu_counters": CPU, **changes})


def measurement_with_work():
    return make.run_record(measurement=make.measurement(work=make.WORK))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A report of one run and its profile: the folder, its Markdown and its HTML."""
    folder = tmp_path_factory.mktemp("whole") / "r"
    return folder, *report(folder, profiles=[whole_profile()])


def numbers(row, *names):
    return [float(row[name]) for name in names]


@pytest.mark.slow
def test_a_profile_has_sections_tables_and_figures_numbered_alike_in_both(whole):
    folder, markdown, html = whole
    assert "#### Profile 1: lab resnet18 fp32 batch 10" in markdown
    assert "<h4>Profile 1: lab resnet18 fp32 batch 10</h4>" in html
    numbers = [str(number) for number in range(1, 15)]
    assert re.findall(r"\*\*Table (\d+)\.", markdown) == numbers
    assert re.findall(r"<strong>Table (\d+)\.", html) == numbers
    figures = re.findall(r"\*\*Figure (\d+)\.", markdown)
    assert figures == [str(number + 1) for number in range(len(figures))]
    assert re.findall(r"<strong>Figure (\d+)\.", html) == figures
    assert html.count('class="plotly-graph-div"') == html.count("<img src=") == 3
    assert html.count("plotly.js v") == 1
    links = re.findall(r"\]\(([^)]+)\)", markdown)
    assert all((folder / link).is_file() for link in links)
    assert {
        f"figures/ops-{NAME}.png",
        f"figures/kernels-{NAME}.png",
        f"tables/ops-{NAME}.csv",
    } <= set(links)


def test_the_three_intensities_of_a_run_by_hand(whole):
    (row,) = rows(whole[0], "intensities")
    flop_per_byte = ("intensity_fused_flop_per_byte", "intensity_eager_flop_per_byte")
    assert numbers(row, *flop_per_byte, "intensity_counted") == [10, 4, 5]
    assert numbers(row, "step_fused_gb", "step_eager_gb", "counted_dram_gb") == [10, 25, 20]
    ratios = ("traffic_amplification", "executed_per_algorithmic_flop")
    assert numbers(row, *ratios) == pytest.approx([2, 1.1])
    assert row["not_counted_because"] == ""


def test_ops_and_kernels_in_numbers(whole):
    folder, markdown, _ = whole
    conv, relu, view = rows(folder, f"ops-{NAME}")
    assert (conv["label"], conv["phase"]) == ("convolution 1x1", "backward")
    assert numbers(conv, "time_ms", "attained_gflop_per_s") == [400, 2.5]
    flop_per_byte = ("intensity_eager_flop_per_byte", "intensity_fused_flop_per_byte")
    assert numbers(conv, *flop_per_byte) == [10, 20]
    assert relu["intensity_fused_flop_per_byte"] == ""
    assert "| 1 and up |" in markdown
    assert (view["attained_gflop_per_s"], view["remark"]) == ("", "only a view")
    conv, add = rows(folder, f"kernels-{NAME}")
    assert conv["name"] == "conv"
    executed = ("executed_gflop", "executed_gflop_per_s", "intensity_dram_flop_per_byte")
    assert numbers(conv, *executed) == pytest.approx([99, 165, 5.5])
    assert numbers(add, "dram_gb_per_s") == pytest.approx([10])


def test_copies_busy_share_and_processor_counters_are_there(whole):
    folder, markdown, _ = whole
    (copies,) = rows(folder, "copies")
    assert copies["direction"] == "host to device"
    assert numbers(copies, "megabytes", "gb_per_s") == [10, 10]
    (cpu,) = rows(folder, "cpu-counters")
    assert cpu["scope"] == "user"
    assert numbers(cpu, "ipc", "cpi", "cache_miss_share") == [1.5, 2 / 3, 0.1]
    assert numbers(cpu, "executed_gflop_per_step", "machine_dram_gb_per_step") == [20, 30]
    (profile,) = rows(folder, "profiles")
    assert numbers(profile, "explains_runs", "device_busy_share", "ops_time_share") == [1, 0.8, 0.8]
    assert "The device was busy 80 % of the profiled step, 2 ms idle between kernels." in markdown
    assert "Not in the cost model, 9.1 % of the ops' time: view forward 9.1 %." in markdown


def test_what_a_tool_could_not_do_is_said_once_with_its_full_stop(tmp_path):
    bare = make.profile(counters=None).model_dump()
    bare["missing"] |= {"counters": "no permission. Ask the administrator.", "ops": "not asked for"}
    profile = type(make.profile()).model_validate(bare)
    markdown, html = report(tmp_path / "r", profiles=[profile])
    assert "- No device counters: no permission. Ask the administrator.\n" in markdown
    assert "- No times of ops: not asked for.\n" in markdown
    assert html.count('class="plotly-graph-div"') == 1
    assert "Nothing to show." not in markdown  # copies and processor counters are left out


def said(profile, roofs=None):
    runs = place_runs([make.run_record()], [])
    (placed,) = place_profiles([profile], runs, [roofs or make.ceilings_record()])
    return list(profile_sentences(placed))


def test_levels_with_and_without_a_roof_are_named():
    roofs = make.ceilings_record(
        cache_roofs=(make.cache_roof("L1", 400e9), make.cache_roof("L2", None))
    )
    found = said(whole_profile(), roofs)
    assert f"L1: 400 GB/s by {make.MEASURED}." in found
    assert "No slope for L2: not in this sample." in found


def test_notes_of_the_gate_stand_in_the_profiles_section():
    profile = whole_profile(work=None)
    judged = profile.model_copy(update={"verdict": judge_profile(profile, measurement_with_work())})
    assert "What the profiled step launched is not known: not in this sample." in said(judged)


def impossible():
    profile = make.profile(counters=samples.counters(*make.kernels(dram_gb=4)))
    return profile.model_copy(update={"verdict": judge_profile(profile, measurement_with_work())})


@pytest.mark.slow
def test_a_profile_that_fails_the_gate_stands_at_the_top_and_gives_no_point(tmp_path):
    markdown, html = report(tmp_path / "r", profiles=[impossible()])
    box = markdown[: markdown.index("## Analysis")]
    assert "> - Profile 1, lab resnet18 fp32 batch 10: invalid: 4 GB counted, under" in box
    assert html.index("4 GB counted") < html.index("<h2>Analysis")
    (row,) = rows(tmp_path / "r", "intensities")
    assert row["intensity_counted"] == ""
    assert row["not_counted_because"].startswith("profile profile-1 rejected: 4 GB counted")
    (measured,) = rows(tmp_path / "r", "measurements")
    assert measured["verdict"] == "clean"


@pytest.mark.slow
def test_a_long_table_shows_its_longest_rows_and_keeps_all_in_the_csv(tmp_path):
    ops = samples.op_profile(*(samples.op_time(f"op{n}", time_s=1 / (n + 1)) for n in range(60)))
    folder = tmp_path / "r"
    markdown, html = report(folder, profiles=[make.profile(ops=ops)])
    assert f"And 35 more in [the CSV](tables/ops-{NAME}.csv)." in markdown
    assert f"and 35 more in tables/ops-{NAME}.csv" in html
    assert len(rows(folder, f"ops-{NAME}")) == 60
    assert "| op24 |" in markdown
    assert "| op25 |" not in markdown
    report(folder)  # a later report leaves no file of an earlier profile
    names = {path.name for path in folder.rglob("*.*")}
    assert not {name for name in names if name.startswith(("ops-", "kernels-"))}


@pytest.mark.slow
def test_hostile_text_of_a_profile_is_shown_not_run(tmp_path):
    profile = make.profile(
        EVIL,
        ops=samples.op_profile(samples.op_time(EVIL), method=EVIL),
        counters=samples.counters(samples.kernel(EVIL), source=EVIL),
        work=None,
    )
    assert_evil_is_text(*report(tmp_path / "r", profiles=[profile]))


@pytest.mark.slow
def test_the_command_reads_profiles_from_a_folder_and_fails_on_an_impossible_one(tmp_path):
    records = [make.run_record(), make.ceilings_record()]
    good = records_on_disk(tmp_path / "good", *records, whole_profile())
    done = invoke(commands.analyse.report, "--records", good, "--out", tmp_path / "a")
    assert done.return_value == 0
    assert "profile-1  profile of lab resnet18 fp32 batch 10: clean" in done.output
    bad = records_on_disk(tmp_path / "bad", *records, impossible())
    done = invoke(
        commands.analyse.report, "--records", bad, "--out", tmp_path / "b", "--format", "json"
    )
    assert done.return_value == 1
    facts = json.loads(done.output)
    (profile,) = facts["profiles"]
    assert (profile["record_id"], profile["verdict"]) == ("profile-1", "invalid")
    assert profile["explains"] == ["run-1"]
    assert facts["runs"][0]["intensity_counted_flop_per_byte"] is None


def test_a_profile_without_a_result_does_not_fail_the_report(tmp_path):
    verdict = Verdict(level="invalid", findings=())
    failed = make.profile(outcome="crashed", reason="no", counters=None, verdict=verdict)
    records = records_on_disk(tmp_path / "r", make.run_record(), make.ceilings_record(), failed)
    done = invoke(commands.analyse.report, "--records", records, "--out", tmp_path / "out")
    assert done.return_value == 0
    assert "no result" in done.output
