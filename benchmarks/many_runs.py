"""One step of an analysis of many runs, which prints the seconds and MB that it took.

    python benchmarks/many_runs.py make 10000

puts runs into the embedded store that MLflow's variables name, row by row past MLflow's API, which
would take hours for ten thousand; each has what an upload gives it. The other steps read them, and
imports do not count. `benchmarks/compare.py` runs them by turns.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from itertools import cycle, islice, product
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent
sys.path[:1] = [str(PROJECT), str(PROJECT / "tests")]

import samples  # noqa: E402

import mlproject  # noqa: E402
from bench.config import RunConfig  # noqa: E402
from bench.records import CeilingsRecord, RunRecord  # noqa: E402
from bench.records.folders import cache_folder  # noqa: E402

ARCHS = ("resnet18", "resnet50", "vgg16", "mobilenet_v2")
PRECISIONS = ("fp32", "amp", "amp-bf16")
BATCHES = (8, 16, 32, 64, 128, 256, 512)
#: Every configuration has repeats in both.
CAMPAIGNS = ("before", "after")
#: The last uploads, a minute apart, are as old as that.
QUIET = timedelta(hours=1)
#: Runs written at once.
ROWS = 2000


def pull() -> None:
    """Pull every run into a table."""
    import analysis

    print(len(analysis.pull_runs()), file=sys.stderr)


def search() -> None:
    """Find every run by MLflow's own client."""
    import mlflow

    found = mlflow.search_runs(search_all_experiments=True, max_results=200_000)
    print(len(found), file=sys.stderr)


def report() -> None:
    """Write a report over all runs."""
    with tempfile.TemporaryDirectory() as folder:
        run_command("report", "--out", folder, "--no-log")


def compare() -> None:
    """Compare the two campaigns."""
    run_command("compare", *(f"campaign={each}" for each in CAMPAIGNS))


def run_command(*words: str) -> None:
    """Do what `mlproject` does with these words; a gate that fails (exit code 1) has compared."""
    code = mlproject.main([*words])
    if code > 1:
        raise SystemExit(f"mlproject {words[0]} ended with {code}")


STEPS = {step.__name__: step for step in (pull, search, report, compare)}


def main() -> None:
    """Do one step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("step", choices=["make", *STEPS])
    parser.add_argument("runs", type=int, nargs="?", default=1000)
    parser.add_argument("--cold", action="store_true", help="without what was pulled before")
    asked = parser.parse_args()
    if asked.step == "make":
        fill(asked.runs)
        return
    import mlflow  # noqa: F401

    import analysis.server.tracked_frame  # noqa: F401
    import tracking.reading.tracked_runs  # noqa: F401

    if asked.cold:
        shutil.rmtree(cache_folder(), ignore_errors=True)
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    STEPS[asked.step]()
    took = {
        "step_s": time.perf_counter() - began_s,
        "processor_s": time.process_time() - began_cpu_s,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6,
    }
    print(json.dumps(took))


def records(number: int) -> Iterator[tuple[RunRecord, datetime]]:
    """Yield records of every configuration by turns, and when each was uploaded."""
    last = datetime.now(timezone.utc) - QUIET
    settings = islice(cycle(product(ARCHS, PRECISIONS, BATCHES)), number)
    for index, (arch, precision, batch) in enumerate(settings):
        repeat = index // (len(ARCHS) * len(PRECISIONS) * len(BATCHES)) + 1
        step_s = batch / (40 + 10 * ARCHS.index(arch)) * (1 + 0.01 * (repeat * 7 % 5))
        uploaded = last - timedelta(minutes=number - index)
        record = samples.run_record(
            RunConfig(
                arch=arch,
                precision=precision,
                batch_size=batch,
                repeat=repeat,
                campaign=CAMPAIGNS[repeat % 2],
            ),
            record_id=uuid.uuid4().hex,
            created=uploaded - timedelta(minutes=2),
            resolved=samples.resolved(batch_size=batch),
            measurement=samples.measurement([step_s] * 100, images=batch),
        )
        yield record, uploaded


def fill(number: int) -> None:
    """Put so many runs, and the roofs of their machine, into the store as our upload does."""
    from mlflow.store.tracking.dbmodels import models
    from sqlalchemy import create_engine

    from tracking.connection import Server

    root = Path(Server().client.get_experiment("0").artifact_location.removeprefix("file://"))
    tables = [models.SqlRun, models.SqlParam, models.SqlTag, models.SqlLatestMetric]
    engine = create_engine(os.environ["MLFLOW_TRACKING_URI"])
    kept = [*records(number), (samples.ceilings_record(), datetime.now(timezone.utc) - QUIET)]
    with engine.begin() as connection:
        for start in range(0, len(kept), ROWS):
            rows = [rows_of(*each, root) for each in kept[start : start + ROWS]]
            for table, of_runs in zip(tables, zip(*rows, strict=True), strict=True):
                if found := [row for of_run in of_runs for row in of_run]:
                    connection.execute(table.__table__.insert(), found)
    engine.dispose()


def rows_of(
    record: RunRecord | CeilingsRecord, uploaded: datetime, root: Path
) -> Sequence[list[dict[str, Any]]]:
    """Return the rows of runs, params, tags and metrics, and write the record's artifact."""
    from tracking import schema
    from tracking.content import content_of

    content, run_id = content_of(record), uuid.uuid4().hex
    artifacts = root / run_id / "artifacts"
    artifacts.mkdir(parents=True)
    (artifacts / "record.json").write_text(record.model_dump_json(), encoding="utf-8")
    started_ms = int(record.created.timestamp() * 1000)
    run = {
        "run_uuid": run_id,
        "name": content.tags[schema.RUN_NAME],
        "experiment_id": 0,
        "status": content.status,
        "lifecycle_stage": "active",
        "start_time": started_ms,
        "end_time": started_ms + 60_000,
        "artifact_uri": str(artifacts),
        "user_id": "benchmark",
        "source_type": "LOCAL",
    }
    tags = {**content.tags, **schema.whole_tags(uploaded)}
    texts = (
        [{"key": key, "value": text, "run_uuid": run_id} for key, text in of_run.items()]
        for of_run in (content.params, tags)
    )
    metrics = [
        {
            "key": point.key,
            "value": point.value,
            "timestamp": int(point.unix_s * 1000),
            "step": point.step,
            "is_nan": False,
            "run_uuid": run_id,
        }
        for point in {point.key: point for point in content.metrics}.values()
    ]
    return [[run], *texts, metrics]


if __name__ == "__main__":
    main()
