"""Runs of language models through what people read: beside image runs, and alone."""

import csv
import json
from datetime import datetime, timezone

import factories as make
import pytest
import samples
from observed import records_on_disk, tracked
from test_report import rows

import mlproject
from analysis import compare, place_runs, predict
from analysis.comparison import compared_metric, pair_runs
from analysis.comparison.machines import across_machines
from analysis.comparison.prices import gather_prices
from analysis.report.write import write_report
from analysis.runs.frame import run_facts
from analysis.runs.groups import batch_curves, fastest, group_runs
from analysis.server.tracked_frame import tracked_frame
from bench.records import TraceRecord
from bench.records.metrics import trace_summary
from tracking.content import content_of

WRITTEN = datetime(2025, 6, 2, 9, 30, tzinfo=timezone.utc)
ENERGY = samples.telemetry(energy_j=200.0)


def place(*records):
    return place_runs(records, [make.ceilings_record()])


def steps(batches=(8, 16, 32), make_one=make.sequence_record, **options):
    """A run of each batch size, whose step takes 0.1 s and 50 ms a sample."""
    return [
        make_one(f"{make_one.__name__}-{batch}", batch, 0.1 + 0.05 * batch, **options)
        for batch in batches
    ]


def test_a_run_has_the_rate_of_its_own_samples():
    (tokens,), (images,) = (
        place(make_one(telemetry=ENERGY)) for make_one in (make.sequence_record, make.run_record)
    )
    assert (tokens.samples_per_s, tokens.rate_unit) == (10, "sequences/s")
    assert (images.samples_per_s, images.rate_unit) == (10, "images/s")
    facts = run_facts(tokens)
    rates = [facts[f"throughput_{name}_per_s"] for name in ("images", "samples", "tokens")]
    assert rates == [None, 10, 1280]
    assert images.metric("energy_j_per_sample") == images.metrics["energy_j_per_image"] == 2
    assert tokens.metric("energy_j_per_sample") == 2
    assert "image_size" not in tokens.settings
    assert "seq_len" not in images.settings


def test_lengths_of_sequences_are_configurations_of_their_own():
    runs = place(make.sequence_record(), make.sequence_record("longer", seq_len=256))
    groups = group_runs(runs)
    assert len(batch_curves(runs)) == len(groups) == 2
    assert {run.distinction for run in runs} == {"seq_len 128", "seq_len 256"}
    models = {model for _, model, _ in fastest(groups)}
    assert models == {"mymodels:gpt, 128 tokens", "mymodels:gpt, 256 tokens"}


@pytest.mark.usefixtures("unpainted")
def test_lengths_are_rows_of_their_own_among_the_speed_ups(tmp_path):
    records = [
        make.sequence_record(
            f"{env}-{tokens}",
            step_s=step_s * tokens / 128,
            seq_len=tokens,
            settings={"env": env},
            environment=make.environment(label=env),
        )
        for env, step_s in (("one", 1.0), ("two", 0.5))
        for tokens in (128, 256)
    ]
    write_report(place(*records), tmp_path, written=WRITTEN)
    rates = [(row["seq_len"], row["configurations"]) for row in rows(tmp_path, "speed-ups")]
    assert sorted(rates) == [("128", "1"), ("256", "1")]


def test_the_pulled_table_has_columns_of_samples_tokens_and_their_length():
    table = tracked_frame(
        [tracked(make.sequence_record(telemetry=ENERGY)), tracked(make.run_record(), "r2")]
    )
    tokens, images = table.iloc[0], table.iloc[1]
    assert (tokens["throughput_samples_per_s"], tokens["throughput_tokens_per_s"]) == (10, 1280)
    assert (tokens["seq_len"], tokens["sample"], tokens["optimizer"]) == (128, "sequence", "adamw")
    assert tokens["energy_j_per_sample"] == 2
    assert tokens[["throughput_images_per_s", "image_size", "energy_j_per_image"]].isna().all()
    assert (images["throughput_images_per_s"], images["sample"]) == (10, "image")
    assert images[["throughput_samples_per_s", "throughput_tokens_per_s", "seq_len"]].isna().all()


@pytest.mark.usefixtures("unpainted")
def test_a_report_of_sequences_alone_says_nothing_of_images(tmp_path):
    runs = place(*steps())
    write_report(runs, tmp_path, written=WRITTEN)
    markdown = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "sequences/s" in markdown
    assert "image" not in markdown.replace("imported", "").replace("images/", "")
    assert float(rows(tmp_path, "summary")[0]["throughput_tokens_per_s"]) == pytest.approx(16 * 128)
    assert float(rows(tmp_path, "predictions")[0]["per_sample_ms"]) == pytest.approx(50)


def repeated(env, step_s, make_one=make.sequence_record):
    return [
        make_one(
            f"{env}-{number}",
            step_s=step_s * (1 + number / 100),
            settings={"env": env, "repeat": number},
            environment=make.environment(label=env),
            telemetry=ENERGY,
        )
        for number in (1, 2, 3)
    ]


def test_by_default_runs_are_compared_by_their_own_rate():
    ours, theirs = place(*repeated("one", 1.0)), place(*repeated("two", 0.5))
    metric = compared_metric(None, [*ours, *theirs])
    assert metric.name == "throughput_samples_per_s"
    row = compare(ours, theirs).iloc[0]
    assert row["ratio"] == pytest.approx(2)
    assert compare(ours, theirs, metric="throughput_tokens_per_s")["ratio"][0] == pytest.approx(2)
    assert compared_metric(None, place(make.run_record())).name == "throughput_images_per_s"
    images = place(*repeated("three", 0.5, make.run_record))
    mixed = compared_metric(None, [*ours, *images])
    assert (mixed.name, mixed.unit) == ("throughput_samples_per_s", "samples/s")
    assert not pair_runs(ours, place(*repeated("two", 0.5)), mixed.name).left_out


def test_a_million_sequences_have_a_cost():
    runs = place(*repeated("one", 1.0), *repeated("two", 0.5))
    [pair] = across_machines(runs, gather_prices(["one=0.72/h", "two=0.72/h"], None)).pairs
    (row,) = pair.rows  # 0.0002 USD/s, 19.6 a second
    assert row["cost_per_million_samples"] == pytest.approx(10.2, rel=1e-2)
    assert (pair.sample, row["energy_j_per_sample"]) == ("sequence", 2)


def test_a_prediction_is_of_one_length():
    longer = [one.model_copy(update={"record_id": f"long-{one.record_id}"})
              for one in steps(seq_len=256)]  # fmt: skip
    table = predict(place(*steps(), *longer), "mymodels:gpt", 24, seq_len=128)
    assert table["samples_per_s"][0] == pytest.approx(24 / 1.3)
    assert table["per_sample_s"][0] == pytest.approx(0.05)


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


def test_a_tracked_run_says_what_its_samples_are():
    content = content_of(make.sequence_record())
    note = content.tags["mlflow.note.content"]
    assert "10 sequences/s, 1280 tokens/s, 1000 ms per iteration" in note
    assert content.params["resolved_sample"] == "sequence"


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
