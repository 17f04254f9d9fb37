"""MLflow's embedded store read by SQL: what its client would say, without its import of seconds.

Only tables of the version below are read, and only filters of the forms below. For others, and for
all that is written, there is MLflow's client.
"""

from __future__ import annotations

import json
import math
import os
import re
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tracking.store import open_database, sqlite_file

#: What `alembic_version` says of the tables of MLflow 3.17.
TABLES = "dc11669786a5"
#: MLflow's `ViewType`, and the stages of runs that each shows.
ACTIVE, DELETED, ALL = 1, 2, 3
_STAGES = {ACTIVE: "lifecycle_stage = 'active'", DELETED: "lifecycle_stage = 'deleted'", ALL: "1"}
_OF_RUN = (
    "run_uuid AS run_id, name AS run_name, status, start_time, artifact_uri, lifecycle_stage, "
    "CAST(experiment_id AS TEXT) AS experiment_id"
)
#: A condition of SQL and its values.
Condition = tuple[str, list[str]]
_HELD = "EXISTS (SELECT 1 FROM {} AS held WHERE held.run_uuid = runs.run_uuid AND key = ?"
_KEY = r"(tags|params)\.(?:`([^`]+)`|([\w.]+))\s*"
#: The clauses of MLflow's filters that are read, and what they ask of `runs`: their first group
#: is put into the condition, the others are its values.
_CLAUSES = [
    (re.compile(rf"\s*{clause}\s*(?i:and\b\s*(?=\S)|$)"), condition)
    for clause, condition in (
        (rf"{_KEY}=\s*'([^']*)'", f"{_HELD} AND value = ?)"),
        (rf"{_KEY}(?i:LIKE)\s*'([^'%_*?\[]*)%'", f"{_HELD} AND value GLOB ? || '*')"),
        (rf"{_KEY}(?i:IS NULL)", f"NOT {_HELD})"),
        (r"(attributes)\.status\s*=\s*'([^']*)'", "status = ?"),
        (r"attributes\.run_id\s*(?i:IN)\s*\(('[^']*'(?:, '[^']*')*)\)", "run_uuid IN ({})"),
    )
]


def conditions(filter_string: str) -> list[Condition] | None:
    """Return MLflow's filter as conditions on `runs`, None where it has another form."""
    wanted, at = [], 0
    while at < len(filter_string):
        tried = ((clause.match(filter_string, at), condition) for clause, condition in _CLAUSES)
        match, condition = next((pair for pair in tried if pair[0]), (None, ""))
        if match is None:
            return None
        first, *values = match.groups()
        wanted.append((condition.format(first), [text for text in values if text is not None]))
        at = match.end()
    return wanted


class EmbeddedReader:
    """Reads the experiments and runs of a store; its answers have the form of MLflow's entities."""

    def __init__(self, file: Path) -> None:
        # kept open: to open it reads the definitions of all tables
        self._database = open_database(file)

    @classmethod
    def of(cls, tracking_uri: str) -> EmbeddedReader | None:
        """Return the reader of that store, None where MLflow's client must be asked."""
        file = sqlite_file(tracking_uri)
        if file is None or not file.exists() or os.environ.get("MLFLOW_ENABLE_WORKSPACES"):
            return None
        try:
            reader = cls(file)
            version = reader._rows("SELECT version_num FROM alembic_version")
        except sqlite3.Error:
            return None
        return reader if version == [(TABLES,)] else None

    def experiments(self) -> list[Any]:
        """Return every active experiment."""
        columns = "CAST(experiment_id AS TEXT) AS experiment_id, name, artifact_location"
        found = self._entities(
            f"SELECT {columns}, creation_time FROM experiments WHERE lifecycle_stage = 'active'"
        )
        for experiment in found:
            of_it = "SELECT key, value FROM experiment_tags WHERE experiment_id = ?"
            experiment.tags = dict(self._rows(of_it, experiment.experiment_id))
        return found

    def run_ids(
        self, experiments: Sequence[str], wanted: Sequence[Condition], stage: int
    ) -> list[str]:
        """Return the ids of the runs that meet all conditions, newest start first."""
        where = f"experiment_id IN (SELECT value FROM json_each(?)) AND {_STAGES[stage]}"
        clauses = " AND ".join([where, *(condition for condition, _ in wanted)])
        rows = self._rows(
            f"SELECT run_uuid FROM runs WHERE {clauses} ORDER BY start_time DESC, run_uuid",
            json.dumps([*map(int, experiments)]),
            *(value for _, values in wanted for value in values),
        )
        return [run_id for (run_id,) in rows]

    def runs(self, run_ids: Sequence[str]) -> list[Any]:
        """Return these runs in their order, with their params, tags and last metrics."""
        chosen, ids = "run_uuid IN (SELECT value FROM json_each(?))", json.dumps([*run_ids])
        runs = {}
        for info in self._entities(f"SELECT {_OF_RUN} FROM runs WHERE {chosen}", ids):
            data = SimpleNamespace(params={}, tags={}, metrics={}, _metric_objs=[])
            runs[info.run_id] = SimpleNamespace(info=info, data=data)
        for kind in ("params", "tags"):
            rows = self._rows(f"SELECT run_uuid, key, value FROM {kind} WHERE {chosen}", ids)
            for run_id, key, value in rows:
                getattr(runs[run_id].data, kind)[key] = value
        # of a metric that is no number there is a zero
        point = "run_uuid, key, CASE is_nan WHEN 0 THEN value END AS value, timestamp, step"
        for metric in self._entities(f"SELECT {point} FROM latest_metrics WHERE {chosen}", ids):
            data = runs[metric.run_uuid].data
            metric.value = math.nan if metric.value is None else metric.value
            data.metrics[metric.key] = metric.value
            data._metric_objs.append(metric)
        for run in runs.values():
            run.info.run_name = run.info.run_name or run.data.tags.get("mlflow.runName")
        return [runs[run_id] for run_id in run_ids if run_id in runs]

    def _entities(self, statement: str, *values: str) -> list[Any]:
        found = self._database.execute(statement, values)
        names = [name for name, *_ in found.description]
        rows = found.fetchall()
        return [SimpleNamespace(**dict(zip(names, row, strict=True))) for row in rows]

    def _rows(self, statement: str, *values: str) -> list[Any]:
        """Every row at once: a statement that is still read would keep writers waiting."""
        return self._database.execute(statement, values).fetchall()
