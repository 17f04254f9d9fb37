"""Results of other programs under a roof of their device's name, by the work of the step named."""

from dataclasses import replace

import factories as make
import pytest
from observed import Server

from analysis.figures.rooflines.run_scene import run_scene
from analysis.figures.rooflines.scene import ENTRY_IN
from analysis.findings import find_all
from analysis.report.opening import opening
from analysis.report.tables.roof_tables import points_table
from analysis.report.tables.run_tables import imported_table
from analysis.report.tables.summary_table import summary_table
from analysis.roofs import by_name
from analysis.roofs.peaks import datasheet_peaks, normalised
from analysis.runs.imported import imported_run
from analysis.runs.placed import place_runs
from analysis.runs.tracked.pull import pull_points, pull_records, pull_runs
from analysis.runs.what_ran import distinguished
from analysis.table import number_runs
from bench.records.verdict.claimed_flops import judge_claims
from tracking.importing.facts import Facts, Source, record_of

GIGA = 10**9
#: resnet50 in 16 bits, per image, and a batch of 100 on each device.
RESNET50 = {
    "batch_size": 100,
    "step_flops": 2_430 * GIGA,
    "forward_macs": 409 * GIGA,
    "eager_bytes": 48 * GIGA,
    "fused_bytes": 27 * GIGA,
    "compulsory_bytes": 9 * GIGA,
}


def result(images_per_s=10.0, complexity=None, *, params=None, assumed=(), **texts):
    """An imported result of a step of 100 GFLOP on 10 images, unless said otherwise."""
    counted = make.complexity() if complexity is None else complexity
    known = {
        "arch": "resnet18",
        "env": "cloud",
        "device": "NVIDIA L4",
        "backend": "cuda",
        "precision": "fp32",
    }
    facts = Facts("table", 2, texts={k: v for k, v in (known | texts).items() if v is not None})
    facts.numbers = {"throughput_images_per_s": images_per_s}
    facts.counts = {"batch_size": counted.batch_size}
    for name, number in (params or {}).items():
        setattr(facts, name, number)
    record = record_of(facts, Source("table.csv", "0" * 64, "old", {}, make.NOON))
    return record.replaced(complexity=counted, assumed=assumed)


def test_a_result_stands_under_the_datasheet_of_its_devices_very_name():
    run = imported_run(result(), run_id="r1")
    point = run.point
    assert (point.attained_flops_per_s, point.intensity_min, point.intensity_max) == (1e11, 4, 10)
    assert (point.ceiling.kind, point.roof.peak_bytes_per_s) == ("datasheet", 300e9)
    assert (point.attainable_min_flops_per_s, point.attainable_max_flops_per_s) == (1.2e12, 3e12)
    assert (point.bound, point.bound_sure, point.data_wait_share) == ("overhead", False, None)
    assert point.bound_because.endswith("waiting for data is not known")
    assert point.imported_from == "table.csv"
    assert run.metrics["attained_gflops"] == 100
    assert run.refusal is None
    for name in ("L4 (NVIDIA)", "NVIDIA L4S", "L"):  # no part of a name is enough
        assert "does not hold" in imported_run(result(device=name)).refusal


@pytest.mark.parametrize(
    ("published", "name"),
    [
        ("NVIDIA H100-SXM5-80GB", "NVIDIA H100 80GB HBM3"),
        ("H100 80GB SXM5", "NVIDIA H100 80GB HBM3"),
        ("A100_SXM4_40GB", "NVIDIA A100-SXM4-40GB"),
        ("H200 140GB SXM", "NVIDIA H200"),
    ],
)
def test_names_of_published_results_mean_one_part(published, name):
    assert imported_run(result(device=published)).point.ceiling.device == name
    assert imported_run(result(device="H100")).point is None  # three parts
    assert imported_run(result(device="B200 192GB")).point is None


def test_every_published_name_leads_to_a_row_of_the_datasheets():
    known = {name for row in datasheet_peaks() for name in row.names}
    assert {normalised(name) for name in by_name._PUBLISHED.values()} <= known


def test_fp32_is_held_against_tf32_where_that_is_higher_and_says_so():
    on_l4, on_t4 = imported_run(result()), imported_run(result(device="Tesla T4"))
    assert (on_l4.point.math_mode, on_l4.point.roof.peak_flops_per_s) == ("tf32", 60e12)
    assert "fp32 under the roof of tf32" in on_l4.findings[0].message
    assert (on_t4.point.math_mode, on_t4.point.roof.peak_flops_per_s) == ("fp32", 8.1e12)
    assert "tf32" not in on_t4.findings[0].message
    half = make.complexity(precision="amp-fp16", math_mode="fp16")
    assert imported_run(result(complexity=half, precision="amp")).point.math_mode == "fp16"


def test_a_roof_measured_on_such_a_device_goes_first_and_a_users_own_peaks_second():
    gpu = make.environment(device=make.gpu(name="NVIDIA L4"))
    ceiling = make.ceiling(device="NVIDIA L4", backend="cuda", math_mode="tf32")
    measured = make.ceilings_record(environment=gpu, ceilings=(ceiling,))
    own = replace(datasheet_peaks()[0], names=frozenset({"l4"}), source="a letter")
    kept = imported_run(result(), [measured], [own])
    assert kept.point.ceiling_record_id == "ceilings-1"
    lower = imported_run(result(), [], [own])
    assert lower.point.ceiling.source == "a letter"


def test_a_processors_name_is_not_enough_for_its_memory():
    record = result(device="Example CPU", backend="cpu")
    elsewhere = make.ceilings_record()  # labelled lab
    assert "not hold" in imported_run(record, [elsewhere]).refusal
    same = record.replaced(env="lab")
    assert imported_run(same, [elsewhere]).point.ceiling.kind == "measured"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"precision": None}, "in which precision it computed: the source does not say"),
        ({"device": None}, "on which device it ran: the source does not say"),
        ({"device": "Apple M3 Max"}, "does not hold 'Apple M3 Max'; report --peaks FILE"),
        ({"device": "NVIDIA GeForce RTX 4090 Laptop GPU"}, "differ by part"),
        ({"backend": "tpu"}, "nothing is known of the backend 'tpu'"),
    ],
)
def test_what_is_not_known_gives_no_place(changes, reason):
    run = imported_run(result(**changes))
    assert reason in run.refusal
    assert run.point is None
    assert run.findings == ()
    assert run.problems == (f"not placed: {run.refusal}",)


def test_a_result_without_a_count_keeps_its_reason():
    record = result().replaced({"complexity": "not a torchvision model"}, complexity=None)
    assert imported_run(record).refusal == "no complexity: not a torchvision model"
    assert "attained_gflops" not in imported_run(record).metrics


def test_bytes_of_an_unknown_precision_are_no_metric():
    metrics = imported_run(result(precision=None)).metrics
    assert metrics["step_gflop"] == 100
    assert not {"step_gb_fused", "intensity_min", "activations_mb"} & metrics.keys()


def test_several_devices_stand_under_the_roof_of_all():
    params = {"devices": 4, "nodes": 2}
    eight, one = imported_run(result(80.0, params=params)), imported_run(result())
    assert eight.point.attained_flops_per_s == 8 * one.point.attained_flops_per_s
    assert eight.point.fraction_of_roof_max == one.point.fraction_of_roof_max
    assert eight.point.times.measured_s == one.point.times.measured_s
    assert eight.settings["devices"] == "4"


def test_a_step_that_ends_with_the_backward_pass_moves_no_bytes_of_the_optimizer():
    run = imported_run(result(params={"has_optimizer": False}))
    assert (run.point.intensity_min, run.point.intensity_max) == (100 / 20, 100 / 8)


def test_impossible_numbers_are_found_by_the_rule_of_measured_runs():
    h100 = {"device": "NVIDIA H100 80GB HBM3", "precision": "amp-fp16", "arch": "resnet50"}
    nodes = {"devices": 8, "nodes": 64}
    counted = make.complexity(**RESNET50, precision="amp-fp16", math_mode="fp16")
    published = imported_run(result(11.9e6, counted, params=nodes, **h100))
    assert [one.code for one in published.findings] == ["modelled", "below-fused-traffic"]
    assert "would take 187 % of the step" in published.findings[1].message  # 6.3 of 3.35 TB/s
    assert published.findings[1].message.endswith("or its file is wrong")
    assert published.verdict == "suspect"
    beyond = imported_run(result(50e6, counted, params=nodes, **h100))
    codes = [one.code for one in beyond.findings if one.level == "invalid"]
    assert codes == ["above-compute-roof", "above-memory-roof"]
    unknown = imported_run(result(50e6, counted, params=nodes, **{**h100, "precision": None}))
    assert unknown.point is None
    assert unknown.verdict == "invalid"  # in any arithmetic
    (finding,) = (one for one in find_all([beyond, unknown]) if one.kind == "above the roof")
    assert finding.headline == "Faster than the roof allows, not to be used: 2 runs."
    assert finding.advice.startswith("Read the source of the imported runs again")


def test_the_fastest_part_of_a_result_is_held_against_the_roof_too():
    record = result(params={"fastest_images_per_s": 100_000.0})  # 333 times what memory allows
    run = imported_run(record)
    found = [one for one in run.findings if one.level == "invalid"]
    assert [one.code for one in found] == ["above-compute-roof", "above-memory-roof"]
    assert found[0].message.startswith("at 1e+05 images/s: 1667 % of the compute ceiling")
    assert imported_run(result(params={"fastest_images_per_s": 11.0})).verdict == "not judged"
    assert imported_run(record.replaced(device="Voodoo 2")).verdict == "not judged"


def test_stated_gflops_are_a_finding_with_both_figures():
    record = result(params={"claimed_gflops": 50.0})
    run = imported_run(judge_claims([record])[0])
    (finding,) = (one for one in find_all([run]) if one.kind == "stated GFLOP/s")
    assert "states 50 GFLOP/s" in finding.evidence[0]
    assert "training step are 100" in finding.evidence[0]


def test_tables_and_sentences_call_it_modelled():
    placed, other = (
        imported_run(result(assumed=("images of 224 pixels",))),
        imported_run(result(device="Apple M3 Max", env="mac")),
    )
    runs = distinguished([placed, other])
    numbers = number_runs(runs)
    summary = summary_table(runs, numbers)
    place = [column.heading for column in summary.columns].index("verdict")
    assert [row[place] for row in summary.cells] == ["imported, modelled", "imported"]
    (row,) = points_table(runs, numbers).cells
    assert row[:3] == ["1", "cloud resnet18 fp32 batch 10", "imported, modelled"]
    assert "imported, modelled" not in str(points_table([], numbers).cells)
    table = imported_table(runs, numbers)
    headings = [column.heading for column in table.visible]
    assert {"assumed of its step", "not placed because"} <= set(headings)
    assert "GFLOP/s, stated" not in headings  # no file states any
    assert "by modelled work 100 GFLOP/s" in opening([placed])[1]
    assert "or waiting for images" in opening([placed])[1]
    assert not any(one.kind == "next knob" for one in find_all(runs))  # what is on is not known


def test_a_measured_run_beside_them_has_no_word_of_it():
    runs = place_runs([make.run_record()], [make.ceilings_record()])
    table = points_table(runs, number_runs(runs))
    assert "work" not in [column.heading for column in table.visible]


def test_tracked_results_are_pulled_with_their_places(monkeypatch):
    Server(monkeypatch, {"r1": result(), "r2": result(device=None)})
    gathered = pull_records()
    assert [run.point is not None for run in gathered.runs()].count(True) == 1
    table = pull_runs(roofs=True).set_index("run_id")
    assert (table["bound"]["r1"], table["math_mode"]["r1"]) == ("overhead", "tf32")
    assert table["verdict_under_roof"]["r1"] == "not judged"
    assert table["not_placed"]["r2"].startswith("on which device it ran")
    points = pull_points()
    assert points["run_id"].tolist() == ["r1"]
    assert points["imported"].tolist() == [True]


def test_the_older_of_two_roofs_of_a_name_is_not_taken():
    gpu = make.environment(device=make.gpu(name="Tesla T4"))

    def roofs(name, hours, peak):
        ceiling = make.ceiling(device="Tesla T4", backend="cuda", peak_flops_per_s=peak)
        return make.ceilings_record(name, hours=hours, environment=gpu, ceilings=(ceiling,))

    record = result(device="Tesla T4")
    found = imported_run(record, [roofs("new", 2, 7e12), roofs("old", 1, 6e12)])
    assert found.point.ceiling_record_id == "new"
    failed = roofs("failed", 3, 9e12).model_copy(update={"outcome": "crashed"})
    assert imported_run(record, [failed, roofs("new", 2, 7e12)]).point.ceiling_record_id == "new"


def test_logs_of_one_configuration_are_repeats_and_no_file_tells_them_apart():
    first, second = result(), result(11.0)
    second = second.replaced(source_file="other.csv")
    one, other = distinguished([imported_run(first), imported_run(second)])
    assert (one.distinction, other.distinction) == ("", "")
    (summary,) = summary_table([one, other], number_runs([one, other])).cells
    assert summary[4] == "2"


def test_long_names_of_machines_leave_room_for_the_picture():
    names = [f"a-cloud-with-a-very-long-label-{number}-192-222-52-{number}" for number in (1, 2)]
    scene = run_scene([imported_run(result(env=name)).point for name in names])
    labels = [entry.label for entry in scene.legend if entry.label.startswith("M")]
    assert all(len(label) <= len("M1: ") + 28 for label in labels)
    assert scene.legend_entry_in > ENTRY_IN
    assert [mark.line.dashed for mark in scene.marks if mark.line] == [True, True]
    assert "imported, modelled" in [entry.label for entry in scene.legend]
    assert run_scene([imported_run(result()).point]).legend_entry_in == ENTRY_IN
