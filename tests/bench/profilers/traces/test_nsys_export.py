"""Exports of Nsight Systems are read as traces, whichever tables and columns their version has."""

import sqlite3
from contextlib import closing, suppress

import pytest
from nsys_files import GENERAL, PID, TABLES, TID, database, step
from trace_files import refusal

from bench.errors import UserError
from bench.profilers.traces import nsys, read_trace


def test_marks_calls_kernels_copies_and_fills(tmp_path):
    trace = read_trace(database(tmp_path, GENERAL, step()))
    marks = [(span.name, span.begin_us, span.end_us) for span in trace.host if span.kind == "mark"]
    assert marks == [("it", 0, 9.9), ("forward", 0.01, 0.02)]
    calls = [span for span in trace.host if span.kind == "call"]
    assert {span.name for span in calls} == {"cudaLaunchKernel"}
    assert {span.thread for span in trace.host} == {(PID, TID)}
    assert [(run.kind, run.name, run.duration_us) for run in trace.device] == [
        ("copy", "Memcpy HtoD (Pageable -> Device)", 2.5),
        ("fill", "Memset (Device)", 1.0),
        ("kernel", "void k<float>(float*)", 2.0),
        ("kernel", "CUDA graph 5", 0.5),
    ]
    assert [run.size_bytes for run in trace.device] == [4096, 64, None, None]
    assert [(run.device, run.stream) for run in trace.device] == [(0, 7)] * 3 + [(0, 13)]
    launched_us = [trace.launches[run.correlation].begin_us for run in trace.device]
    assert launched_us == [0.001, 0.002, 0.003, 0.004]
    assert trace.of_the_device("name") == "NVIDIA A100"
    assert trace.devices[0].capability == (8, 0)


def test_processes_that_count_alike_are_not_confused(tmp_path):
    trace = read_trace(database(tmp_path, GENERAL, step(), step(77, 20_000, gpu=1)))
    assert {span.thread[0] for span in trace.host} == {PID, 77}
    assert [run.device for run in trace.device] == [0] * 4 + [1] * 4
    assert {run.stream for run in trace.device} == {"1234:7", "1234:13", "77:7", "77:13"}
    for run in trace.device:
        launch = trace.launches[run.correlation]
        assert launch.thread[0] == (PID if run.device == 0 else 77)
        assert launch.begin_us < run.begin_us < launch.begin_us + 20
    unknown = database(
        tmp_path / "..", GENERAL, step(), step(77), without=["TARGET_INFO_CUDA_DEVICE"]
    )
    assert {run.device for run in read_trace(unknown).device} == {"1234:0", "77:0"}


@pytest.mark.parametrize("table", TABLES)
def test_a_table_may_be_missing_or_any_column_but_times(tmp_path, table):
    whole = read_trace(database(tmp_path, GENERAL, step()))
    (tmp_path / "less").mkdir()
    less = read_trace(database(tmp_path / "less", GENERAL, step(), without=[table]))
    assert len(whole.host) + len(whole.device) - len(less.host) - len(less.device) in (0, 1, 2, 4)
    assert all(run.duration_us > 0 for run in less.device)
    columns = [part.split()[0] for part in TABLES[table].split(", ")]
    for column in {*columns} - {"start", "end", "id"}:
        (tmp_path / column).mkdir()
        path = database(tmp_path / column, GENERAL, step(), drop=[(table, column)])
        trace = read_trace(path)
        assert (len(trace.host), len(trace.device)) == (6, 4), column


# Damaged and hostile files


def test_a_cut_or_changed_database_is_read_or_refused(tmp_path):
    path = database(tmp_path, GENERAL, step())
    contents = path.read_bytes()
    for size in (16, 100, 1000, 4096, 9000):
        path.write_bytes(contents[:size])
        assert "not readable as a trace" in refusal(path)
    for at in range(16, len(contents), 997):
        path.write_bytes(contents[:at] + bytes([contents[at] ^ 0xFF]) + contents[at + 1 :])
        with suppress(UserError):
            read_trace(path)


def test_a_database_of_something_else_or_of_more_than_the_limit(tmp_path, monkeypatch):
    path = tmp_path / "notes.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE notes (text TEXT)")
    assert "no export of Nsight Systems: its tables are notes" in refusal(path)
    monkeypatch.setattr(nsys, "MOST_BYTES", 500)
    assert "GB: record fewer steps" in refusal(path)


@pytest.mark.parametrize("table", [name for name in TABLES if "CUPTI" in name or "NVTX" in name])
@pytest.mark.parametrize("version", ["_V3", "_v11"])
def test_a_table_with_a_version_is_read(tmp_path, table, version):
    path = database(tmp_path, GENERAL, step())
    whole = read_trace(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"ALTER TABLE {table} RENAME TO {table}{version}")
    newer = read_trace(path)
    assert (newer.host, newer.device) == (whole.host, whole.device)


@pytest.mark.parametrize(
    ("start", "end"), [("now", 5), (None, 5), (1.5, 5), (b"1", 5), (1, "later"), (1, b"2")]
)
def test_a_time_that_is_no_integer(tmp_path, start, end):
    table = "CUPTI_ACTIVITY_KIND_RUNTIME"
    path = database(tmp_path, GENERAL, step(), without=[table])
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"CREATE TABLE {table} (start, end)")
        connection.execute(f"INSERT INTO {table} VALUES (?, ?)", (start, end))
    assert f"{table}: a row has no usable" in refusal(path)


def test_a_column_of_times_that_is_missing(tmp_path):
    path = database(tmp_path, GENERAL, step(), drop=[("CUPTI_ACTIVITY_KIND_KERNEL", "end")])
    assert "CUPTI_ACTIVITY_KIND_KERNEL: a row has no usable end" in refusal(path)


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS WITH RECURSIVE n(start) AS "
        "(SELECT 1 UNION ALL SELECT start FROM n) SELECT start, start AS end FROM n",
        "CREATE VIRTUAL TABLE CUPTI_ACTIVITY_KIND_KERNEL USING fts5(start, end)",
    ],
)
def test_a_view_without_end_and_a_virtual_table_are_not_read(tmp_path, statement):
    path = database(tmp_path, GENERAL, step(), without=["CUPTI_ACTIVITY_KIND_KERNEL"])
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement)
    assert len(read_trace(path).device) == 3


def test_a_database_that_another_program_has_open_is_read_and_left_as_it_is(tmp_path):
    path = database(tmp_path, GENERAL, step())
    before = path.read_bytes()
    path.chmod(0o444)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        assert len(read_trace(path).device) == 4
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == [path.name]
