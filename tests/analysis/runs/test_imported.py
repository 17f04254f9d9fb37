"""Results of other programs under a roof of their device's name, by the work of the step named."""

from pathlib import Path

import factories as make
import pytest
from observed import Server

from analysis.figures import run_chart
from analysis.findings import find_all
from analysis.report.opening import opening
from analysis.report.run_tables import configuration_tables, run_tables
from analysis.report.write import number_runs
from analysis.roofs import ceilings as by_name
from analysis.roofs.roof import Peaks, datasheet_peaks, normalised
from analysis.runs.place import place, place_runs
from analysis.runs.run import distinguished
from analysis.server.pull import pull_points, pull_records, pull_runs
from tracking.importing import Result, SourceFile
from tracking.importing.ledger import record_of

GIGA = 10**9
BACKWARD = {"step": "forward and backward"}
#: resnet50 in 16 bits, per image, and a batch of 100 on each device.
RESNET50 = {
    "batch_size": 100,
    "step_flops": 2_430 * GIGA,
    "forward_macs": 409 * GIGA,
    "eager_bytes": 48 * GIGA,
    "fused_bytes": 27 * GIGA,
    "compulsory_bytes": 9 * GIGA,
}


def result(images_per_s=10.0, complexity=None, *, facts=None, params=None, assumed=(), **texts):
    """An imported result of a step of 100 GFLOP on 10 images, unless said otherwise."""
    counted = make.complexity() if complexity is None else complexity
    known = {
        "arch": "resnet18",
        "env": "cloud",
        "device": "NVIDIA L4",
        "backend": "cuda",
        "precision": "fp32",
    }
    numbers = {"throughput_images_per_s": images_per_s, "batch_size": counted.batch_size}
    found = Result("table", {**known, **texts, **numbers, **(facts or {})}, 2, params=params or {})
    file = SourceFile(Path("table.csv"))
    record = record_of(found, file, campaign="old", given={}, imported_at=make.NOON)
    return record.replaced(complexity=counted, assumed=assumed)


def test_a_result_stands_under_the_datasheet_of_its_devices_very_name():
    run = place(result(), run_id="r1")
    point = run.point
    assert (point.attained_flops_per_s, point.intensity_min, point.intensity_max) == (1e11, 4, 10)
    assert (point.ceiling.kind, point.roof.peak_bytes_per_s) == ("datasheet", 300e9)
    assert (point.attainable_min_flops_per_s, point.attainable_max_flops_per_s) == (1.2e12, 3e12)
    assert (point.bound, point.bound_sure, point.data_wait_share) == ("overhead", False, None)
    assert point.bound_because.endswith("waiting for data is not known")
    assert (run.imported.source_file, run.metrics["attained_gflops"]) == ("table.csv", 100)
    assert run.refusal is None
    # without the bytes of an optimizer that did not run
    backward = place(result(params=BACKWARD)).point
    assert (backward.intensity_min, backward.intensity_max) == (100 / 20, 100 / 8)
    # 5 GB that a whole step cannot do without would take 17 ms
    fast = place(result(1000.0, params=BACKWARD)).findings
    assert [one.code for one in fast] == ["modelled", "below-fused-traffic"]
    # several devices stand under the roof of all
    eight = place(result(80.0, facts={"devices": 4, "nodes": 2}))
    assert eight.point.attained_flops_per_s == 8 * point.attained_flops_per_s
    assert eight.point.fraction_of_roof_max == point.fraction_of_roof_max
    assert eight.point.times.measured_s == point.times.measured_s
    assert eight.settings["devices"] == "4"


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
    assert place(result(device=published)).point.ceiling.device == name
    assert place(result(device="H100")).point is None  # three parts
    assert place(result(device="B200 192GB")).point is None


def test_every_published_name_leads_to_a_row_of_the_datasheets():
    known = {name for row in datasheet_peaks() for name in row.names}
    assert {normalised(name) for name in by_name._PUBLISHED.values()} <= known


def test_fp32_is_held_against_tf32_where_that_is_higher_and_says_so():
    on_l4, on_t4 = place(result()), place(result(device="Tesla T4"))
    assert (on_l4.point.ceiling.math_mode, on_l4.point.roof.peak_flops_per_s) == ("tf32", 60e12)
    assert "fp32 under the roof of tf32" in on_l4.findings[0].message
    assert (on_t4.point.ceiling.math_mode, on_t4.point.roof.peak_flops_per_s) == ("fp32", 8.1e12)
    assert "tf32" not in on_t4.findings[0].message
    half = make.complexity(precision="amp-fp16", math_mode="fp16")
    assert place(result(complexity=half, precision="amp")).point.ceiling.math_mode == "fp16"


def test_the_newest_roof_measured_on_such_a_device_goes_first_and_a_users_peaks_second():
    def roofs(name, hours=0, outcome="ok"):
        gpu = make.environment(device=make.gpu(name="NVIDIA L4"))
        ceiling = make.ceiling(device="NVIDIA L4", backend="cuda", math_mode="tf32")
        record = make.ceilings_record(name, hours=hours, environment=gpu, ceilings=(ceiling,))
        return record.model_copy(update={"outcome": outcome})

    known = [roofs("old", 1), roofs("new", 2), roofs("failed", 3, "crashed")]
    own = Peaks(devices="L4", fp32_tflop_per_s=30, memory_gb_per_s=300, source="a letter")
    for ceilings in (known, known[::-1]):
        found = place(result(), ceilings, peaks=[own])
        assert found.point.ceiling_record_id == "new"
    assert place(result(), peaks=[own]).point.ceiling.source == "a letter"


def test_a_processors_name_is_not_enough_for_its_memory():
    record = result(device="Example CPU", backend="cpu")
    elsewhere = make.ceilings_record()  # labelled lab
    assert "not hold" in place(record, [elsewhere]).refusal
    record = result(device="Example CPU", backend="cpu", env="lab", facts={"devices": 4})
    point = place(record, [elsewhere]).point
    assert point.ceiling.kind == "measured"
    assert point.roof.peak_flops_per_s == 200e9  # its processes share the machine's roof


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"precision": None}, "in which precision it computed: the source does not say"),
        ({"device": None}, "on which device it ran: the source does not say"),
        ({"device": "L4 (NVIDIA)"}, "does not hold"),  # no part of a name is enough
        ({"device": "L"}, "does not hold"),
        ({"device": "NVIDIA L4S"}, "does not hold"),
        ({"device": "Apple M3 Max"}, "does not hold 'Apple M3 Max'; report --peaks FILE"),
        ({"device": "NVIDIA GeForce RTX 4090 Laptop GPU"}, "differ by part"),
        ({"backend": "tpu"}, "nothing is known of the backend 'tpu'"),
    ],
)
def test_what_is_not_known_gives_no_place(changes, reason):
    run = place(result(**changes))
    assert reason in run.refusal
    assert run.point is None
    assert run.findings == ()
    assert run.problems == (f"not placed: {run.refusal}",)


def test_impossible_numbers_are_found_by_the_rule_of_measured_runs():
    h100 = {"device": "NVIDIA H100 80GB HBM3", "precision": "amp-fp16", "arch": "resnet50"}
    nodes = {"devices": 8, "nodes": 64}
    counted = make.complexity(**RESNET50, precision="amp-fp16", math_mode="fp16")
    published = place(result(11.9e6, counted, facts=nodes, **h100))
    assert [one.code for one in published.findings] == ["modelled", "below-fused-traffic"]
    assert "would take 187 % of the step" in published.findings[1].message  # 6.3 of 3.35 TB/s
    assert published.findings[1].message.endswith("or its file is wrong")
    assert published.verdict == "suspect"
    beyond = place(result(50e6, counted, facts=nodes, **h100))
    codes = [one.code for one in beyond.findings if one.level == "invalid"]
    assert codes == ["above-compute-roof", "above-memory-roof"]
    unknown = place(result(50e6, counted, facts=nodes, **{**h100, "precision": None}))
    assert unknown.point is None
    assert unknown.verdict == "invalid"  # in any arithmetic
    (finding,) = (one for one in find_all([beyond, unknown]) if one.kind == "above the roof")
    assert finding.headline.startswith("cloud: 2 of 2 runs are faster than the roof allows")
    assert finding.advice.startswith("Read the source of the imported runs again")


def test_the_fastest_part_of_a_result_is_held_against_the_roof_too():
    record = result(facts={"throughput_images_per_s_max": 1e5})  # 333 times what memory allows
    run = place(record)
    found = [one for one in run.findings if one.level == "invalid"]
    assert [one.code for one in found] == ["above-compute-roof", "above-memory-roof"]
    assert found[0].message.startswith("at 1e+05 images/s: 1667 % of the compute ceiling")
    assert place(result(facts={"throughput_images_per_s_max": 11.0})).verdict == "not judged"
    whole = place(result(50_000.0, facts={"throughput_images_per_s_max": 100_000.0})).findings
    assert [one.code for one in whole if one.level == "invalid"] == [one.code for one in found]
    assert place(record.replaced(device="Voodoo 2")).verdict == "not judged"


def test_tables_and_sentences_call_it_modelled():
    placed = place(result(assumed=("images of 224 pixels",)))
    runs = distinguished([placed, place(result(device="Apple M3 Max", env="mac"))])
    summary = make.cells_of(configuration_tables(runs)["summary"])
    assert [row["verdict"] for row in summary] == ["imported, modelled", "imported"]
    tables = run_tables(runs)
    (row,) = make.cells_of(number_runs(runs).put_in(tables["points"]))
    assert (row["no."], row["work"]) == ("1", "imported, modelled")
    headings = make.cells_of(tables["imported"])[0].keys()
    assert {"assumed of its step", "not placed because"} <= headings
    assert "GFLOP/s, stated" not in headings  # no file states any
    assert "by modelled work 100 GFLOP/s" in opening([placed])[1]
    assert "or waiting for images" in opening([placed])[1]
    assert not any(one.kind == "next knob" for one in find_all(runs))  # what is on is not known
    measured = place_runs([make.run_record()], [make.ceilings_record()])
    assert "work" not in make.cells_of(run_tables(measured)["points"])[0]


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


def test_long_names_of_machines_leave_room_for_the_picture():
    names = [f"a-cloud-with-a-very-long-label-{number}-192-222-52-{number}" for number in (1, 2)]
    (panel,) = run_chart([place(result(env=name)) for name in names]).panels
    labels = [entry.group for entry in panel.legend if entry.group.startswith("M")]
    assert all(len(label) <= len("M1: , datasheet") + 28 for label in labels)
    alone = run_chart([place(result())]).panels[0]
    assert panel.legend_entry_in > 2 > alone.legend_entry_in
    roofs = [one for one in panel.series if "imported" in one.group and one.line_pt]
    assert [one.dashed for one in roofs] == [True, True]
    assert "imported, modelled" in [entry.group for entry in panel.legend]
