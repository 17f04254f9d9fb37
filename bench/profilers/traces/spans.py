"""What a trace holds: intervals on the host, on devices, and counters, from any program.

Times are microseconds on the trace's own clock.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from math import inf
from operator import attrgetter
from typing import Any, Literal, NamedTuple

import msgspec

from bench.errors import UserError, printable
from bench.profilers.ncu.tables import ProfileTotals
from bench.records.kernel_names import kernel_name

#: op: an operator of torch or of a library, or autograd's node around one. mark: an annotation by a
#: user or by torch, such as `ProfilerStep#5`. call: one of the CUDA or HIP runtime or driver.
HostKind = Literal["op", "mark", "call"]
DeviceKind = Literal["kernel", "copy", "fill"]
Direction = Literal["host to device", "device to host", "device to device"]
#: Of a file, unpacked; a larger one is not read. A trace takes about three times as much memory.
MOST_BYTES = 2_000_000_000

#: Kernels of NCCL, RCCL, HCCL, MSCCL, oneCCL, torch's symmetric memory, NVSHMEM, DeepEP, and the
#: all-reduces that vLLM, SGLang and TensorRT-LLM bring. What they wait for is another rank.
_COMMUNICATION = re.compile(
    r"[hmnrx]ccl|msccl|\b(?:one_?)?ccl|\bhcom_|^void c10d::|symm_mem|symmetric_memory"
    r"|(?:nv|roc)shmem|deep_ep::|multimem_|(?:one|two)_?shot_?all_?reduce|cross_device_reduce"
    r"|allreduce_fusion|quickreduce|userbuffers",
    re.IGNORECASE,
)


#: What a stream runs lasts 13 us into the next at most in 33 sound traces, V100 to MI300X.
OVERRUN_US = 100.0
#: Of an event that another program wrote.
UNNAMED = "without a category"
#: What torch's backends for processors name the collectives that run beside their caller.
_COLLECTIVE = re.compile(r"(?:gloo|mpi|ucc):\w|(?:oneccl_bindings_for_pytorch|torch_ccl)::")
#: Of torch, of Lightning, and what people call their own marks of a data loader.
_INPUT = re.compile(
    r"DataLoader.*__next__|enumerate\(DataPipe\)|dataloader_next|\b(?:train|val)_next\b"
    r"|\b(?:data|batch)[ _-]?(?:load|fetch|wait)"
    r"|\b(?:load|fetch|get|next|wait|read)(?:ing)?[ _-](?:(?:for|next|train|val|mini)[ _-]?)*"
    r"(?:data|batch)\b",
    re.IGNORECASE,
)
#: As CUPTI, HIP and Intel's PTI (H2D, M2D) name copies.
_DIRECTIONS: dict[Direction, str] = {
    "host to device": r"HtoD|Host[ _]?To[ _]?Device|[HM]2D",
    "device to host": r"DtoH|Device[ _]?To[ _]?Host|D2[HM]",
    "device to device": r"DtoD|PtoP|Device[ _]?To[ _]?Device|D2D",
}
_communicates = cache(_COMMUNICATION.search)
_is_collective, _is_input = cache(_COLLECTIVE.match), cache(_INPUT.search)
#: Of CUDA, HIP, SYCL's Unified Runtime and Level Zero. While a graph is recorded they run nothing.
_LAUNCH = re.compile(
    r"Launch\w*Kernel|KernelLaunch|GraphLaunch|^(?:cuda|hip|cu)Mem(?:cpy|set)\w*Async"
)
_CAPTURE = re.compile(r"Stream(Begin|End)Capture")


@cache
def _direction(name: str) -> Direction | None:
    words = _DIRECTIONS.items()
    return next((way for way, word in words if re.search(word, name, re.IGNORECASE)), None)


class HostSpan(msgspec.Struct, gc=False):
    """One interval of a host thread. What the trace does not say is None."""

    name: str
    kind: HostKind
    begin_us: float
    end_us: float
    thread: tuple[Any, Any]  # process, thread
    external_id: int | None = None
    correlation: int | None = None  # of a call: what it launched has the same
    sequence: int | None = None  # a backward op has its forward op's
    dims: tuple[Any, ...] | None = None  # of each argument: (), (2, 3), or a tuple of those
    types: tuple[str, ...] | None = None
    concrete: tuple[Any, ...] | None = None  # values of arguments that are no tensors, as text
    strides: tuple[Any, ...] | None = None

    @property
    def communicates(self) -> bool:
        """Whether it is a collective of a processor's backend; it may overlap its thread's ops."""
        return self.kind != "call" and _is_collective(self.name) is not None

    @property
    def loads(self) -> bool:
        """Whether it is a mark of a data loader, by its name."""
        return self.kind == "mark" and _is_input(self.name) is not None


class DeviceSpan(msgspec.Struct, gc=False):
    """One kernel, copy or fill of a device."""

    name: str
    kind: DeviceKind
    begin_us: float
    end_us: float
    device: int | str | None
    stream: int | str | None
    correlation: int | None = None
    external_id: int | None = None
    size_bytes: int | None = None  # of a copy or a fill

    @property
    def duration_us(self) -> float:
        """Its own time, whatever else ran."""
        return self.end_us - self.begin_us

    @property
    def communicates(self) -> bool:
        """Whether it exchanges data with other ranks, or waits for them."""
        return self.kind == "kernel" and _communicates(self.name) is not None

    @property
    def copies_to_or_from_host(self) -> bool:
        """Whether it moves data between the host and the device."""
        return self.direction in ("host to device", "device to host")

    @property
    def direction(self) -> Direction | None:
        """Of a copy, as its name says it."""
        return _direction(self.name) if self.kind == "copy" else None

    @property
    def short_name(self) -> str:
        """The name as `bench.records` spells kernels'."""
        return kernel_name(self.name)


class TracedDevice(NamedTuple):
    """What a trace says of one device; None where it does not."""

    name: str | None = None
    capability: tuple[int, int] | None = None  # CUDA's
    multiprocessors: int | None = None

    @classmethod
    def of(cls, name: object, major: object, minor: object, count: object) -> TracedDevice:
        """Return what of these facts can be true."""
        return cls(
            printable(str(name)[:200]) if name else None,
            (major, minor) if isinstance(major, int) and isinstance(minor, int) else None,
            count if isinstance(count, int) and count > 0 else None,
        )


@dataclass
class ProfilerTrace:
    """All that is used of one trace; spans are in the order of their beginning.

    `launches` finds the call that launched a device's span by its correlation.
    """

    path: str
    host: Sequence[HostSpan]
    device: Sequence[DeviceSpan]
    counters: ProfileTotals | None = None  # of CUPTI's range profiler
    devices: Mapping[int, TracedDevice] = field(default_factory=dict)
    rank: int | None = None  # which rank of a job recorded it
    world_size: int | None = None
    tool: Literal["torch", "nsys"] = "torch"
    left_out: str | None = None  # of the file, in words: what is not read, or not as it stands
    end_us: float = inf  # of the recording

    def only(self, number: str) -> ProfilerTrace:
        """Return what one device ran, and what the processes did that launched it.

        Raises `UserError` for a device that ran nothing.
        """
        others = {str(run.device): run.device for run in self.device}
        if number not in others:
            ran = ", ".join(sorted(others)) or "none"
            raise UserError(f"{self.path}: device {number!r} ran nothing; those that ran are {ran}")
        device = others.pop(number)
        runs = [run for run in self.device if run.device == device]
        launches = [launch for run in runs if (launch := self.launch_of(run)) is not None]
        processes = {launch.thread[0] for launch in launches}
        elsewhere = {run.correlation for run in self.device} - {run.correlation for run in runs}
        elsewhere.discard(None)
        host = [
            span
            for span in self.host
            if not (span.kind == "call" and span.correlation in elsewhere)
            and (not processes or span.thread[0] in processes)
        ]
        # Counters are added up over all devices.
        trace = replace(self, host=host, device=runs, counters=None if others else self.counters)
        # Of calls within each other one has the kernel, which may be of those that are left out.
        trace.lost = self.lost
        if others:
            trace._leave_out(f"left out is what ran on device {', '.join(sorted(others))}")
        return trace

    def _leave_out(self, what: str) -> None:
        self.left_out = "; ".join(filter(None, (self.left_out, what)))

    def cut_overruns(self) -> None:
        """End what lasts longer than it can: a stream is serial, and an op is within another.

        Only what one graph launches may overlap. A device synchronised by the host, if it is one,
        ran nothing longer, and nothing lasts beyond the end of the recording.
        """
        if cut := self._cut_runs():
            self._leave_out(f"kernels and copies cut where the next of their stream begins: {cut}")
        if cut := self._cut_ops():
            self._leave_out(f"ops cut where what is around them, or the recording, ends: {cut}")

    def _cut_runs(self) -> int:
        waits = [call.end_us for call in self.host if call.name.endswith("DeviceSynchronize")]
        last_us = min(max(waits, default=inf) if len(self.computing) == 1 else inf, self.end_us)
        streams: dict[Any, tuple[int | None, float, float]] = {}
        cut = 0
        for run in reversed(self.device):
            end_us = last_us if run.begin_us < last_us else inf
            correlation, begin_us, next_us = streams.get(
                (run.device, run.stream), (None, end_us, end_us)
            )
            if run.correlation is None or run.correlation != correlation:
                next_us = begin_us
            streams[run.device, run.stream] = run.correlation, run.begin_us, next_us
            if run.end_us > next_us + OVERRUN_US:
                run.end_us = next_us
                cut += 1
        return cut

    def _cut_ops(self) -> int:
        around: defaultdict[Any, list[float]] = defaultdict(lambda: [self.end_us])
        cut = 0
        for span in self.host:
            ends_us = around[span.thread]
            while len(ends_us) > 1 and ends_us[-1] <= span.begin_us:
                ends_us.pop()
            is_op = span.kind == "op" and not span.communicates
            last_us = ends_us[-1] if is_op else self.end_us
            if span.begin_us < last_us < span.end_us - OVERRUN_US:
                span.end_us = last_us
                cut += 1
            if span.kind != "call" and not span.communicates:
                ends_us.append(span.end_us)
        return cut

    @cached_property
    def computing(self) -> list[int | str | None]:
        """The devices that ran kernels; where there are none, those that ran anything."""
        ran = dict.fromkeys(span.device for span in self.device if span.kind == "kernel")
        return list(ran or dict.fromkeys(span.device for span in self.device))

    @cached_property
    def launches(self) -> dict[int, HostSpan]:
        """The host's calls by correlation; of several the outermost."""
        return {
            span.correlation: span
            for span in reversed(self.host)
            if span.kind == "call" and span.correlation is not None
        }

    @cached_property
    def lost(self) -> frozenset[int]:
        """Launches, by correlation, of which no device has a kernel: the tracer lost them.

        Of calls within each other it is enough that one has it. None is lost where as many kernels
        have no launch: such a trace has other ids on its devices.
        """
        ran = {run.correlation for run in self.device}
        launches: list[set[int]] = []
        latest: dict[Any, tuple[float, set[int]]] = {}  # by thread, with the outermost call's end
        capturing = False
        for call in self.host:
            if call.kind != "call" or call.correlation is None:
                continue
            if (bound := _CAPTURE.search(call.name)) is not None:
                capturing = bound[1] == "Begin"
            elif _LAUNCH.search(call.name) and not capturing:
                end_us, within = latest.get(call.thread, (call.begin_us, set()))
                if call.begin_us >= end_us:
                    within = set()
                    launches.append(within)
                    latest[call.thread] = call.end_us, within
                within.add(call.correlation)
        lost = {min(within) for within in launches if not within & ran}
        kernels = (run for run in self.device if run.kind == "kernel")
        unlinked = sum(self.launch_of(run) is None for run in kernels)
        return frozenset(lost if unlinked < len(lost) else ())

    def launch_of(self, span: DeviceSpan | HostSpan) -> HostSpan | None:
        """The call that launched it, of calls the outermost; None where the trace lacks it."""
        return None if span.correlation is None else self.launches.get(span.correlation)

    def of_the_device(self, fact: str) -> Any:
        """The fact of the devices that ran something, if it is one; of all, if none is known.

        None where none ran anything, or the trace does not say it.
        """
        every = ((number, getattr(device, fact)) for number, device in self.devices.items())
        facts: dict[Any, Any] = {number: value for number, value in every if value is not None}
        used = {span.device for span in self.device}
        values = {*(map(facts.get, used) if used and used <= facts.keys() else facts.values())}
        return values.pop() if len(values) == 1 else None


def in_order(host: list[HostSpan], device: list[DeviceSpan]) -> None:
    """Sort both by begin; of host spans that begin together the longer first, then by id."""
    # Stable sorts of what is nearly in order are the fastest, and need no tuple for each.
    host.sort(key=lambda span: span.external_id or 0)
    host.sort(key=attrgetter("end_us"), reverse=True)
    host.sort(key=attrgetter("begin_us"))
    device.sort(key=attrgetter("begin_us"))


def without_ambiguous_ids(host: Iterable[HostSpan], device: Iterable[DeviceSpan]) -> None:
    """Make device spans forget ids that host spans of several processes have.

    Each process counts from 1: in a trace merged of several ranks an id alone would lead from one
    rank's kernel to another rank's op.
    """
    ambiguous: dict[str, set[int | None]] = {}
    for name in ("correlation", "external_id"):
        owners: dict[int, Any] = {}
        shared = ambiguous[name] = set()
        for span in host:
            number = getattr(span, name)
            if number is not None and owners.setdefault(number, span.thread[0]) != span.thread[0]:
                shared.add(number)
    for run in device:
        for name, shared in ambiguous.items():
            if getattr(run, name) in shared:
                setattr(run, name, None)
