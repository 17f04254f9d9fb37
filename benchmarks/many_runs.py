"""Makes a store of many runs, for the time and the memory that a command takes over it.

    export MLFLOW_TRACKING_URI=sqlite:////tmp/many/mlflow.db XDG_CACHE_HOME=/tmp/many/cache
    python benchmarks/many_runs.py 10000
    time mlproject report --out /tmp/many/report --no-log

It writes rows past MLflow's API, which would take an hour; each run has what an upload gives it.
Without the folder of XDG_CACHE_HOME nothing was read before.
"""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from itertools import cycle, islice, product
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent
sys.path[:1] = [str(PROJECT), str(PROJECT / "tests")]

import samples  # noqa: E402
from mlflow.store.tracking.dbmodels import models  # noqa: E402
from sqlalchemy import create_engine  # noqa: E402

from bench.config import RunConfig  # noqa: E402
from tracking import schema  # noqa: E402
from tracking.connection import Server  # noqa: E402
from tracking.content import content_of, last_values  # noqa: E402

CONFIGURATIONS = list(
    product(
        ("resnet18", "resnet50", "vgg16", "mobilenet_v2", "densenet121", "alexnet"),
        ("fp32", "amp"),
        (8, 16, 32, 64, 128, 256, 512),
    )
)
#: Every configuration has repeats in both.
CAMPAIGNS = ("before", "after")
#: Runs written at once.
ROWS = 2000


def records(number: int) -> Iterator[tuple[Any, datetime]]:
    """Yield the roofs of the machine and records of all configurations by turns, when uploaded."""
    last = datetime.now(timezone.utc) - timedelta(hours=1)
    yield samples.ceilings_record("fp32", "bf16"), last
    for index, (arch, precision, batch) in enumerate(islice(cycle(CONFIGURATIONS), number)):
        repeat = index // len(CONFIGURATIONS) + 1
        step_s = batch / (40 + len(arch)) * (1 + 0.01 * (repeat * 7 % 5))
        uploaded = last - timedelta(minutes=number - index)
        ran = {"math_mode": "bf16", "autocast_dtype": "bf16"} if precision == "amp" else {}
        known = {"arch": arch, "precision": precision, "batch_size": batch, "repeat": repeat}
        record = samples.run_record(
            RunConfig(**known, campaign=CAMPAIGNS[repeat % 2]),
            record_id=uuid.uuid4().hex,
            created=uploaded - timedelta(minutes=2),
            resolved=samples.resolved(batch_size=batch, **ran),
            complexity=samples.complexity(arch=arch, batch_size=batch),
            measurement=samples.measurement(
                [step_s * (1 + 0.001 * (step * 13 % 7)) for step in range(100)], images=batch
            ),
        )
        yield record, uploaded


def make(number: int) -> None:
    """Put so many runs, and the roofs of their machine, into the embedded store of MLflow."""
    place = Server().client.get_experiment("0").artifact_location.removeprefix("file://")
    tables = [models.SqlRun, models.SqlParam, models.SqlTag, models.SqlLatestMetric]
    engine = create_engine(os.environ["MLFLOW_TRACKING_URI"])
    coming = records(number)
    with engine.begin() as connection:
        while some := [rows_of(*each, Path(place)) for each in islice(coming, ROWS)]:
            for table, of_runs in zip(tables, zip(*some, strict=True), strict=True):
                if rows := [row for of_run in of_runs for row in of_run]:
                    connection.execute(table.__table__.insert(), rows)
    engine.dispose()


def rows_of(record: Any, uploaded: datetime, place: Path) -> tuple[list[dict[str, Any]], ...]:
    """Return the rows of a run, its params, tags and metrics; write its record below `place`."""
    content, run_id = content_of(record), uuid.uuid4().hex
    artifacts = place / run_id / "artifacts"
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
    params, tags = (
        [{"key": key, "value": text, "run_uuid": run_id} for key, text in of_run.items()]
        for of_run in (content.params, {**content.tags, **schema.whole_tags(uploaded)})
    )
    metrics = [
        {"key": key, "value": value, "timestamp": started_ms, "step": 0, "is_nan": False,
         "run_uuid": run_id}
        for key, value in last_values(content.metrics).items()
    ]  # fmt: skip
    return [run], params, tags, metrics


if __name__ == "__main__":
    make(int(sys.argv[1]))
