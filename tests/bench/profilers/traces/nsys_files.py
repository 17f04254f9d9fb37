"""Exports of Nsight Systems made here, with the tables and columns that NVIDIA documents."""

import sqlite3
from contextlib import closing

#: Columns as "SQLite Export Schema Reference" has them, those that the reader uses.
TABLES = {
    "StringIds": "id INTEGER PRIMARY KEY, value TEXT NOT NULL",
    "META_DATA_EXPORT": "name TEXT NOT NULL, value TEXT NOT NULL",
    "ENUM_CUDA_MEM_KIND": "id INTEGER PRIMARY KEY, name TEXT, label TEXT",
    "TARGET_INFO_GPU": "vmId INT NOT NULL, id INT NOT NULL, name TEXT, computeMajor INT,"
    " computeMinor INT",
    "TARGET_INFO_CUDA_DEVICE": "gpuId INT NOT NULL, cudaId INT NOT NULL, pid INT NOT NULL",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start INT NOT NULL, end INT NOT NULL, globalTid INT,"
    " correlationId INT, nameId INT NOT NULL",
    "CUPTI_ACTIVITY_KIND_KERNEL": "start INT NOT NULL, end INT NOT NULL, deviceId INT NOT NULL,"
    " streamId INT NOT NULL, correlationId INT, globalPid INT, demangledName INT NOT NULL,"
    " shortName INT NOT NULL",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": "start INT NOT NULL, end INT NOT NULL, deviceId INT,"
    " streamId INT, correlationId INT, globalPid INT, graphId INT",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "start INT NOT NULL, end INT NOT NULL, deviceId INT NOT NULL,"
    " streamId INT NOT NULL, correlationId INT, globalPid INT, bytes INT NOT NULL,"
    " copyKind INT NOT NULL, srcKind INT, dstKind INT",
    "CUPTI_ACTIVITY_KIND_MEMSET": "start INT NOT NULL, end INT NOT NULL, deviceId INT NOT NULL,"
    " streamId INT NOT NULL, correlationId INT, globalPid INT, bytes INT NOT NULL",
    "NVTX_EVENTS": "start INT NOT NULL, end INT, eventType INT NOT NULL, text TEXT, globalTid INT,"
    " textId INT",
}
PID, TID = 1234, 1235


def thread(pid=PID, tid=TID):
    """A thread as nsys serializes it, on machine 1."""
    return (1 << 56) | (pid << 24) | tid


def process(pid=PID):
    """A process as nsys serializes it."""
    return thread(pid, 0)


def step(pid=PID, at=0, gpu=0):
    """The rows of one process: a marked step with a copy, a fill, a kernel and a graph."""
    runtime = [(at + start, at + start + 100, thread(pid), start, 1) for start in (1, 2, 3, 4)]
    return {
        "TARGET_INFO_CUDA_DEVICE": [(gpu, 0, pid)],
        "CUPTI_ACTIVITY_KIND_RUNTIME": runtime,
        "CUPTI_ACTIVITY_KIND_MEMCPY": [
            (at + 1000, at + 3500, 0, 7, 1, process(pid), 4096, 1, 0, 2)
        ],
        "CUPTI_ACTIVITY_KIND_MEMSET": [(at + 4000, at + 5000, 0, 7, 2, process(pid), 64)],
        "CUPTI_ACTIVITY_KIND_KERNEL": [(at + 6000, at + 8000, 0, 7, 3, process(pid), 2, 3)],
        "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": [(at + 9000, at + 9500, 0, 13, 4, process(pid), 5)],
        "NVTX_EVENTS": [
            (at, at + 9900, 59, None, thread(pid), 4),
            (at + 10, at + 20, 60, "forward", thread(pid), None),
            (at + 30, None, 34, "an instant", thread(pid), None),
        ],
    }


GENERAL = {
    "StringIds": [(1, "cudaLaunchKernel_v7000"), (2, "void k<float>(float*)"), (3, "k"), (4, "it")],
    "META_DATA_EXPORT": [("EXPORT_SCHEMA_VERSION", "3.25.0")],
    "ENUM_CUDA_MEM_KIND": [(0, "A", "Pageable"), (2, "B", "Device")],
    "TARGET_INFO_GPU": [(0, 0, "NVIDIA A100", 8, 0), (0, 1, "NVIDIA A100", 8, 0)],
}


def database(folder, *contents, without=(), drop=()):
    """An export of these rows, but for some tables or columns."""
    path = folder / "run.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        for table, columns in TABLES.items():
            if table in without:
                continue
            connection.execute(f"CREATE TABLE {table} ({columns})")
            for rows in contents:
                for row in rows.get(table, ()):
                    marks = ", ".join("?" * len(row))
                    connection.execute(f"INSERT INTO {table} VALUES ({marks})", row)
        for table, column in drop:
            connection.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
    return path
