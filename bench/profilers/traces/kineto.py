"""Traces of PyTorch's profiler (Kineto) since torch 1.8: Chrome's format.

The format is `{"traceEvents": [{"ph": "X", "cat": ..., "ts": ..., "dur": ..., "args": {...}}]}`, or
the list alone. Categories of 2021 are `Operator`, `Kernel`, `Runtime`; since then they are those of
libkineto's `ActivityType.h`: `cpu_op`, `kernel`, `cuda_runtime`. Files hold NaN and raw control
characters, which JSON forbids: they are cleaned where the strict parser refuses them.
"""

from __future__ import annotations

import codecs
import gzip
import math
import re
import zlib
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from functools import cache
from io import BufferedReader
from itertools import takewhile
from pathlib import Path
from typing import IO, Any

import msgspec

from bench.errors import UserError, printable
from bench.profilers.ncu.metrics import DURATION, WANTED, chip_of_capability
from bench.profilers.ncu.read import counters_of
from bench.profilers.ncu.tables import ProfileTotals
from bench.profilers.traces.spans import (
    MOST_BYTES,
    UNNAMED,
    DeviceKind,
    DeviceSpan,
    HostKind,
    HostSpan,
    ProfilerTrace,
    TracedDevice,
    in_order,
    without_ambiguous_ids,
)
from bench.records import GpuCounters
from bench.records.kernel_names import kernel_name

# The text of a file

#: Counted by their opening braces: an empty one takes 2 bytes here and over 100 in memory. A real
#: trace has one in 100 to 260 bytes.
MOST_OBJECTS = 20_000_000
_CHUNK_BYTES = 1 << 24
_GZIP = b"\x1f\x8b"
#: Every control character becomes a space, which JSON allows between its tokens too.
_CONTROL = bytes(0x20 if byte < 0x20 else byte for byte in range(256))
_NO_NUMBER = re.compile(rb"(?<=[:,\[\s])[-+]?(?:NaN|nan|Infinity|inf)(?=\s*[,}\]])")


def unpacked(file: BufferedReader) -> bytearray:
    """Return what `file` holds, unpacked if it is gzip's, without a mark in front.

    Raises `ValueError` with a reason for one that is empty, begins as no JSON does, holds over
    `MOST_BYTES` or `MOST_OBJECTS`, or is cut or damaged as gzip sees it.
    """
    is_gzip = file.peek(2)[:2] == _GZIP
    stream: IO[bytes] = gzip.GzipFile(fileobj=file) if is_gzip else file  # type: ignore[assignment]
    try:
        contents = bytearray(stream.read(_CHUNK_BYTES)).removeprefix(codecs.BOM_UTF8)
        if contents.lstrip()[:1] not in b"{[":
            raise ValueError("it begins as no JSON does")
        while len(contents) <= MOST_BYTES and (chunk := stream.read(_CHUNK_BYTES)):
            contents += chunk
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"gzip: {error}") from None
    if len(contents) > MOST_BYTES:
        raise ValueError(f"over {MOST_BYTES / 1e9:g} GB unpacked: record fewer steps")
    if not contents or contents.isspace():
        raise ValueError("it is empty")
    if contents.count(b"{") > MOST_OBJECTS:
        raise ValueError(f"over {MOST_OBJECTS / 1e6:g} million objects: record fewer steps")
    return contents


#: What ids and times are, or it is no event.
Scalar = int | float | str | None
_NOTHING = msgspec.Raw()


class _Event(msgspec.Struct, gc=False):
    """One event of any kind; `args` are parsed when it is of use."""

    ph: str = ""
    cat: str | None = None
    name: str | None = None
    pid: Scalar = None
    tid: Scalar = None
    ts: Scalar = None
    dur: Scalar = None
    args: msgspec.Raw = msgspec.Raw(b"null")


class _Args(msgspec.Struct, gc=False):
    """Arguments of an op, a mark, a call, a kernel or a copy; lists stay text until asked for."""

    external: Scalar = msgspec.field(default=None, name="External id")
    old_external: Scalar = msgspec.field(default=None, name="external id")
    correlation: Scalar = None
    sequence: Scalar = msgspec.field(default=None, name="Sequence number")
    dims: msgspec.Raw = msgspec.field(default=_NOTHING, name="Input Dims")
    old_dims: msgspec.Raw = msgspec.field(default=_NOTHING, name="Input dims")
    types: msgspec.Raw = msgspec.field(default=_NOTHING, name="Input type")
    concrete: msgspec.Raw = msgspec.field(default=_NOTHING, name="Concrete Inputs")
    strides: msgspec.Raw = msgspec.field(default=_NOTHING, name="Input Strides")
    device: Scalar = None
    stream: Scalar = None
    queue: Scalar = msgspec.field(default=None, name="sycl queue")
    size_bytes: Scalar = msgspec.field(default=None, name="bytes")


class _TraceFile(msgspec.Struct):
    events: list[_Event] = msgspec.field(name="traceEvents")
    devices: msgspec.Raw = msgspec.field(default=_NOTHING, name="deviceProperties")
    distributed: msgspec.Raw = msgspec.field(default=_NOTHING, name="distributedInfo")


_FILE = msgspec.json.Decoder(_TraceFile)
_EVENTS = msgspec.json.Decoder(list[_Event])
_ARGS = msgspec.json.Decoder(_Args | None)


def _parsed(contents: bytearray) -> _TraceFile:
    """The events; those that JSON forbids in small ways are read too."""
    try:
        return _decoded(contents)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, UnicodeDecodeError):
        clean = _NO_NUMBER.sub(b"null", contents.translate(_CONTROL))
        return _decoded(clean.decode("utf-8", "replace").encode())


def _decoded(contents: bytes | bytearray) -> _TraceFile:
    if contents[:4096].lstrip()[:1] != b"[":
        return _FILE.decode(contents)
    # Chrome's format lets a writer leave out the bracket at the end of a list.
    text = contents.rstrip()
    return _TraceFile(_EVENTS.decode(text if text[-1:] == b"]" else text.removesuffix(b",") + b"]"))


def _value_in(written: bytes | msgspec.Raw) -> Any:
    """The value of a piece of JSON; None where there is none."""
    # The parser that found the end of the value did not look into its characters.
    text = bytes(written).decode("utf-8", "replace")
    return msgspec.json.decode(text) if text else None


# Events and spans

_DEVICE: dict[str, DeviceKind] = {
    "kernel": "kernel",
    "mtia_ccp_events": "kernel",
    "gpu_memcpy": "copy",
    "memcpy": "copy",
    "gpu_memset": "fill",
    "memset": "fill",
}
#: HIP's calls are `cuda_runtime` too.
_CALLS = (
    *("cuda_runtime", "cuda_driver", "xpu_runtime", "xpu_driver", "mtia_runtime", "hpu_op"),
    *("privateuse1_runtime", "privateuse1_driver", "glow_runtime", "runtime", "driver"),
)
_HOST: dict[str, HostKind] = {
    "cpu_op": "op",
    "operator": "op",
    "user_annotation": "mark",
    **dict.fromkeys(_CALLS, "call"),
}
_RANGES = "cuda_profiler_range"
_END = "Record Window End"
#: What Kineto writes, also what is not used here.
_OWN = frozenset(
    {*_HOST, *_DEVICE, _RANGES, "python_function", "trace", "overhead", "gpu_user_annotation"}
    | {"cuda_sync", "cuda_event", "collective_comm", "mtia_insight", "mtia_workload", "async"}
)
_FAR_US = 1e9
#: A day. What still ran as the recording ended may have INT64_MIN for its end.
_ENDLESS_US = 8.64e10
#: In 2021 marks were Operators too. Operators are of a library (`aten::add`) or torch's own
#: `detach`; autograd's nodes are named after them.
_OPERATOR = re.compile(r"^[A-Za-z_]\w*::|Backward\d*$|AccumulateGrad$|^detach_?$")
#: Of a tensor: torch counts them in signed 64 bits.
_MOST_ELEMENTS = 2**63 - 1


def kineto_trace(path: str, contents: bytearray) -> ProfilerTrace:
    """Return the trace that `contents` are.

    Raises `ValueError`, `msgspec.DecodeError` or `RecursionError` for what is no such trace.
    """
    file = _parsed(contents)
    listed, distributed = _value_in(file.devices), _value_in(file.distributed)
    facts = ("name", "computeMajor", "computeMinor", "numSms")
    devices = {
        device["id"]: TracedDevice.of(*map(device.get, facts))
        for device in (listed if isinstance(listed, list) else ())
        if isinstance(device, dict) and isinstance(device.get("id"), int)
    }
    job = distributed if isinstance(distributed, dict) else {}
    ranks = (_whole(job.get(name)) for name in ("rank", "world_size"))
    rank, size = (None if rank is None or rank < 0 else rank for rank in ranks)
    spans = _Spans(path)
    host, device = spans.of(file.events)
    counters = spans.counters if spans.counters.launches else None
    for number in spans.counted_on:
        if number in devices and (capability := devices[number].capability):
            chip = chip_of_capability(capability)
            spans.counters.chips.add(chip or "sm_{}{}".format(*capability))
    return ProfilerTrace(
        *(path, host, device, counters, devices, rank, size),
        left_out=spans.left_out,
        end_us=spans.end_us,
    )


class _Spans:
    """Turns events into spans. What many have in common is kept once: names, threads, lists."""

    def __init__(self, path: str) -> None:
        #: Those of CUPTI's range profiler, and the devices on which they were read.
        self.counters = ProfileTotals("CUPTI's range profiler in a trace", (Path(path).name,))
        self.counted_on: set[Any] = set()
        self._name = cache(printable)
        self._thread = cache(lambda process, thread: (_plain(process), _plain(thread)))
        self._list = cache(_list_in)
        self._shapes = cache(lambda written: _checked(_list_in(written)))
        self._others: Counter[str] = Counter()
        self._processes: dict[Scalar, str] = {}
        self.end_us = math.inf  # of the recording, where the file says it

    @property
    def left_out(self) -> str | None:
        """Events that are none of Kineto's, by category or else process; None without any."""
        named = (f"{what} ({number})" for what, number in self._others.most_common(6))
        return f"events that are left out: {', '.join(named)}" if self._others else None

    def of(self, events: list[_Event]) -> tuple[list[HostSpan], list[DeviceSpan]]:
        """Return the spans of `events`; that list is emptied: a long trace has millions."""
        host: list[HostSpan] = []
        device: list[DeviceSpan] = []
        events.reverse()
        for number in range(len(events)):
            event = events.pop()
            category = (event.cat or "").lower()
            if self._leaves_out(event, category):
                continue
            try:
                if category in _HOST:
                    host.append(self._host_span(event, category))
                elif category in _DEVICE:
                    device.append(self._device_span(event, _DEVICE[category]))
                elif category == _RANGES:
                    self._count(event)
            except (msgspec.DecodeError, ValueError) as error:
                raise ValueError(f"event {number}: {error}") from None
        in_order(host, device)
        _check_times(host, device)
        if len({span.thread[0] for span in host}) > 1:
            without_ambiguous_ids(host, device)
        return host, device

    def _leaves_out(self, event: _Event, category: str) -> bool:
        """Whether `event` is no interval of Kineto's with both its ends; note which are others."""
        if event.ph == "M" and event.name == "process_name":
            facts = _value_in(event.args)
            name = facts.get("name") if isinstance(facts, dict) else None
            self._processes[event.pid] = str(event.pid if name is None else name)
        if event.name == _END and (end_us := _number(event.ts)) is not None:
            # A trace merged of several ranks has an end of each.
            self.end_us = end_us if self.end_us == math.inf else max(self.end_us, end_us)
        if event.ph not in ("X", "B"):
            return True
        if category not in _OWN:
            process = self._processes.get(event.pid, str(event.pid))
            of = f"of category {event.cat}" if event.cat else f"{UNNAMED} of {process}"
            self._others[printable(of[:80])] += 1
            return True
        if event.ph == "X" and (_number(event.dur) or 0.0) <= _ENDLESS_US:
            return False
        self._others["without an end"] += 1
        return True

    def _host_span(self, event: _Event, category: str) -> HostSpan:
        args = _ARGS.decode(event.args) or _Args()
        begin_us, end_us = _interval(event)
        name = self._name(event.name or "")
        kind = _HOST[category]
        if category == "operator" and not _OPERATOR.search(name):
            kind = "mark"
        return HostSpan(
            name,
            kind,
            begin_us,
            end_us,
            self._thread(event.pid, event.tid),
            _whole(args.external, args.old_external),
            _whole(args.correlation),
            _whole(args.sequence),
            self._shapes(bytes(args.dims) or bytes(args.old_dims)),
            self._list(bytes(args.types)),
            self._list(bytes(args.concrete)),
            self._list(bytes(args.strides)),
        )

    def _device_span(self, event: _Event, kind: DeviceKind) -> DeviceSpan:
        args = _ARGS.decode(event.args) or _Args()
        begin_us, end_us = _interval(event)
        row = _plain(event.pid)
        streams = (lane for lane in (args.stream, args.queue, event.tid) if lane is not None)
        return DeviceSpan(
            self._name(event.name or ""),
            kind,
            begin_us,
            end_us,
            # Kineto's row is the device; who merges the traces of several ranks gives each its own.
            _plain(args.device) if row is None else row,
            _plain(next(streams, None)),
            _whole(args.correlation),
            _whole(args.external, args.old_external),
            _whole(args.size_bytes),
        )

    def _count(self, event: _Event) -> None:
        """Add up a range around one kernel."""
        is_lost = event.name in (None, "", "__missing__")
        kernel = NAMELESS if is_lost else printable(kernel_name(str(event.name)))
        self.counters.launches[kernel] += 1
        self.counted_on.add(_plain(event.pid))
        args = _value_in(event.args)
        for name, value in args.items() if isinstance(args, dict) else ():
            if name not in WANTED:
                continue
            self.counters.names.add(name)
            number = value if type(value) is int else _number(value)
            if number is not None and 0 <= number < 2**64:
                # CUPTI counts time in nanoseconds.
                power = -9 if name == DURATION else 0
                self.counters.add(kernel, name, 1, Decimal(str(number)).scaleb(power))


def _interval(event: _Event) -> tuple[float, float]:
    """Begin and end. Kineto writes 0 for a negative duration; a trace that holds one is damaged."""
    begin_us, duration_us = _number(event.ts), _number(event.dur)
    if begin_us is None or duration_us is None or duration_us < 0:
        which = "ts" if begin_us is None else "dur"
        negative = "" if duration_us is None or begin_us is None else f": {duration_us:g} us"
        raise ValueError(f"{(event.name or '')[:60]!r} has no usable {which}{negative}")
    return begin_us, begin_us + duration_us


def _check_times(*ordered: Sequence[HostSpan | DeviceSpan]) -> None:
    """Raise `ValueError` where events lack their times: torch 2.12 may write 0 for both.

    See https://github.com/pytorch/pytorch/issues/188481. Kineto's clock is years or decades from 0.
    """
    if max((spans[-1].begin_us for spans in ordered if spans), default=0) < _FAR_US:
        return
    lost = [sum(1 for _ in takewhile(lambda span: span.end_us == 0, spans)) for spans in ordered]
    if any(lost):
        total = sum(map(len, ordered))
        raise ValueError(f"{sum(lost)} of {total} events have 0 for their times: record it again")


def _number(value: Any) -> float | None:
    """A finite number, also where it is written as a string; else None."""
    if type(value) is float:
        return value
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _whole(value: Scalar, other: Scalar = None) -> int | None:
    """A whole number that `value` or else `other` is, also as a string; else None."""
    if type(value) is int:
        return value
    if isinstance(value, str) and value.isdecimal() and len(value) < 20:
        return int(value)
    return None if other is None else _whole(other)


def _plain(value: Scalar) -> int | str | None:
    """A number or a word. A thread is `123` in some events of a file and `"123"` in others."""
    number = _whole(value)
    return number if number is not None or value is None else str(value)[:200]


def _list_in(written: bytes) -> tuple[Any, ...] | None:
    """The list of a piece of JSON as tuples; None where it is no list."""
    return _frozen(_value_in(written)) if written[:1] == b"[" else None


def _frozen(value: Any) -> Any:
    """Lists as tuples; an object, which no profiler writes there, is nothing."""
    if isinstance(value, list):
        return tuple(map(_frozen, value))
    return None if isinstance(value, dict) else value


def _checked(value: Any) -> Any:
    """Return `value`; raise `ValueError` for a shape, anywhere in it, that no tensor can have."""
    parts = value if isinstance(value, tuple) else ()
    lengths = [part for part in parts if isinstance(part, (int, float))]
    if any(length < 0 for length in lengths) or math.prod(lengths) > _MOST_ELEMENTS:
        shape = "x".join(str(length)[:20] for length in lengths[:8])
        raise ValueError(f"a tensor of shape {shape}")
    for part in parts:
        _checked(part)
    return value


# Counters within a trace

NAMELESS = "(no name in the trace)"
#: Kineto's range over all kernels.
_WHOLE_RANGE = "__profile__"


def read_counters(trace: ProfilerTrace) -> GpuCounters:
    """Add up the counters in `trace`; what they do not give is None with its reason.

    Raises `UserError` for a trace without counters, or with sums over many kernels.
    """
    if trace.counters is None:
        raise UserError(
            f"{trace.path}: holds no counters; count with ncu and read its file, or with a torch "
            "built with CUPTI's range profiler"
        )
    if _WHOLE_RANGE in trace.counters.launches:
        raise UserError(
            f"{trace.path}: its counters are of one range over many kernels: record it with "
            "profiler_measure_per_kernel=True"
        )
    return counters_of(trace.counters)
