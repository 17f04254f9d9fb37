"""The parts of a record that people open in a spreadsheet, written beside it."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence

from bench.records import (
    Facts,
    KernelTotals,
    Measurement,
    OpTime,
    ProfileRecord,
    RunRecord,
    Telemetry,
)
from bench.records.folders import RecordFolder, write_atomically


def write_exports(folder: RecordFolder, record: RunRecord | ProfileRecord) -> None:
    """Write the tables of what the record holds, and `environment.json`.

    Of a run `iterations.csv` and `telemetry.csv`, of a profile `ops.csv` and `kernels.csv`.
    """
    for name, text in _of_run(record) if isinstance(record, RunRecord) else _of_profile(record):
        write_atomically(folder.path / name, text)
    if record.environment is not None:
        folder.write(folder.path / "environment.json", record.environment)


def _of_run(record: RunRecord) -> Iterator[tuple[str, str]]:
    if record.measurement is not None:
        yield "iterations.csv", _iterations_csv(record.measurement)
    if record.telemetry is not None and record.telemetry.series:
        yield "telemetry.csv", _telemetry_csv(record.telemetry)


def _of_profile(record: ProfileRecord) -> Iterator[tuple[str, str]]:
    if record.ops is not None:
        yield "ops.csv", _facts_csv(OpTime, record.ops.ops)
    if record.counters is not None:
        yield "kernels.csv", _facts_csv(KernelTotals, record.counters.per_kernel)


def _facts_csv(kind: type[Facts], facts: Sequence[Facts]) -> str:
    """One row per record, a column per field; what is missing is an empty cell."""
    header = [name for name in kind.model_fields if name != "missing"]
    return _csv(header, [[getattr(each, name) for name in header] for each in facts])


def _iterations_csv(measurement: Measurement) -> str:
    """One row per iteration: its time, the wait for data, and the phases if they were timed."""
    phases = measurement.phase_times_s or {}
    header = ["iteration", "iteration_time_s", "data_wait_s", *(f"{name}_s" for name in phases)]
    columns = [measurement.iteration_times_s, measurement.data_wait_s, *phases.values()]
    rows = [[step, *values] for step, values in enumerate(zip(*columns, strict=True))]
    return _csv(header, rows)


def _telemetry_csv(telemetry: Telemetry) -> str:
    """One row per sample: seconds from the window's start, series, value, where it was read."""
    rows = [
        [time_s, series.name, value, series.source]
        for series in telemetry.series
        for time_s, value in zip(series.times_s, series.values, strict=True)
    ]
    return _csv(["time_s", "series", "value", "source"], rows)


def _csv(header: list[str], rows: list[list[object]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()
