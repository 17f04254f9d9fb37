"""Runs are grouped by what ran: what `auto` became, and not how it was asked for."""

import csv
import json

import factories as make
import pytest
import samples
from observed import records_on_disk

import mlproject
from analysis import place_runs
from analysis.findings.differences import uplifts
from analysis.prediction.batch_size import choose_curve
from analysis.runs.groups import fastest, group_runs
from bench.records import TraceRecord
from bench.records.metrics import trace_summary

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


# Runs of language models


ENERGY = samples.telemetry(energy_j=200.0)


def place(*records):
    return place_runs(records, [make.ceilings_record()])


def steps():
    """A run of each batch size, whose step takes 0.1 s and 50 ms a sample."""
    return [make.sequence_record(f"{n}", n, 0.1 + 0.05 * n) for n in (8, 16, 32)]


def test_lengths_of_sequences_are_configurations_of_their_own():
    runs = place(make.sequence_record(), make.sequence_record("longer", seq_len=256))
    groups = group_runs(runs)
    assert len(runs.curves) == len(groups) == 2
    assert {run.distinction for run in runs} == {"seq_len 128", "seq_len 256"}
    models = {model for _, model, _ in fastest(groups)}
    assert models == {"mymodels:gpt, 128 tokens", "mymodels:gpt, 256 tokens"}


def repeated(env, step_s):
    return [
        make.sequence_record(
            f"{env}-{number}",
            step_s=step_s * (1 + number / 100),
            settings={"env": env, "repeat": number},
            environment=make.environment(label=env),
            telemetry=ENERGY,
        )
        for number in (1, 2, 3)
    ]


def test_commands_print_the_runs_own_rate(tmp_path, capsys):
    nights = [
        make.sequence_record(f"night-{number}", settings={"campaign": f"night-{number}"})
        for number in range(5)
    ]
    machines = [*repeated("one", 1.0), *repeated("two", 0.5)]
    for folder, records in (("steps", steps()), ("nights", nights), ("machines", machines)):
        records_on_disk(tmp_path / folder, *records)

    def printed(*words):
        assert mlproject.main([*map(str, words)]) == 0
        return capsys.readouterr().out

    asked = ("--arch", "mymodels:gpt", "--batch-size", 24)
    prediction = printed("predict", "--records", tmp_path / "steps", *asked)
    assert "batch 24: 18.5 sequences/s" in prediction
    assert "50 ms a sequence" in prediction
    history = printed("trend", f"records={tmp_path}/nights", "--format", "csv")
    assert next(csv.reader(history.splitlines()))[2] == "throughput_samples_per_s"
    sides = [f"records={tmp_path}/machines,env={env}" for env in ("one", "two")]
    facts = json.loads(printed("compare", *sides, "--price", "one=1/h", "--format", "json"))
    (one,) = facts["machines"]["configurations"]
    assert one["energy_j_per_sample"] == one["reference_energy_j_per_sample"] == 2
    assert one["reference_cost_per_million_samples"] == pytest.approx(28.3, rel=1e-2)


def test_a_trace_of_before_reads_as_one_of_images():
    before = json.loads(samples.trace_record().model_dump_json())
    assert before["throughput_images_per_s"] == 320
    assert not {"sample", "throughput_samples_per_s"} & before.keys()
    read = TraceRecord.model_validate(before)
    assert (read.sample, read.throughput_samples_per_s) == ("image", 320)
    assert trace_summary(read)["throughput_images_per_s"] == 320
    unknown = before | {"throughput_images_per_s": None}
    unknown["missing"] = before["missing"] | {"throughput_images_per_s": "no model"}
    assert TraceRecord.model_validate(unknown).missing["throughput_samples_per_s"] == "no model"
    tokens = samples.trace_record(sample="sequence")
    assert TraceRecord.model_validate_json(tokens.model_dump_json()) == tokens
    assert trace_summary(tokens)["throughput_samples_per_s"] == 320
