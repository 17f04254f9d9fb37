"""What was measured, its records, and what launcher and workers tell each other of it."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from typing_extensions import Self

from bench.config import ResolvedConfig, RunConfig
from bench.config.resolved import Backend, MathMode
from bench.records.base import (
    NEWER,
    Count,
    Facts,
    Finding,
    Instant,
    KeptRecord,
    Number,
    Outcome,
    PositiveCount,
    PositiveRate,
    PositiveSeconds,
    Record,
    Seconds,
    Verdict,
)
from bench.records.complexity import Complexity
from bench.records.counters import CounterCheck
from bench.records.environment import Environment, ProcessFigures, Telemetry
from bench.records.profile import OpProfile, ToolName, WorkSet
from bench.statistics.steady_state import transient

#: Sum of iteration times against the wall clock: more means that the window had gaps.
_GAP = 0.02
#: Mean and median of a window that nothing disturbs differ by less, and waits for data are rarer.
_MOST_APART = 0.05


class RankFigures(Facts):
    """One rank's own times of the common window, and its device's peak memory.

    What a step takes beside `exchange_wait_s` is the rank's own: its loader's wait, its computing,
    and what its host does else. `processor_s` is the time in which its main thread ran, but for
    what the loader used of it. `local_step_s` are its own of `DistributedFigures.local_step_s`.
    """

    rank: Count
    node: Count
    device: str | None  # its name
    device_uuid: str | None
    iteration_times_s: Annotated[tuple[PositiveSeconds, ...], Field(min_length=1)] | None
    data_wait_s: tuple[Seconds, ...] | None
    peak_memory_allocated_bytes: Count | None
    peak_memory_reserved_bytes: Count | None
    host: str | None = Field(NEWER)
    samples_per_step: PositiveCount | None = Field(NEWER)
    exchange_wait_s: tuple[Number, ...] | None = Field(NEWER)
    processor_s: tuple[Number, ...] | None = Field(NEWER)
    max_rss_bytes: Count | None = Field(NEWER)
    local_step_s: tuple[PositiveSeconds, ...] | None = Field(NEWER)


class DistributedFigures(Facts):
    """Every rank's figures, and a few steps after the window with and without communication.

    `synced_step_s` are whole steps, `local_step_s` the same without the exchange of gradients
    (DistributedDataParallel's `no_sync`). All ranks begin each together with their devices idle; a
    time is that of the slowest rank. `parallelism` is how a script shares its work.
    """

    communication: str  # torch's backend: nccl, gloo
    ranks: Annotated[tuple[RankFigures, ...], Field(min_length=2)]
    synced_step_s: Annotated[tuple[PositiveSeconds, ...], Field(min_length=1)] | None
    local_step_s: Annotated[tuple[PositiveSeconds, ...], Field(min_length=1)] | None
    parallelism: str | None = Field(NEWER)

    @model_validator(mode="after")
    def _all_ranks_in_order(self) -> Self:
        if [rank.rank for rank in self.ranks] != list(range(len(self.ranks))):
            raise ValueError("ranks are not 0, 1, 2 and so on")
        if len({len(rank.iteration_times_s) for rank in self.ranks if rank.iteration_times_s}) > 1:
            raise ValueError("ranks differ in their number of iterations")
        return self

    @property
    def communication_share(self) -> float | None:
        """Share of a step that communication adds: 1 - median(local) / median(synced).

        Only what is exposed counts: communication that runs beside the backward pass costs
        nothing, unless it slows that down. A value a little below 0 means none, and noise.
        """
        if self.local_step_s is None or self.synced_step_s is None:
            return None
        return 1 - statistics.median(self.local_step_s) / statistics.median(self.synced_step_s)


class Measurement(Facts):
    """Raw times of one measured window. Per-iteration tuples are in order and of equal length.

    On several devices the samples are those of all, the times and the memory those of rank 0; the
    window begins and ends with a barrier of all ranks.
    """

    iteration_times_s: Annotated[tuple[PositiveSeconds, ...], Field(min_length=1)]
    iteration_clock: Literal["wall", "cuda_events", "mps_events"]
    #: Host time inside next(loader), zeros for synthetic data; of some scripts not known.
    data_wait_s: tuple[Seconds, ...] | None
    phase_times_s: dict[str, tuple[Seconds, ...]] | None  # data, forward, backward, optimizer
    warmup_times_s: tuple[Seconds, ...]
    window_start_clock_s: Seconds
    window_end_clock_s: Seconds
    window_start_unix_s: Seconds
    samples_per_iteration: PositiveCount
    ended_early: str | None  # why the window closed before `iters`
    warmup_ended_early: str | None  # why the warm-up ended before `warmup_iters`
    compile_time_s: Seconds | None
    startup_s: dict[str, Seconds]  # import, model, data: what passed before the first warm-up
    peak_memory_allocated_bytes: Count | None
    peak_memory_reserved_bytes: Count | None
    warmup_peak_memory_bytes: Count | None  # allocated: with cuDNN's search for algorithms
    changed_switches: tuple[str, ...] | None  # "threads to 8": torch's, set by the step's own code
    hidden_syncs: Count | None  # synchronisations the probe iteration saw inside the step
    first_loss: Number | None
    last_loss: Number | None
    other_cpu_cores: Number | None  # what others used of the CPU, on average, by the worker itself
    work: WorkSet | None  # what one step launched, counted outside the window
    ranks: DistributedFigures | None  # None on one device
    garbage_collections_s: Seconds | None = Field(NEWER)  # Python's own, of the window
    #: Where steps differ in size; rates are sums, and `samples_per_iteration` is a counted step's.
    iteration_samples: tuple[PositiveCount, ...] | None = Field(NEWER)
    window_tokens: Count | None = Field(NEWER)  # where sequences differ in length

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        iterations = len(self.iteration_times_s)
        if self.data_wait_s is not None and len(self.data_wait_s) != iterations:
            raise ValueError("data_wait_s and iteration_times_s differ in length")
        if self.iteration_samples is not None and len(self.iteration_samples) != iterations:
            raise ValueError("iteration_samples and iteration_times_s differ in length")
        for phase, times in (self.phase_times_s or {}).items():
            if len(times) != iterations:
                raise ValueError(f"phase {phase} and iteration_times_s differ in length")
        if self.window_s < 1e-12:  # less than any iteration
            raise ValueError("the window ends before it starts")
        return self

    @property
    def window_s(self) -> float:
        """Wall time of the measured window, the device synchronised at both ends."""
        return self.window_end_clock_s - self.window_start_clock_s

    @property
    def samples(self) -> int:
        """Images, or sequences, of the measured window."""
        if self.iteration_samples is not None:
            return sum(self.iteration_samples)
        return self.samples_per_iteration * len(self.iteration_times_s)

    @cached_property
    def settled_after(self) -> int:
        """Iterations at the window's beginning that are of another level: no rate holds them.

        Of steps that differ in size no level is known.
        """
        if self.iteration_samples is not None:
            return 0
        return transient(self.iteration_times_s)

    @property
    def steady_times_s(self) -> tuple[float, ...]:
        """The iterations that rates are of."""
        return self.iteration_times_s[self.settled_after :]

    @property
    def mean_step_s(self) -> float:
        """Wall time of `samples_per_iteration`, on average, with every disturbance."""
        if self.iteration_samples is not None:
            return self.window_s * self.samples_per_iteration / self.samples
        cut_s = sum(self.iteration_times_s[: self.settled_after])
        if cut_s >= self.window_s:  # its verdict says that these contradict each other
            return self.window_s / len(self.iteration_times_s)
        return (self.window_s - cut_s) / len(self.steady_times_s)

    @cached_property
    def pace_s(self) -> float:
        """The median iteration: what the device takes where nothing disturbs it."""
        if self.iteration_samples is not None:
            return self.mean_step_s
        return statistics.median(self.steady_times_s)

    @property
    def is_disturbed(self) -> bool:
        """Whether iterations take over 5 % more on average than the median, and not for data."""
        if self.iteration_samples is not None:
            return False
        waits = sum(self.data_wait_s or ()) > _MOST_APART * self.window_s
        mean_s = statistics.fmean(self.steady_times_s)
        return mean_s > (1 + _MOST_APART) * self.pace_s and not waits

    @property
    def step_s(self) -> float:
        """What stands under a roof and beside other runs: the mean, of a disturbed run its pace."""
        return self.pace_s if self.is_disturbed else self.mean_step_s

    @property
    def throughput_samples_per_s(self) -> float:
        """Samples over the wall time of the window, its transient left out."""
        return self.samples_per_iteration / self.mean_step_s

    @property
    def pace_samples_per_s(self) -> float:
        """Samples of an iteration over the median iteration."""
        return self.samples_per_iteration / self.pace_s


#: What may be taken out of a step: waiting for input, the exchange of gradients, the host's work.
Removable = Literal["input", "sync", "host"]


class Removal(Facts):
    """Steps of a run as they are and, by turns, without `what`: what would it gain?

    Each time is the mean of a turn of `steps` steps; the turns of both sides are pairs.
    """

    what: Removable
    steps: PositiveCount | None
    with_s: tuple[PositiveSeconds, ...] | None
    without_s: tuple[PositiveSeconds, ...] | None
    note: str | None  # what else a reader of the gain must know


class RunRecord(KeptRecord):
    """One configuration, measured once: the file `record.json` of a record folder."""

    kind: Literal["measurement"] = "measurement"
    config: RunConfig
    config_id: str
    resolved: ResolvedConfig | None
    measurement: Measurement | None
    process: ProcessFigures | None
    telemetry: Telemetry | None
    environment: Environment | None
    complexity: Complexity | None
    ops: OpProfile | None = Field(NEWER)  # of steps after the window
    #: Of a watched script its arguments, model and optimizer, and the command that measures it.
    script: dict[str, str] = Field(default_factory=dict)
    removals: tuple[Removal, ...] = ()  # measured after the window

    @model_validator(mode="after")
    def _ok_is_whole(self) -> Self:
        if self.outcome == "ok" and (self.measurement is None or self.resolved is None):
            raise ValueError("outcome ok without a measurement")
        return self

    @model_validator(mode="after")
    def _contradictions_are_found(self) -> Self:
        """Add what the verdict in a file does not say of figures that contradict each other."""
        if self.verdict is not None:
            codes = {finding.code for finding in self.verdict.findings}
            if new := [finding for finding in self.contradictions() if finding.code not in codes]:
                self.__dict__["verdict"] = Verdict.of([*self.verdict.findings, *new])
        return self

    def contradictions(self) -> Iterator[Finding]:
        """Yield what of times, window and samples cannot be true together, as a verdict has it."""
        if (window := self.measurement) is None:
            return
        within_s = {
            "iteration times": sum(window.iteration_times_s),
            "waits for data": sum(window.data_wait_s or ()),
            "phases": sum(map(sum, (window.phase_times_s or {}).values())),
        }
        gap = 1 - within_s["iteration times"] / window.window_s
        if beyond := [n for n, s in within_s.items() if s > (1 + _MOST_APART) * window.window_s]:
            sums_s = {"spent_s": within_s[beyond[0]], "window_s": window.window_s}
            yield Finding.of("contradiction", times=beyond[0], **sums_s)
        elif abs(gap) > _GAP and self.outcome == "ok":  # an interrupt cuts an iteration
            yield Finding.of("window-gap", percent=100 * gap)
        samples = window.samples_per_iteration
        if self.resolved is not None and not self.script:
            batches = self.config.grad_accum_steps * self.config.world_size
            if samples != (of_batches := self.resolved.batch_size * batches):
                yield Finding.of("contradiction", samples=samples, of_batches=of_batches)


class Ceiling(Facts):
    """The most a device can do in one math mode, measured there or from its maker's document."""

    device: str
    backend: Backend
    math_mode: MathMode
    peak_flops_per_s: PositiveRate | None
    peak_bytes_per_s: PositiveRate | None
    burst_flops_per_s: PositiveRate | None  # of short repetitions, or by Winograd's algorithm
    one_way_bytes_per_s: PositiveRate | None  # of reading alone or of writing alone
    kind: Literal["measured", "datasheet"]
    source: str
    date: str


class CeilingSample(Record):
    """One probe of a ceiling: `rates` in FLOP/s or B/s, one per repetition."""

    probe: str  # "matmul bf16 4096x4096x4096", "copy 512 MiB"
    math_mode: MathMode | None
    quantity: Literal["flops_per_s", "bytes_per_s"]
    rates: Annotated[tuple[PositiveRate, ...], Field(min_length=1)]


class CacheRoof(Facts):
    """The bandwidth of one cache level of a device, measured by reading what fits into it."""

    level: Literal["L1", "L2", "L3"]
    size_bytes: Count | None  # of the level, all of its instances together
    peak_bytes_per_s: PositiveRate | None
    source: str


class AllReduce(Record):
    """All-reduces of one size over the devices of a machine; each time is the slowest rank's."""

    communication: str  # torch's backend: nccl, gloo
    devices: Annotated[int, Field(ge=2)]
    message_bytes: PositiveCount
    times_s: Annotated[tuple[PositiveSeconds, ...], Field(min_length=1)]

    @property
    def time_s(self) -> float:
        """The median."""
        return statistics.median(self.times_s)

    @property
    def bus_bytes_per_s(self) -> float:
        """What a link carries: the message's bytes (the algorithm's) per second x 2 (n - 1) / n.

        NVIDIA, nccl-tests, doc/PERFORMANCE.md: comparable between numbers of devices.
        """
        return 2 * (self.devices - 1) / self.devices * self.message_bytes / self.time_s


def link_words(all_reduces: Sequence[AllReduce]) -> str:
    """Return the highest bandwidth of all-reduces, and what the smallest takes."""
    fastest = max(all_reduces, key=lambda one: one.bus_bytes_per_s)
    least = all_reduces[0]
    return (
        f"{fastest.bus_bytes_per_s / 1e9:.4g} GB/s on the bus at {fastest.message_bytes / 2**20:g} "
        f"MiB, {1e6 * least.time_s:.4g} us at {least.message_bytes / 2**10:g} KiB"
    )


class CeilingsRecord(KeptRecord):
    """One machine's measured roofs: the file `record.json` of a record folder."""

    kind: Literal["ceilings"] = "ceilings"
    environment: Environment | None
    ceilings: tuple[Ceiling, ...]
    samples: tuple[CeilingSample, ...]
    cache_roofs: tuple[CacheRoof, ...] = ()
    counter_checks: tuple[CounterCheck, ...] = ()
    all_reduces: tuple[AllReduce, ...] = ()  # smallest first
    telemetry: Telemetry | None
    ended: Instant | None = Field(NEWER)  # UTC


#: A reader's word for the files that it knows: table, iterations, timm, mlperf, ...
_Format = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")]


class ImportedRecord(Facts):
    """One result of another program, as its file has it; nothing measured is added or estimated.

    `params` and `metrics` hold what else the file says under this project's names, `extra` under
    the file's own. `complexity` is this project's count of the step that the file names, of one
    batch on one device; `assumed` says what the file leaves open of that step. `verdict` is about
    the file's own figures; None where none contradicts another.
    """

    schema_version: Literal[1] = 1
    kind: Literal["imported"] = "imported"
    record_id: str
    created: Instant  # UTC; when it was measured if the file says so, else when it was imported
    source_file: str  # its name, without folders
    source_sha256: str
    source_line: PositiveCount | None  # of a table; None for a whole file
    source_format: _Format
    campaign: str
    env: str | None  # label of the machine
    arch: str
    device: str | None
    backend: str | None
    precision: str | None
    batch_size: PositiveCount | None
    repeat: Count | None
    throughput_images_per_s: PositiveRate | None
    measured_at: Instant | None
    iteration_times_s: tuple[PositiveSeconds, ...] | None
    complexity: Complexity | None
    verdict: Verdict | None
    assumed: tuple[str, ...] = ()
    params: dict[str, str] = Field(default_factory=dict)
    metrics: dict[str, Number] = Field(default_factory=dict)
    extra: dict[str, str] = Field(default_factory=dict)

    @property
    def devices(self) -> int:
        """Devices that trained together; one where the file does not say how many."""
        return math.prod(int(self.params.get(name, 1)) for name in ("devices", "nodes"))

    @property
    def grad_accum_steps(self) -> int:
        """Batches of each device in one step; one where the file does not say."""
        return int(self.params.get("grad_accum_steps", 1))


class Job(Record):
    """What was asked for: the file `config.json` of a record folder.

    Of `ceilings` the configuration's backend counts alone, of a `machine` its label.
    """

    kind: Literal["measurement", "profile", "ceilings", "machine"] = "measurement"
    config: RunConfig
    tool: ToolName | None = None  # of one worker of a profile
    #: What its tool asks of that worker, or `mlproject watch` of a script.
    task: dict[str, str] = Field(default_factory=dict)


class Account(Facts):
    """What a worker saw, however it ended: the file `worker.json`. Its job says of what."""

    outcome: Outcome
    reason: str | None
    resolved: ResolvedConfig | None
    environment: Environment | None
    complexity: Complexity | None
    measurement: Measurement | None
    script: dict[str, str] = Field(default_factory=dict)  # as in `RunRecord`
    removals: tuple[Removal, ...] = ()
    # Of a profile:
    work: WorkSet | None
    iterations: Count | None  # steps inside the profiled window
    window_s: Seconds | None  # wall time of that window
    ops: OpProfile | None
    # Of roofs:
    ceilings: tuple[Ceiling, ...] = ()
    samples: tuple[CeilingSample, ...] = ()
    cache_roofs: tuple[CacheRoof, ...] = ()
    counter_checks: tuple[CounterCheck, ...] = ()  # only the launcher knows what was counted
    all_reduces: tuple[AllReduce, ...] = ()
    # Of a machine: of each device, what `auto` takes first.
    environments: tuple[Environment, ...] = ()

    @classmethod
    def of_none(cls, outcome: Outcome, reason: str) -> Self:
        """Return the account of a worker that wrote nothing."""
        return cls.of(reason, outcome=outcome, reason=reason)


class RankAccount(Facts):
    """How one rank ended: the file `rank-N.json` of a record folder."""

    kind: Literal["rank"] = "rank"
    rank: Count
    outcome: Outcome
    reason: str | None
    #: own: it failed by itself; killed: another process reports it; lost: the others went away.
    cause: Literal["own", "killed", "lost"]
    ended_unix_s: Seconds

    @classmethod
    def of_killed(cls, rank: int, outcome: Outcome, reason: str) -> Self:
        """Return the account of a rank that could not write its own, and has just ended."""
        how: Any = {"cause": "killed", "ended_unix_s": time.time()}
        return cls(rank=rank, outcome=outcome, reason=reason, **how)
