"""Runs of language models through what people read: beside image runs, and alone."""

import csv
import json
from datetime import datetime, timezone

import factories as make
import pytest
import samples
from observed import tracked
from test_report import rows

import mlproject
from analysis import compare, place_runs, predict
from analysis.comparison import compared_metric, pair_runs
from analysis.comparison.machines.prices import gather_prices
from analysis.comparison.machines.speedups import machine_pairs
from analysis.comparison.trend import histories
from analysis.findings import find_all
from analysis.report import write_report
from analysis.report.opening import opening
from analysis.runs.groups import batch_curves, fastest, group_runs
from analysis.runs.tracked.additions import summaries_of
from analysis.runs.tracked.run_table import runs_table
from bench.records import TraceRecord
from bench.records.folders import RecordFolder
from bench.records.verdict.record_metrics import trace_summary
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


def both():
    return [*steps(), *steps(make_one=make.run_record)]


def test_a_run_has_the_rate_of_its_own_samples():
    tokens, images = place(make.sequence_record(telemetry=ENERGY)), place(make.run_record())
    assert (tokens[0].samples_per_s, tokens[0].rate_unit, tokens[0].tokens_per_s) == (
        *(10, "sequences/s"),
        1280,
    )
    assert (images[0].samples_per_s, images[0].rate_unit, images[0].tokens_per_s) == (
        *(10, "images/s"),
        None,
    )
    facts = tokens[0].facts()
    assert (facts["images_per_s"], facts["samples_per_s"], facts["tokens_per_s"]) == (
        *(None, 10),
        1280,
    )
    assert tokens[0].metric("energy_j_per_sample") == 2
    (measured,) = place(make.run_record(telemetry=ENERGY))
    assert measured.metric("energy_j_per_sample") == measured.metrics["energy_j_per_image"] == 2
    assert "image_size" not in tokens[0].settings
    assert "seq_len" not in images[0].settings


def test_lengths_of_sequences_are_configurations_of_their_own():
    runs = place(make.sequence_record(), make.sequence_record("longer", seq_len=256))
    assert len(group_runs(runs)) == len(batch_curves(runs)) == 2
    assert {run.distinction for run in runs} == {"seq_len 128", "seq_len 256"}


def test_lengths_are_rows_of_their_own_among_the_fastest_and_the_speed_ups(tmp_path):
    runs = place(
        *(
            make.sequence_record(
                f"{env}-{tokens}",
                step_s=step_s * tokens / 128,
                seq_len=tokens,
                settings={"env": env},
                environment=make.environment(label=env),
            )
            for env, step_s in (("one", 1.0), ("two", 0.5))
            for tokens in (128, 256)
        )
    )
    models = {model for _, model, _ in fastest(group_runs(runs))}
    assert models == {"mymodels:gpt, 128 tokens", "mymodels:gpt, 256 tokens"}
    write_report(runs, tmp_path, written=WRITTEN)
    rates = [(row["seq_len"], row["configurations"]) for row in rows(tmp_path, "speed-ups")]
    assert sorted(rates) == [("128", "1"), ("256", "1")]


def test_the_pulled_table_has_columns_of_samples_tokens_and_their_length():
    table = runs_table(
        [tracked(make.sequence_record(telemetry=ENERGY)), tracked(make.run_record(), "r2")]
    )
    tokens, images = table.iloc[0], table.iloc[1]
    assert (tokens["throughput_samples_per_s"], tokens["throughput_tokens_per_s"]) == (10, 1280)
    assert (tokens["seq_len"], tokens["sample"], tokens["optimizer"]) == (128, "sequence", "adamw")
    assert tokens["energy_j_per_sample"] == 2
    assert tokens[["throughput_images_per_s", "image_size", "energy_j_per_image"]].isna().all()
    assert (images["throughput_images_per_s"], images["sample"]) == (10, "image")
    assert images[["throughput_samples_per_s", "throughput_tokens_per_s", "seq_len"]].isna().all()


def test_a_report_of_sequences_says_nothing_of_images(tmp_path):
    write_report(place(*steps()), tmp_path, written=WRITTEN)
    markdown = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "sequences/s" in markdown
    assert "image" not in markdown.replace("imported", "").replace("images/", "")
    summary = rows(tmp_path, "summary")
    assert float(summary[0]["mean_samples_per_s"]) == pytest.approx(16)
    assert float(summary[0]["tokens_per_s"]) == pytest.approx(16 * 128)
    assert rows(tmp_path, "complexity")[0]["tokens_per_sample"] == "128"
    assert float(rows(tmp_path, "predictions")[0]["per_sample_ms"]) == pytest.approx(50)
    assert (tmp_path / "figures" / "throughput-lab.svg").exists()


def test_a_report_of_both_keeps_their_rates_apart(tmp_path):
    write_report(place(*both()), tmp_path, written=WRITTEN)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Batch size (images)" in page
    assert "Batch size (sequences)" in page
    figures = {path.stem for path in (tmp_path / "figures").glob("throughput*.svg")}
    assert figures == {"throughput-images-lab", "throughput-sequences-lab"}
    measured = rows(tmp_path, "measurements")
    filled = [
        (bool(row["throughput_images_per_s"]), bool(row["throughput_samples_per_s"]))
        for row in measured
    ]
    assert sorted(filled) == [(False, True)] * 3 + [(True, False)] * 3
    assert {row["image_size"] for row in rows(tmp_path, "complexity")} == {"", "224"}
    assert "mean_samples_per_s" in rows(tmp_path, "summary")[0]


def test_the_opening_sets_images_against_images_alone():
    sequences, _, images, _, sureness = opening(place(*both()))
    assert "Of 3 configurations of sequences, mymodels:gpt" in sequences
    assert "18.8 sequences/s (2410 tokens/s)" in sequences
    assert "Of 3 configurations of images, resnet18" in images
    assert sureness.startswith("No run is in doubt")


def test_findings_name_what_was_trained_on():
    said = "\n".join(
        line for one in find_all(place(*steps())) for line in (one.headline, *one.evidence)
    )
    assert "sequences/s" in said
    assert "images" not in said


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


def test_a_history_of_sequences_is_one(tmp_path):
    nights = [
        make.sequence_record(f"night-{number}", settings={"campaign": f"night-{number}"})
        for number in range(5)
    ]
    runs = place(*nights)
    (history,) = histories(runs, compared_metric(None, runs))
    assert history.judged


def test_a_million_sequences_have_a_cost():
    runs = place(*repeated("one", 1.0), *repeated("two", 0.5))
    [pair] = machine_pairs(runs, gather_prices(["one=0.72/h", "two=0.72/h"], None))
    cost = pair.shared[0].b.cost
    assert cost.per_million_samples == pytest.approx(10.2, rel=1e-2)  # 0.0002 USD/s, 19.6 a second
    assert (pair.sample, pair.shared[0].b.energy_j_per_sample) == ("sequence", 2)


def test_a_prediction_is_in_sequences_a_second(tmp_path, capsys):
    longer = steps(seq_len=256)
    runs = place(*steps(), *(one.model_copy(update={"record_id": f"long-{one.record_id}"})
                             for one in longer))  # fmt: skip
    table = predict(runs, "mymodels:gpt", 24, seq_len=128)
    assert table["samples_per_s"][0] == pytest.approx(24 / 1.3)
    assert table["per_sample_s"][0] == pytest.approx(0.05)
    for record in steps():
        RecordFolder.create(tmp_path, record.record_id).close(record)
    words = ["predict", "--records", str(tmp_path), "--arch", "mymodels:gpt", "--batch-size", "24"]
    assert mlproject.main(words) == 0
    printed = capsys.readouterr().out
    assert "batch 24: 18.5 sequences/s" in printed
    assert "50 ms a sequence" in printed


def test_compare_and_trend_print_the_runs_own_rate(tmp_path, capsys):
    for record in (*repeated("one", 1.0), *repeated("two", 0.5)):
        RecordFolder.create(tmp_path, record.record_id).close(record)
    sides = [f"records={tmp_path},env={env}" for env in ("one", "two")]
    assert mlproject.main(["compare", *sides, "--price", "one=1/h", "--format", "json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["comparisons"][0]["verdict"] == "faster"
    of_machines = facts["machines"]["configurations"][0]["a"]
    assert of_machines["energy_j_per_sample"] == 2
    assert of_machines["cost"]["cost_per_million_samples"] > 0


def test_a_tracked_run_says_what_its_samples_are():
    content = content_of(make.sequence_record())
    note = content.tags["mlflow.note.content"]
    assert "10 sequences/s, 1280 tokens/s, 1000 ms per iteration" in note
    assert content.params["resolved_sample"] == "sequence"
    named = [
        make.sequence_record(f"run-{n}", settings={"repeat": n, "campaign": "night"})
        for n in (1, 2)
    ]
    runs = place_runs(named, [], run_ids={one.record_id: f"id-{one.record_id}" for one in named})
    [mean] = summaries_of(runs)
    assert mean.metrics["samples_per_s_mean"] == pytest.approx(10)
    assert "images_per_s_mean" not in mean.metrics


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


def test_csv_of_a_trend_names_the_rate(tmp_path, capsys):
    for number in range(5):
        record = make.sequence_record(f"night-{number}", settings={"campaign": f"night-{number}"})
        RecordFolder.create(tmp_path, record.record_id).close(record)
    assert mlproject.main(["trend", f"records={tmp_path}", "--format", "csv"]) == 0
    header = next(csv.reader(capsys.readouterr().out.splitlines()))
    assert header[2] == "throughput_samples_per_s"
