"""Runs are grouped by what ran: what `auto` became, and not how it was asked for."""

import factories as make
import pytest

from analysis.findings.differences import uplifts
from analysis.prediction.batch_size import choose_curve
from analysis.runs.groups import group_runs
from analysis.runs.place import place_runs

CUDA = {"backend": "cuda", "pin_memory": True}
FP16 = {"math_mode": "fp16", "autocast_dtype": "fp16", "loss_scaling": True}
BF16 = {"math_mode": "bf16", "autocast_dtype": "bf16"}


def placed(*asked_and_ran, batch=10):
    """A run for each pair of settings asked for and of values that they became."""
    records = []
    for number, (asked, ran) in enumerate(asked_and_ran, 1):
        resolved = make.resolved(**{"batch_size": batch, **ran})
        records.append(make.run_record(f"r{number}", batch, settings=asked, resolved=resolved))
    return place_runs(records, [])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (({}, {}), ({"backend": "cpu"}, {})),
        (({"batch_size": "auto"}, {"batch_size": 16}), ({"batch_size": 16}, {"batch_size": 16})),
        (({}, {"threads": 4}), ({"threads": 4}, {"threads": 4})),
        (({}, {"channels_last": True}), ({"channels_last": "true"}, {"channels_last": True})),
        (({}, {"allocator": "retain"}), ({"allocator": "retain"}, {"allocator": "retain"})),
        (({}, {"image_size": 224}), ({"image_size": 224}, {"image_size": 224})),
        (({}, {}), ({"fused_optimizer": "true"}, {})),
        (({"data": "/x"}, {"workers": 2}), ({"data": "/x", "workers": 2}, {"workers": 2})),
        (({}, {}), ({"workers": 3, "prefetch_factor": 4, "pin_memory": "true"}, CUDA | {
            "backend": "cpu"})),  # synthetic data has no loader
        (({"precision": "amp"}, {}), ({"precision": "fp32"}, {})),
        (({"precision": "amp"}, BF16), ({"precision": "amp-bf16"}, BF16)),
        (({"precision": "amp"}, FP16), ({"precision": "amp-fp16"}, FP16)),
        (({"precision": "amp"}, BF16 | {"depthwise_fp32": True}),
         ({"precision": "amp", "depthwise_fp32": "true"}, BF16 | {"depthwise_fp32": True})),
        (({"warmup_iters": 2}, {}), ({"iters": 7, "max_seconds": "none"}, {})),
    ],
)  # fmt: skip
def test_what_ran_alike_is_one_configuration(one, other):
    runs = placed(one, other, batch=16)
    assert len(group_runs(runs)) == 1
    assert len(runs.curves) == 1
    assert {run.distinction for run in runs} == {""}


def test_amp_that_ran_in_fp32_has_no_uplift_and_every_row_says_so():
    runs = placed(({}, {}), ({}, {}), ({"precision": "amp"}, {}))
    (group,) = group_runs(runs)
    assert group.label == "lab resnet18 fp32 (amp asked for in 1 of 3 runs) batch 10"
    assert runs[2].label == "lab resnet18 fp32 (amp asked for) batch 10"
    assert uplifts(runs) == []
    assert choose_curve(runs, "resnet18", "amp")[0].names == ("r3",)
    assert choose_curve(runs, "resnet18", "fp32")[0].names == ("r1", "r2", "r3")
