"""Traces of Nsight Systems, exported with `nsys export --type sqlite`.

The tables are in "SQLite Export Schema Reference" of NVIDIA's documentation. Versions differ in
tables and columns, and a table is there only if something was recorded for it: what is missing is
left out.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from bench.errors import UserError, printable
from bench.profilers.traces.spans import (
    MOST_BYTES,
    DeviceKind,
    DeviceSpan,
    HostKind,
    HostSpan,
    ProfilerTrace,
    TracedDevice,
    in_order,
)

MAGIC = b"SQLite format 3\0"
_MOST_NAME = 8192
_CUPTI = "CUPTI_ACTIVITY_KIND_"
_DEVICE: dict[str, DeviceKind] = {
    f"{_CUPTI}KERNEL": "kernel",
    f"{_CUPTI}GRAPH_TRACE": "kernel",  # graphs whose kernels were not traced one by one
    f"{_CUPTI}MEMCPY": "copy",
    f"{_CUPTI}MEMSET": "fill",
}
_HOST: dict[str, HostKind] = {
    f"{_CUPTI}RUNTIME": "call",
    f"{_CUPTI}DRIVER": "call",
    "NVTX_EVENTS": "mark",
}
_KERNEL_NAMES = ("demangledName", "shortName", "mangledName")
#: `copyKind`, which is CUPTI's CUpti_ActivityMemcpyKind.
_DIRECTIONS = {1: "HtoD", 2: "DtoH", 8: "DtoD", 9: "HtoH", 10: "PtoP"}
#: The version of the interface at the end of a call's name, such as `cudaLaunchKernel_v7000`.
_VERSION = re.compile(r"_v\d{4,5}$")
#: That of a table, such as `CUPTI_ACTIVITY_KIND_KERNEL_V3`.
_TABLE_VERSION = re.compile(r"_[Vv]\d+$")


def nsys_trace(path: Path) -> ProfilerTrace:
    """Return the trace in the database `path`.

    Raises `sqlite3.Error` for a damaged one, and `ValueError` for one with an unusable time or of
    over `MOST_BYTES`.
    """
    if path.stat().st_size > MOST_BYTES:
        raise ValueError(f"over {MOST_BYTES / 1e9:g} GB: record fewer steps")
    # Immutable: neither locks nor journals are looked for, and nothing is ever written.
    address = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
    with closing(sqlite3.connect(address, uri=True)) as connection:
        connection.text_factory = lambda text: text.decode("utf-8", "replace")
        return _Database(str(path), connection).trace()


class _Database:
    def __init__(self, path: str, connection: sqlite3.Connection) -> None:
        self._path = path
        self._connection = connection
        # Views and virtual tables have no page of their own; they could be without end.
        tables = connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0"
        )
        self._tables: dict[str, list[str]] = {}
        for (name,) in tables:
            self._tables.setdefault(_TABLE_VERSION.sub("", name), []).append(name)
        self._names = dict(self._rows("StringIds", "id", "value"))
        self._memory = dict(self._rows("ENUM_CUDA_MEM_KIND", "id", "label"))
        processes = {_process(thread) for (thread,) in self._rows(f"{_CUPTI}RUNTIME", "globalTid")}
        self._several = len(processes) > 1
        self._gpus = {
            (process, ordinal): gpu
            for process, ordinal, gpu in self._rows(
                "TARGET_INFO_CUDA_DEVICE", "pid", "cudaId", "gpuId"
            )
            if isinstance(gpu, int)
        }

    def trace(self) -> ProfilerTrace:
        if "StringTable" in self._tables:
            raise UserError(f"{self._path}: a file of nvprof: record it again by nsys or PyTorch")
        if not {*_HOST, *_DEVICE, "StringIds"} & self._tables.keys():
            tables = ", ".join(sorted(map(printable, self._tables))[:6]) or "none"
            raise UserError(f"{self._path}: no export of Nsight Systems: its tables are {tables}")
        host = [span for table, kind in _HOST.items() for span in self._host(table, kind)]
        device = [run for table, kind in _DEVICE.items() for run in self._device(table, kind)]
        in_order(host, device)
        columns = ("id", "name", "computeMajor", "computeMinor", "smCount")
        devices = {
            gpu: TracedDevice.of(*facts)
            for gpu, *facts in self._rows("TARGET_INFO_GPU", *columns)
            if isinstance(gpu, int)
        }
        return ProfilerTrace(self._path, host, device, devices=devices, tool="nsys")

    def _rows(self, table: str, *columns: str) -> Iterator[tuple[Any, ...]]:
        """The rows of a table, none if it is not there; a column that it lacks is None."""
        for version in self._tables.get(table, ()):
            there = {row[1] for row in self._connection.execute(f'PRAGMA table_info("{version}")')}
            chosen = ", ".join(f'"{name}"' if name in there else "NULL" for name in columns)
            yield from self._connection.execute(f'SELECT {chosen} FROM "{version}"')  # noqa: S608 - own names

    def _timed(self, table: str, *columns: str) -> Iterator[tuple[Any, ...]]:
        """Rows that begin with start and end in microseconds; an instant has no end."""
        for start, end, *others in self._rows(table, "start", "end", *columns):
            if end is None and table in _HOST:
                continue
            if not isinstance(start, int) or not isinstance(end, int):
                raise ValueError(f"{table}: a row has no usable {'end' if end is None else 'time'}")
            yield start / 1e3, max(start, end) / 1e3, *others

    def _host(self, table: str, kind: HostKind) -> Iterator[HostSpan]:
        columns = ("globalTid", "correlationId", "text", "textId", "nameId")
        for begin_us, end_us, thread, correlation, *names in self._timed(table, *columns):
            process = _process(thread)
            yield HostSpan(
                _VERSION.sub("", self._name(names)) if kind == "call" else self._name(names),
                kind,
                begin_us,
                end_us,
                (_pid(process), thread & 0xFFFFFF if process is not None else None),
                correlation=_number(process, correlation) if kind == "call" else None,
            )

    def _device(self, table: str, kind: DeviceKind) -> Iterator[DeviceSpan]:
        columns = ("globalPid", "deviceId", "streamId", "correlationId", "bytes", "copyKind")
        more = ("srcKind", "dstKind", "graphId", *_KERNEL_NAMES)
        for begin_us, end_us, *row in self._timed(table, *columns, *more):
            owner, ordinal, stream, correlation, size_bytes, *rest = row
            process = _process(owner)
            yield DeviceSpan(
                self._device_name(table, *rest),
                kind,
                begin_us,
                end_us,
                self._gpus.get((_pid(process), ordinal), self._own(process, ordinal)),
                self._own(process, stream),
                _number(process, correlation),
                size_bytes=size_bytes if isinstance(size_bytes, int) else None,
            )

    def _device_name(
        self, table: str, copy: Any, source: Any, target: Any, graph: Any, *names: Any
    ) -> str:
        """As Kineto spells it."""
        if table.endswith("MEMCPY"):
            places = [self._memory.get(place) for place in (source, target)]
            between = f" ({places[0]} -> {places[1]})" if all(places) else ""
            return f"Memcpy {_DIRECTIONS.get(copy, 'other')}{between}"
        if table.endswith("MEMSET"):
            return "Memset (Device)"
        return f"CUDA graph {graph}" if table.endswith("GRAPH_TRACE") else self._name(names)

    def _name(self, texts: Iterable[Any]) -> str:
        """The first that is a text, or the number of one."""
        for text in texts:
            name = text if isinstance(text, str) else self._names.get(text)
            if isinstance(name, str) and name:
                return printable(name[:_MOST_NAME])
        return ""

    def _own(self, process: int | None, number: Any) -> int | str | None:
        """A process's number of a device or a stream, which others have too."""
        plain = number if isinstance(number, int) else None
        return f"{_pid(process)}:{plain}" if self._several else plain


def _number(process: int | None, correlation: Any) -> int | None:
    """A correlation, which each process counts from 1 in 32 bits, made one of the whole trace."""
    return (process or 0) << 32 | correlation if isinstance(correlation, int) else None


def _process(serialized: Any) -> int | None:
    """Machine and process of a serialized thread or process: all but its last 24 bits."""
    return serialized >> 24 if isinstance(serialized, int) else None


def _pid(process: int | None) -> int | None:
    return None if process is None else process & 0xFFFFFF
