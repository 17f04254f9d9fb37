"""Results of other programs under a roof of their device's name, by the work of the step named."""

from pathlib import Path

import factories as make
import pytest

from analysis.figures import run_chart
from analysis.findings import find_all
from analysis.roofs import _PUBLISHED, Peaks, datasheet_peaks, normalised
from analysis.runs.place import place
from tracking.importing import Result
from tracking.importing.readers import record_of
from tracking.importing.work import with_work

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
    record = record_of(found, Path("table.csv"), "0" * 64, "old", given={}, now=make.NOON)
    return record.replaced(complexity=counted, assumed=assumed)


def test_a_result_stands_under_the_datasheet_of_its_devices_very_name():
    run = place(result(), run_id="r1")
    point = run.point
    assert (point.attained_flops_per_s, point.intensity_min, point.intensity_max) == (1e11, 4, 10)
    assert (point.ceiling.kind, point.roof.peak_bytes_per_s) == ("datasheet", 300e9)
    assert (point.attainable_min_flops_per_s, point.attainable_max_flops_per_s) == (1.2e12, 3e12)
    assert (point.bound, point.bound_sure, point.data_wait_share) == ("not known", True, None)
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


def test_every_published_name_leads_to_a_row_of_the_datasheets():
    known = {name for row in datasheet_peaks() for name in row.names}
    assert {normalised(name) for name in _PUBLISHED.values()} <= known


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
    assert published.findings[1].facts["percent"] == pytest.approx(187, abs=0.5)  # 6.3 of 3.35 TB/s
    assert published.findings[1].facts["what"] == "its file"
    assert published.verdict == "suspect"
    beyond = place(result(50e6, counted, facts=nodes, **h100))
    codes = [one.code for one in beyond.findings if one.level == "invalid"]
    assert codes == ["above-compute-roof", "above-memory-roof"]
    unknown = place(result(50e6, counted, facts=nodes, **{**h100, "precision": None}))
    assert unknown.point is None
    assert unknown.verdict == "invalid"  # in any arithmetic
    (doubt,) = find_all([beyond, unknown])
    assert (doubt.kind, doubt.runs) == ("in doubt", (beyond.name, unknown.name))


def test_the_fastest_part_of_a_result_is_held_against_the_roof_too():
    record = result(facts={"throughput_images_per_s_max": 1e5})  # 333 times what memory allows
    run = place(record)
    found = [one for one in run.findings if one.level == "invalid"]
    assert [one.code for one in found] == ["above-compute-roof", "above-memory-roof"]
    assert found[0].facts["images_per_s"] == 1e5
    assert found[0].facts["percent"] == pytest.approx(1667, abs=0.5)
    assert place(result(facts={"throughput_images_per_s_max": 11.0})).verdict == "not judged"
    whole = place(result(50_000.0, facts={"throughput_images_per_s_max": 100_000.0})).findings
    assert [one.code for one in whole if one.level == "invalid"] == [one.code for one in found]
    assert place(record.replaced(device="Voodoo 2")).verdict == "not judged"


def test_stated_gflops_are_a_finding_with_both_figures():
    run = place(with_work(result(facts={"claimed_gflops": 50.0}), make.complexity()))
    stated = [one.facts for one in run.findings if one.code == "claimed-flops"]
    assert [(one["stated_gflops"], one["own_gflops"]) for one in stated] == [(50, 100)]


def test_long_names_of_machines_leave_room_for_the_picture():
    names = [f"a-cloud-with-a-very-long-label-{number}-192-222-52-{number}" for number in (1, 2)]
    (panel,) = run_chart([place(result(env=name)) for name in names]).panels
    labels = [entry.group for entry in panel.legend if entry.group.startswith("M")]
    assert all(len(label) <= len("M1: , datasheet") + 28 for label in labels)
    roofs = [one for one in panel.series if "imported" in one.group and one.line_pt]
    assert [one.dashed for one in roofs] == [True, True]
    assert "imported, modelled" in [entry.group for entry in panel.legend]
