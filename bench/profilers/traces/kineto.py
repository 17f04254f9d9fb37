"""Traces of PyTorch's profiler (Kineto) since torch 1.8: Chrome's format.

The format is `{"traceEvents": [{"ph": "X", "cat": ..., "ts": ..., "dur": ..., "args": {...}}]}`, or
the list alone. Categories of 2021 are `Operator`, `Kernel`, `Runtime`; since then they are those of
libkineto's `ActivityType.h`: `cpu_op`, `kernel`, `cuda_runtime`. Files hold NaN and raw control
characters, which JSON forbids: they are cleaned where the strict parser refuses them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from itertools import takewhile
from pathlib import Path
from typing import Any

import msgspec

from bench.errors import UserError, printable
from bench.profilers.ncu.figures import ProfileTotals, counters_of
from bench.profilers.ncu.metrics import DURATION, WANTED, chip_of_capability
from bench.profilers.traces.contents import (
    DEVICE_ARGS,
    HOST_ARGS,
    NOTHING,
    DeviceArgs,
    Event,
    File,
    HostArgs,
    Scalar,
    parsed,
)
from bench.profilers.traces.trace import (
    CounterRange,
    DeviceKind,
    DeviceSpan,
    HostKind,
    HostSpan,
    Trace,
    in_order,
    without_ambiguous_ids,
)
from bench.records import Counters
from bench.records.kernel_names import kernel_name

#: Bytes of the different lists of arguments together.
MOST_LIST_BYTES = 250_000_000

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
_FAR_US = 1e9
#: In 2021 marks were Operators too. Operators are of a library (`aten::add`) or torch's own
#: `detach`; autograd's nodes are named after them.
_OPERATOR = re.compile(r"^[A-Za-z_]\w*::|Backward\d*$|AccumulateGrad$|^detach_?$")

_NO_HOST_ARGS, _NO_DEVICE_ARGS = HostArgs(), DeviceArgs()


def kineto_trace(path: str, contents: bytearray) -> Trace:
    """Return the trace that `contents` are.

    Raises `ValueError`, `msgspec.DecodeError` or `RecursionError` for what is no such trace.
    """
    file = parsed(contents)
    facts, devices = _facts(file), dict(_devices(value_in(file.devices)))
    host, device, counters = _spans(file.events)
    return Trace(
        path,
        host,
        device,
        counters,
        {number: str(one["name"])[:200] for number, one in devices.items() if one.get("name")},
        facts,
        {number: found for number, one in devices.items() if (found := _capability(one))},
        {number: one["numSms"] for number, one in devices.items() if _is_count(one, "numSms")},
    )


def _spans(
    events: list[Event],
) -> tuple[list[HostSpan], list[DeviceSpan], list[CounterRange]]:
    """Turn events into spans, and empty the list on the way: a long trace has millions."""
    host: list[HostSpan] = []
    device: list[DeviceSpan] = []
    counters: list[CounterRange] = []
    shared = _Shared()
    events.reverse()
    for number in range(len(events)):
        event = events.pop()
        if event.ph != "X" or event.cat is None:
            continue
        category = event.cat.lower()
        try:
            if category in _HOST:
                host.append(_host_span(event, category, shared))
            elif category in _DEVICE:
                device.append(_device_span(event, _DEVICE[category], shared))
            elif category == _RANGES:
                counters.append(_counter_range(event))
        except (msgspec.DecodeError, ValueError) as error:
            raise ValueError(f"event {number}: {error}") from None
    in_order(host, device)
    _check_times(host, device)
    if len({thread[0] for thread in shared.threads.values()}) > 1:
        without_ambiguous_ids(host, device)
    return host, device, counters


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


class _Shared:
    """What many spans have in common, kept once: names, threads, lists of arguments."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self.threads: dict[tuple[Scalar, Scalar], tuple[Any, Any]] = {}
        self._lists: dict[bytes, tuple[Any, ...] | None] = {}
        self._list_bytes = 0

    def name(self, name: str | None) -> str:
        if not name:
            return ""
        found = self._names.get(name)
        if found is None:
            found = self._names[name] = printable(name)
        return found

    def thread(self, event: Event) -> tuple[Any, Any]:
        key = event.pid, event.tid
        thread = self.threads.get(key)
        if thread is None:
            thread = self.threads[key] = plain(event.pid), plain(event.tid)
        return thread

    def arguments(
        self, written: msgspec.Raw, check: Callable[[Any], None] | None = None
    ) -> tuple[Any, ...] | None:
        """Return a list as tuples; None where there is none, or something else.

        Raises `ValueError` where `check` does.
        """
        if written is NOTHING:
            return None
        text = bytes(written)
        try:
            return self._lists[text]
        except KeyError:
            self._list_bytes += len(text)
            if self._list_bytes > MOST_LIST_BYTES:
                limit = f"{MOST_LIST_BYTES / 1e6:g} MB"
                raise ValueError(f"over {limit} of different shapes: record fewer steps") from None
        found = list_in(text)
        if check is not None:
            check(found)
        self._lists[text] = found
        return found


def _host_span(event: Event, category: str, shared: _Shared) -> HostSpan:
    args = HOST_ARGS.decode(event.args) or _NO_HOST_ARGS
    begin_us, end_us = _interval(event)
    name = shared.name(event.name)
    dims = shared.arguments(args.old_dims if args.dims is NOTHING else args.dims, check_shapes)
    kind = _HOST[category]
    if category == "operator" and not _OPERATOR.search(name):
        kind = "mark"
    return HostSpan(
        name,
        kind,
        begin_us,
        end_us,
        shared.thread(event),
        whole_in(args.external, args.old_external),
        whole_in(args.correlation),
        whole_in(args.sequence),
        whole_in(args.forward_thread),
        dims,
        shared.arguments(args.types),
        shared.arguments(args.concrete),
        shared.arguments(args.strides),
    )


def _device_span(event: Event, kind: DeviceKind, shared: _Shared) -> DeviceSpan:
    args = DEVICE_ARGS.decode(event.args) or _NO_DEVICE_ARGS
    begin_us, end_us = _interval(event)
    row, number = plain(event.pid), plain(args.device)
    return DeviceSpan(
        shared.name(event.name),
        kind,
        begin_us,
        end_us,
        # Kineto's row is the device; who merges the traces of several ranks gives each its own.
        number if row is None else row,
        plain(event.tid if args.stream is None else args.stream),
        whole_in(args.correlation),
        whole_in(args.external, args.old_external),
        whole_in(args.size_bytes),
    )


def _counter_range(event: Event) -> CounterRange:
    args = value_in(event.args)
    values: dict[str, float] = {}
    missing: dict[str, str] = {}
    for name, value in args.items() if isinstance(args, dict) else ():
        if "__" not in name or not name.isprintable():
            continue  # correlation, graph id and the like
        number = value if type(value) is int else number_in(value)
        if number is None or not 0 <= number < 2**64:
            missing[name] = f"no count: {str(value)[:40]!r}"
        else:
            values[name] = number
    lost = event.name in (None, "", "__missing__")
    return CounterRange(None if lost else event.name, values, missing, plain(event.pid))


def _interval(event: Event) -> tuple[float, float]:
    """Begin and end. Kineto writes 0 for a negative duration; a trace that holds one is damaged."""
    begin_us, duration_us = number_in(event.ts), number_in(event.dur)
    if begin_us is None or duration_us is None or duration_us < 0:
        which = "ts" if begin_us is None else "dur"
        negative = "" if duration_us is None or begin_us is None else f": {duration_us:g} us"
        raise ValueError(f"{(event.name or '')[:60]!r} has no usable {which}{negative}")
    return begin_us, begin_us + duration_us


def _devices(properties: Any) -> Iterator[tuple[int, dict[str, Any]]]:
    for one in properties if isinstance(properties, list) else ():
        if isinstance(one, dict) and isinstance(one.get("id"), int):
            yield one["id"], one


def _is_count(device: dict[str, Any], name: str) -> bool:
    return isinstance(device.get(name), int) and device[name] > 0


def _capability(device: dict[str, Any]) -> tuple[int, int] | None:
    major, minor = device.get("computeMajor"), device.get("computeMinor")
    return (major, minor) if isinstance(major, int) and isinstance(minor, int) else None


def _facts(file: File) -> dict[str, Any]:
    distributed = value_in(file.distributed)
    if not isinstance(distributed, dict):
        distributed = {}
    asked: Iterable[tuple[str, Any]] = (
        ("schema_version", file.schema),
        ("record_shapes", file.with_shapes),
        ("cuda_runtime_version", file.cuda),
        ("hip_runtime_version", file.hip),
        *((name, whole_in(distributed.get(name))) for name in ("rank", "world_size")),
    )
    known = {name: value for name, value in asked if isinstance(value, (int, str))}
    return {name: value for name, value in known.items() if isinstance(value, str) or value >= 0}


#: Bytes of one list or one fact.
MOST_VALUE_BYTES = 1_000_000
#: Of a tensor: torch counts them in signed 64 bits.
_MOST_ELEMENTS = 2**63 - 1

_LIST = msgspec.json.Decoder(list[Any])
_ANY = msgspec.json.Decoder()


def number_in(value: Any) -> float | None:
    """Return a finite number, also where it is written as a string; else None."""
    if type(value) is float:
        return value
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def whole_in(value: Scalar, other: Scalar = None) -> int | None:
    """Return a whole number that `value` or else `other` is, also as a string; else None."""
    if type(value) is int:
        return value
    if isinstance(value, str) and value.isdecimal() and len(value) < 20:
        return int(value)
    return None if other is None else whole_in(other)


def plain(value: Scalar) -> int | str | None:
    """Return a number or a word.

    A thread is `123` in some events of a file and `"123"` in others.
    """
    number = whole_in(value)
    if number is not None:
        return number
    return value if value is None else str(value)[:200]


def value_in(written: msgspec.Raw) -> Any:
    """Return the value of a piece of JSON; None where there is none, or too much."""
    text = bytes(written)
    return _ANY.decode(_text(text)) if 0 < len(text) <= MOST_VALUE_BYTES else None


def list_in(written: bytes) -> tuple[Any, ...] | None:
    """Return the list of a piece of JSON as tuples; None where it is no list, or too long."""
    if written[:1] != b"[" or len(written) > MOST_VALUE_BYTES:
        return None
    return tuple(map(_frozen, _LIST.decode(_text(written))))


def check_shapes(value: Any) -> None:
    """Raise `ValueError` for a shape, anywhere in `value`, that no tensor can have."""
    if not isinstance(value, tuple):
        return
    lengths = [one for one in value if isinstance(one, (int, float))]
    if any(one < 0 for one in lengths) or math.prod(lengths) > _MOST_ELEMENTS:
        shape = "x".join(str(one)[:20] for one in lengths[:8])
        raise ValueError(f"a tensor of shape {shape}")
    for one in value:
        check_shapes(one)


def _frozen(value: Any) -> Any:
    """Lists as tuples; an object, which no profiler writes there, is nothing."""
    if isinstance(value, list):
        return tuple(map(_frozen, value))
    return None if isinstance(value, dict) else value


def _text(written: bytes) -> str:
    """The parser that found the end of a value did not look into its characters."""
    return written.decode("utf-8", "replace")


NAMELESS = "(no name in the trace)"
#: Kineto's range over all kernels, and why such sums belong to no kernel.
_WHOLE_RANGE = "__profile__"
_NO_DURATION = "the trace splits one span evenly among the kernels, so theirs are not in it"


def read_counters(trace: Trace) -> Counters:
    """Add up the counters in `trace`; what they do not give is None with its reason.

    Raises `UserError` for a trace without counters, or with sums over many kernels.
    """
    record = counters_of(counter_totals(trace))
    if record.duration_s is not None:
        return record
    missing = {**record.missing, "duration_s": f"{record.missing['duration_s']}; {_NO_DURATION}"}
    return record.model_copy(update={"missing": missing})


def counter_totals(trace: Trace) -> ProfileTotals:
    """Add up each metric of each kernel. Raises `UserError` as `read_counters` does."""
    if not trace.counters:
        raise UserError(
            f"{trace.path}: holds no counters; count with ncu and read its file, or with a torch "
            "built with CUPTI's range profiler"
        )
    totals = ProfileTotals("CUPTI's range profiler in a trace", (Path(trace.path).name,))
    for device in {one.device for one in trace.counters}:
        capability = trace.capabilities.get(device) if isinstance(device, int) else None
        if capability is not None:
            totals.chips.add(chip_of_capability(capability) or "sm_{}{}".format(*capability))
    for one in trace.counters:
        if one.name == _WHOLE_RANGE:
            raise UserError(
                f"{trace.path}: its counters are of one range over many kernels: record it with "
                "profiler_measure_per_kernel=True"
            )
        _add(totals, one)
    return totals


def _add(totals: ProfileTotals, one: CounterRange) -> None:
    kernel = NAMELESS if one.name is None else printable(kernel_name(one.name))
    totals.launches[kernel] += 1
    totals.names.update(one.values, one.missing)
    for metric, value in one.values.items():
        if metric in WANTED:
            amount = Decimal(str(value))
            # CUPTI counts time in nanoseconds.
            totals.add(kernel, metric, 1, amount.scaleb(-9) if metric == DURATION else amount)
