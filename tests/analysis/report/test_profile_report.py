"""Profiles in a report: what is not known of them, what fails the gate, and the command."""

import json

import factories as make
import pytest
import samples
from observed import invoke, records_on_disk
from test_report import report, rows

import commands.report
from analysis import place_runs
from analysis.report.step_tables import step_sentences
from analysis.runs.place import place_profiles
from bench.records import Copies, Verdict
from bench.records.verdict import judge

pytestmark = pytest.mark.usefixtures("unpainted")
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
        done = invoke(commands.report, *arguments)
        assert done.return_value == code
        facts = json.loads(done.output)
        (one,) = facts["profiles"]
        assert (one["record_id"], one["verdict"]) == ("profile-1", word)
        assert one["explains"] == ["run-1"]
        counted = facts["runs"][0]["intensity_counted"]
        assert counted == (5 if name == "good" else None)
