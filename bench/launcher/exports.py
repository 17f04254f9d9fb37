"""The parts of a record that people open in a spreadsheet, written beside it."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

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


def write_exports(folder: RecordFolder, record: RunRecord) -> None:
    """Write `iterations.csv`, `telemetry.csv` and `environment.json` of what the record holds."""
    if record.measurement is not None:
        write_atomically(folder.path / "iterations.csv", iterations_csv(record.measurement))
    if record.telemetry is not None and record.telemetry.series:
        write_atomically(folder.path / "telemetry.csv", telemetry_csv(record.telemetry))
    if record.environment is not None:
        folder.write(folder.path / "environment.json", record.environment)


def write_profile_exports(folder: RecordFolder, record: ProfileRecord) -> None:
    """Write `ops.csv`, `kernels.csv` and `environment.json` of what the profile holds."""
    if record.ops is not None:
        write_atomically(folder.path / "ops.csv", _facts_csv(OpTime, record.ops.ops))
    if record.counters is not None:
        kernels = record.counters.per_kernel
        write_atomically(folder.path / "kernels.csv", _facts_csv(KernelTotals, kernels))
    if record.environment is not None:
        folder.write(folder.path / "environment.json", record.environment)


def _facts_csv(kind: type[Facts], facts: Sequence[Facts]) -> str:
    """One row per record, a column per field; what is missing is an empty cell."""
    header = [name for name in kind.model_fields if name != "missing"]
    return _csv(header, [[getattr(each, name) for name in header] for each in facts])


def iterations_csv(measurement: Measurement) -> str:
    """One row per iteration: its time, the wait for data, and the phases if they were timed."""
    phases = measurement.phase_times_s or {}
    header = ["iteration", "iteration_time_s", "data_wait_s", *(f"{name}_s" for name in phases)]
    columns = [measurement.iteration_times_s, measurement.data_wait_s, *phases.values()]
    rows = [[step, *values] for step, values in enumerate(zip(*columns, strict=True))]
    return _csv(header, rows)


def telemetry_csv(telemetry: Telemetry) -> str:
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
