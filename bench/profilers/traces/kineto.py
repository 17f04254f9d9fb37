"""Reads traces of PyTorch's profiler (Kineto): Chrome's format, gzip or not, since torch 1.8.

The format is `{"traceEvents": [{"ph": "X", "cat": ..., "ts": ..., "dur": ..., "args": {...}}]}`.
Categories of 2021 are `Operator`, `Kernel`, `Runtime`; since then `cpu_op`, `kernel`,
`cuda_runtime`. Files hold NaN and raw control characters, which JSON forbids: they are cleaned
where the strict parser refuses them.
"""

from __future__ import annotations

import gzip
import math
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from bench.errors import UserError
from bench.profilers.traces.trace import (
    CounterRange,
    DeviceKind,
    DeviceSpan,
    HostKind,
    HostSpan,
    Trace,
)

#: Unpacked; a file that unpacks to more is not read, whatever its own size.
MOST_BYTES = 4_000_000_000
_CHUNK_BYTES = 1 << 24
_GZIP = b"\x1f\x8b"

_DEVICE: dict[str, DeviceKind] = {
    "kernel": "kernel",
    "gpu_memcpy": "copy",
    "memcpy": "copy",
    "gpu_memset": "fill",
    "memset": "fill",
}
_CALLS = ("cuda_runtime", "cuda_driver", "runtime", "driver", "hip_runtime", "mtia_ccp_events")
_HOST = {
    "cpu_op": "op",
    "operator": "op",
    "user_annotation": "mark",
    **dict.fromkeys(_CALLS, "call"),
}
_RANGES = "cuda_profiler_range"
#: Operators are of a library (`aten::add`); autograd's nodes are named after them.
_OPERATOR = re.compile(r"^[A-Za-z_]\w*::|Backward\d*$|^autograd::|AccumulateGrad$")


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str | None = None
    name: str | None = None
    pid: Any = None
    tid: Any = None
    ts: int | float | str | None = None
    dur: int | float | str | None = None
    args: msgspec.Raw = msgspec.field(default=msgspec.Raw(b"null"))


class _HostArgs(msgspec.Struct, gc=False):
    external: Any = msgspec.field(default=None, name="External id")
    old_external: Any = msgspec.field(default=None, name="external id")
    correlation: Any = None
    sequence: Any = msgspec.field(default=None, name="Sequence number")
    forward_thread: Any = msgspec.field(default=None, name="Fwd thread id")
    dims: tuple[Any, ...] | None = msgspec.field(default=None, name="Input Dims")
    old_dims: tuple[Any, ...] | None = msgspec.field(default=None, name="Input dims")
    types: tuple[Any, ...] | None = msgspec.field(default=None, name="Input type")
    concrete: tuple[Any, ...] | None = msgspec.field(default=None, name="Concrete Inputs")
    strides: tuple[Any, ...] | None = msgspec.field(default=None, name="Input Strides")


class _DeviceArgs(msgspec.Struct, gc=False):
    external: Any = msgspec.field(default=None, name="External id")
    old_external: Any = msgspec.field(default=None, name="external id")
    correlation: Any = None
    device: Any = None
    stream: Any = None
    size_bytes: Any = msgspec.field(default=None, name="bytes")


class _File(msgspec.Struct):
    events: list[_Event] = msgspec.field(name="traceEvents")
    devices: Any = msgspec.field(default=(), name="deviceProperties")
    distributed: Any = msgspec.field(default=None, name="distributedInfo")
    with_shapes: Any = msgspec.field(default=None, name="record_shapes")
    schema: Any = msgspec.field(default=None, name="schemaVersion")
    cuda: Any = msgspec.field(default=None, name="cuda_runtime_version")
    hip: Any = msgspec.field(default=None, name="hip_runtime_version")


_FILE = msgspec.json.Decoder(_File)
_EVENTS = msgspec.json.Decoder(list[_Event])
_HOST_ARGS = msgspec.json.Decoder(_HostArgs | None)
_DEVICE_ARGS = msgspec.json.Decoder(_DeviceArgs | None)
_ANY_ARGS = msgspec.json.Decoder(dict[str, Any] | None)

T = TypeVar("T")


def read_trace(path: Path) -> Trace:
    """Return the trace in the file `path`.

    Raises `UserError`, one line with the path, for a file that cannot be read, is cut or damaged,
    holds no interval, or unpacks to more than `MOST_BYTES`.
    """
    try:
        file = _parsed(_unpacked(path))
        trace = _trace(str(path), file)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"{path}: no trace of PyTorch's profiler, or a damaged one: {reason}"
        ) from None
    if not trace.host and not trace.device and not trace.counters:
        raise UserError(f"{path}: holds no op, kernel or runtime call: record it while a step runs")
    return trace


def _unpacked(path: Path) -> bytes | bytearray:
    with path.open("rb") as file:
        packed = file.read(2) == _GZIP
    with gzip.open(path) if packed else path.open("rb") as stream:
        contents = bytearray()
        try:
            while chunk := stream.read(_CHUNK_BYTES):
                contents += chunk
                if len(contents) > MOST_BYTES:
                    raise ValueError(f"over {MOST_BYTES / 1e9:g} GB unpacked: record fewer steps")
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(f"gzip: {error}") from None
    return contents


def _parsed(contents: bytes | bytearray) -> _File:
    try:
        return _decoded(contents)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        cleaned = _cleaned(contents)
        if cleaned == contents:
            raise ValueError(str(error)) from None
        return _decoded(cleaned)


def _decoded(contents: bytes | bytearray) -> _File:
    if contents[:64].lstrip()[:1] == b"[":
        return _File(_EVENTS.decode(contents))
    return _FILE.decode(contents)


#: Every control character becomes a space, which JSON allows between its tokens too.
_CONTROL = bytes(0x20 if byte < 0x20 else byte for byte in range(256))
_NO_NUMBER = re.compile(rb"(?<=[:,\[\s])-?(?:NaN|nan|Infinity|inf)(?=\s*[,}\]])")


def _cleaned(contents: bytes | bytearray) -> bytes:
    text = _NO_NUMBER.sub(b"null", contents.translate(_CONTROL))
    return text.decode("utf-8", errors="replace").encode()


def _trace(path: str, file: _File) -> Trace:
    host: list[HostSpan] = []
    device: list[DeviceSpan] = []
    counters: list[CounterRange] = []
    for number, event in enumerate(file.events):
        if event.ph != "X" or event.cat is None:
            continue
        category = event.cat.lower()
        try:
            if category in _HOST:
                host.append(_host_span(event, category))
            elif category in _DEVICE:
                device.append(_device_span(event, _DEVICE[category]))
            elif category == _RANGES:
                counters.append(_counter_range(event))
        except (msgspec.DecodeError, ValueError) as error:
            raise ValueError(f"event {number}: {error}") from None
    host.sort(key=lambda span: (span.begin_us, -span.end_us, span.external_id or 0))
    device.sort(key=lambda span: span.begin_us)
    return Trace(path, host, device, counters, dict(_device_names(file.devices)), _facts(file))


def _host_span(event: _Event, category: str) -> HostSpan:
    args = _HOST_ARGS.decode(event.args) or _HostArgs()
    begin_us, end_us = _interval(event)
    name = event.name or ""
    return HostSpan(
        name=name,
        kind=_host_kind(category, name),
        begin_us=begin_us,
        end_us=end_us,
        thread=(_plain(event.pid), _plain(event.tid)),
        external_id=_whole(args.external, args.old_external),
        correlation=_whole(args.correlation),
        sequence=_whole(args.sequence),
        forward_thread=_whole(args.forward_thread),
        dims=args.dims if args.dims is not None else args.old_dims,
        types=args.types,
        concrete=args.concrete,
        strides=args.strides,
    )


def _host_kind(category: str, name: str) -> HostKind:
    kind: HostKind = _HOST[category]  # type: ignore[assignment]
    return "mark" if category == "operator" and not _OPERATOR.search(name) else kind


def _device_span(event: _Event, kind: DeviceKind) -> DeviceSpan:
    args = _DEVICE_ARGS.decode(event.args) or _DeviceArgs()
    begin_us, end_us = _interval(event)
    return DeviceSpan(
        name=event.name or "",
        kind=kind,
        begin_us=begin_us,
        end_us=end_us,
        device=_plain(event.pid if args.device is None else args.device),
        stream=_plain(event.tid if args.stream is None else args.stream),
        correlation=_whole(args.correlation),
        external_id=_whole(args.external, args.old_external),
        size_bytes=_whole(args.size_bytes),
    )


def _counter_range(event: _Event) -> CounterRange:
    args = _ANY_ARGS.decode(event.args) or {}
    values: dict[str, float] = {}
    missing: dict[str, str] = {}
    for name, value in args.items():
        if "__" not in name:
            continue  # device, graph id and the like
        number = _number(value)
        if number is None:
            missing[name] = f"no number: {str(value)[:40]!r}"
        else:
            values[name] = number
    lost = event.name in (None, "", "__missing__")
    return CounterRange(None if lost else event.name, values, missing)


def _interval(event: _Event) -> tuple[float, float]:
    begin_us, duration_us = _number(event.ts), _number(event.dur)
    if begin_us is None or duration_us is None or duration_us < 0:
        which = "ts" if begin_us is None else "dur"
        raise ValueError(f"{(event.name or '')[:60]!r} has no usable {which}")
    return begin_us, begin_us + duration_us


def _number(value: Any) -> float | None:
    """A finite number, also where it is written as a string."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _whole(*values: Any) -> int | None:
    for value in values:
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        if isinstance(value, str) and value.isdecimal() and len(value) < 20:
            return int(value)
    return None


def _plain(value: Any) -> int | str | None:
    """A number or a word; a thread is `123` in some events of a file and `"123"` in others."""
    number = _whole(value)
    if number is not None:
        return number
    return value if value is None else str(value)[:200]


def _device_names(properties: Any) -> Iterator[tuple[int, str]]:
    for one in properties if isinstance(properties, list) else ():
        if isinstance(one, dict) and isinstance(one.get("id"), int) and one.get("name"):
            yield one["id"], str(one["name"])[:200]


def _facts(file: _File) -> dict[str, Any]:
    distributed = file.distributed if isinstance(file.distributed, dict) else {}
    asked: Iterable[tuple[str, Any]] = (
        ("schema_version", file.schema),
        ("record_shapes", file.with_shapes),
        ("cuda_runtime_version", file.cuda),
        ("hip_runtime_version", file.hip),
        *((name, distributed.get(name)) for name in ("rank", "world_size", "backend")),
    )
    return {name: value for name, value in asked if isinstance(value, (int, str))}
