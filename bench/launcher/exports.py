"""The parts of a record that people open in a spreadsheet, written beside it."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence

from bench.records import Facts, KernelTotals, OpTime, ProfileRecord, RunRecord
from bench.records.folders import RecordFolder, write_atomically

#: The file's name, its header and its rows.
Table = tuple[str, list[str], list[list[object]]]


def write_exports(folder: RecordFolder, record: RunRecord | ProfileRecord) -> None:
    """Write the tables of what the record holds, and `environment.json`.

    Of a run `iterations.csv` and `telemetry.csv`, of a profile `ops.csv` and `kernels.csv`.
    """
    tables = _of_run(record) if isinstance(record, RunRecord) else _of_profile(record)
    for name, header, rows in tables:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([header, *rows])
        write_atomically(folder.path / name, text.getvalue())
    if record.environment is not None:
        folder.write(folder.path / "environment.json", record.environment)


def _of_run(record: RunRecord) -> Iterator[Table]:
    if (measurement := record.measurement) is not None:
        phases = measurement.phase_times_s or {}  # if they were timed
        header = ["iteration", "iteration_time_s", "data_wait_s", *(f"{name}_s" for name in phases)]
        columns = [measurement.iteration_times_s, measurement.data_wait_s, *phases.values()]
        rows = [[step, *values] for step, values in enumerate(zip(*columns, strict=True))]
        yield "iterations.csv", header, rows
    if record.telemetry is not None and record.telemetry.series:
        samples = [
            [time_s, series.name, value, series.source]
            for series in record.telemetry.series
            for time_s, value in zip(series.times_s, series.values, strict=True)
        ]
        yield "telemetry.csv", ["time_s", "series", "value", "source"], samples


def _of_profile(record: ProfileRecord) -> Iterator[Table]:
    if record.ops is not None:
        yield "ops.csv", *_columns(OpTime, record.ops.ops)
    if record.counters is not None:
        yield "kernels.csv", *_columns(KernelTotals, record.counters.per_kernel)


def _columns(kind: type[Facts], facts: Sequence[Facts]) -> tuple[list[str], list[list[object]]]:
    """One row per record, a column per field; what is missing is an empty cell."""
    header = [name for name in kind.model_fields if name != "missing"]
    return header, [[getattr(each, name) for name in header] for each in facts]
