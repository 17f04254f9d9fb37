"""A store of as many tracked runs as asked, put there row by row past MLflow's API.

Each run has the params, metrics, tags and record that our upload gives it; through the API ten
thousand of them would take hours.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import cycle, islice, product
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(PROJECT), str(PROJECT / "tests"), str(PROJECT / "tests" / "analysis")]

import factories as make  # noqa: E402

from bench.config import RunConfig  # noqa: E402
from bench.records import CeilingsRecord, RunRecord  # noqa: E402

ARCHS = ("resnet18", "resnet50", "vgg16", "mobilenet_v2")
PRECISIONS = ("fp32", "amp", "amp-bf16")
BATCHES = (8, 16, 32, 64, 128, 256, 512)
ROWS = 2000


def records(number: int, last: datetime, apart: timedelta) -> Iterator[tuple[RunRecord, datetime]]:
    """Yield records of every configuration by turns, and when each was uploaded."""
    settings = cycle(product(ARCHS, PRECISIONS, BATCHES))
    for index, (arch, precision, batch) in enumerate(islice(settings, number)):
        repeat = index // (len(ARCHS) * len(PRECISIONS) * len(BATCHES)) + 1
        step_s = batch / (40 + 10 * ARCHS.index(arch)) * (1 + 0.01 * (repeat * 7 % 5))
        config = RunConfig(arch=arch, precision=precision, batch_size=batch, repeat=repeat)
        uploaded = last - apart * (number - index)
        record = make.run_record(
            uuid.uuid4().hex,
            config=config,
            created=uploaded - timedelta(minutes=2),
            resolved=make.resolved(batch_size=batch),
            measurement=make.measurement(step_s=step_s, iterations=100, images=batch),
        )
        yield record, uploaded


def fill(folder: Path, number: int, last: datetime, *, late: bool = False) -> None:
    """Put runs into the store as our upload leaves them; late ones began before all others."""
    from mlflow.store.tracking.dbmodels import models
    from sqlalchemy import create_engine

    from tracking.store import open_client

    root = Path(open_client().get_experiment("0").artifact_location.removeprefix("file://"))
    tables = [models.SqlRun, models.SqlParam, models.SqlTag, models.SqlLatestMetric]
    engine = create_engine(f"sqlite:///{folder}/mlflow.db")
    found = list(records(number, last, timedelta(seconds=1 if late else 60)))
    everything: list[tuple[RunRecord | CeilingsRecord, datetime]] = [*found]
    if not late:
        everything.append((make.ceilings_record(), last))
    with engine.begin() as connection:
        for start in range(0, len(everything), ROWS):
            rows: list[list[dict[str, Any]]] = [[] for _ in tables]
            for record, uploaded in everything[start : start + ROWS]:
                for table, new in zip(
                    rows, rows_of(record, uploaded, root, late=late), strict=True
                ):
                    table += new
            for table, new in zip(tables, rows, strict=True):
                if new:
                    connection.execute(table.__table__.insert(), new)
    engine.dispose()


def rows_of(
    record: RunRecord | CeilingsRecord, uploaded: datetime, root: Path, *, late: bool
) -> Sequence[list[dict[str, Any]]]:
    """Return the rows of runs, params, tags and metrics, and write the record's artifact."""
    from tracking import schema
    from tracking.upload.run_content import content_of

    content, run_id = content_of(record), uuid.uuid4().hex
    artifacts = root / run_id / "artifacts"
    artifacts.mkdir(parents=True)
    (artifacts / "record.json").write_text(record.model_dump_json(), encoding="utf-8")
    started_ms = int((record.created - timedelta(days=3650 if late else 0)).timestamp() * 1000)
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
    last_values = {point.key: point for point in content.metrics}
    metrics = [
        {
            "key": key,
            "value": point.value,
            "timestamp": int(point.unix_s * 1000),
            "step": point.step,
            "is_nan": False,
            "run_uuid": run_id,
        }
        for key, point in last_values.items()
    ]
    return [
        [run],
        [{"key": key, "value": text, "run_uuid": run_id} for key, text in content.params.items()],
        [{"key": key, "value": text, "run_uuid": run_id} for key, text in tags.items()],
        metrics,
    ]
