"""GFLOP/s that files state against the work of their images, and the convention that they fit."""

from datetime import datetime, timezone

import samples

from bench.records import ImportedRecord
from bench.records.verdict.claimed_flops import judge_claims

GIGA = 10**9
NOON = datetime(2025, 6, 1, 12, tzinfo=timezone.utc)
#: A step of 10 images: 10 GFLOP an image, 3.4 of them in the forward pass (1.7 GMAC).
COMPLEXITY = samples.complexity(batch_size=10, step_flops=100 * GIGA, forward_macs=17 * GIGA)


def result(line, claimed, images_per_s=10.0, **changes):
    known = {
        "record_id": f"imported-{line}",
        "created": NOON,
        "source_file": "table.csv",
        "source_sha256": "0" * 64,
        "source_line": line,
        "source_format": "table",
        "campaign": "c",
        "arch": "resnet18",
        "batch_size": 10,
        "throughput_images_per_s": images_per_s,
        "complexity": COMPLEXITY,
        "metrics": {} if claimed is None else {"claimed_gflops": claimed},
    }
    return ImportedRecord.of("the source does not say", **(known | changes))


def finding(record):
    return record.verdict.findings[0] if record.verdict else None


def message(claimed, **changes):
    (judged,) = judge_claims([result(2, claimed, **changes)])
    found = finding(judged)
    return None if found is None else f"{found.level}: {found.message}"


def test_what_fits_or_is_not_stated_has_no_verdict():
    for claimed in (None, 100.0, 97.5, 102.9):
        assert message(claimed) is None
    assert message(50.0, complexity=None) is None
    assert message(107.0).startswith("suspect: its file states 107 GFLOP/s")


def test_a_figure_of_other_work_is_named_with_its_convention():
    for claimed, words in {
        34.0: "the forward pass alone",
        17.0: "the forward pass alone with a multiply-add as 1 FLOP",
        50.0: "a training step with a multiply-add as 1 FLOP",
        68.0: "2 x the forward pass",
        200.0: "a training step with a multiply-add as 4 FLOP",
        0.1: "TFLOP/s",
        3.4: "the GFLOP of the forward pass of one image, no rate",
    }.items():
        said = message(claimed)
        assert said.startswith(f"note: its file states {claimed:.4g} GFLOP/s, images/s x FLOP of")
        assert said.endswith(f"are 100: the stated figure fits {words}")
    eight = message(12.5, params={"devices": "4", "nodes": "2"})
    assert eight.endswith("fits one of its 8 devices")
    three = samples.complexity(batch_size=10, step_flops=90 * GIGA, forward_macs=17 * GIGA)
    assert message(102.0, complexity=three).endswith("3 x the forward pass")
    assert message(77.0).endswith("no usual count fits the stated figure")


def test_another_rows_figure_is_named_by_its_line():
    sound = result(2, 100.0)
    copied = result(3, 100.0, images_per_s=30.0, batch_size=20)
    judged = judge_claims([sound, copied])
    assert judged[0] == sound
    found = finding(judged[1])
    assert found.level == "suspect"
    assert found.message.endswith("the stated figure fits the result in line 2, resnet18 batch 10")
    neighbour = result(4, 400.0, images_per_s=40.0)
    of_neighbour = judge_claims([neighbour, result(5, 400.5, images_per_s=30.0)])[1]
    assert "the result in line 4" in finding(of_neighbour).message
    other_model = judge_claims([neighbour, result(5, 400.5, images_per_s=30.0, arch="vgg16")])[1]
    assert "no usual count" in finding(other_model).message
