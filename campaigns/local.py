"""A sweep on this machine: one fresh worker after the other, taken up again where it was.

Where the matrix asks for them the device's roofs come first. A profile of a configuration comes
after its first run without a doubt.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench.config import RunConfig, TimeLimits
from bench.errors import UserError
from bench.launcher.device_lock import device_names, exclusive
from bench.launcher.measurement import find_ceilings, launch_ceilings, launch_measurement
from bench.launcher.profile import TOOLS, launch_profile, obstacle_to
from bench.launcher.telemetry import Source
from bench.launcher.telemetry.devices import HostSource, device_source
from bench.launcher.watch import WorkerWatch
from bench.records import (
    CeilingsRecord,
    Environment,
    Job,
    ProfileRecord,
    RunRecord,
    ToolName,
)
from bench.records.environment import environment_id
from bench.records.folders import RecordFolder
from bench.records.journal import Clock, OnEvent, ignore
from campaigns.plan import (
    Deliver,
    PastRuns,
    Plan,
    SweepOrder,
    SweepWatch,
    Turn,
    campaign_records,
    turn_before,
)


class LocalExecutor:
    """Measures one run after the other here; `environments` are this machine's."""

    place = "this machine"  # in messages

    def __init__(self, environments: tuple[Environment, ...]) -> None:
        self.environments = environments
        self.backends = {str(machine.device.backend) for machine in environments}

    def sweep(self, order: SweepOrder, deliver: Deliver, watch: SweepWatch) -> Generator[Turn]:
        """Measure what is not measured yet, in order; yield what became of each run.

        The record is on disk before `deliver` sees it. An interrupted run is the last. What does
        not end before the order's deadline is left over, and so is what was not begun then.
        """
        devices = [_SweptDevice(here, order, deliver, watch) for here in self.environments]
        for config in order.plan.runs:
            device = devices[self.environments.index(environment_of(config, self.environments))]
            turn = device.earlier(config)
            if turn is None and time.perf_counter() <= order.deadline_s:
                turn = device.measure(config)
            is_late = time.perf_counter() > order.deadline_s
            if turn is None or (
                turn.outcome == "interrupted" and is_late and not device.is_interrupted
            ):
                turn = Turn(config, "left over", None, "time was up", None)
            yield turn
            if turn.record is not None and turn.record.outcome == "interrupted":
                return
            if device.is_interrupted:
                raise KeyboardInterrupt  # after its window, so that its record is whole
            if turn.outcome == "ok" and not is_late:
                device.profile(config)


class _SweptDevice:
    """One device of this machine, and what the sweep's campaign has measured on it."""

    def __init__(
        self, environment: Environment, order: SweepOrder, deliver: Deliver, watch: SweepWatch
    ) -> None:
        self._environment, self._device = environment, environment.device
        self._order, self._deliver, self._watch = order, deliver, watch
        self.is_interrupted = False
        here = environment_id(environment)
        self._past = PastRuns(
            order.records, order.campaign, here, order.elsewhere, order.retry_failed
        )
        self._settler = (
            Settler.of_device(self._device.backend, self._device.uuid) if order.settle_s else None
        )
        before = campaign_records(order.records, order.campaign, environment)
        self._profiled = {
            record.config_id
            for record in (before if order.profile else ())
            if isinstance(record, ProfileRecord)
            and record.environment is not None
            and record.outcome != "interrupted"
        }

    def earlier(self, config: RunConfig) -> Turn | None:
        """Return what an earlier run says of this one, or None if it has to be measured."""
        self._past.refresh()
        before = turn_before(config, self._past, self._order)
        if before is not None or (smaller := self._past.too_large(config)) is None:
            return before
        why = f"batch {smaller.config.batch_size} of it ran out of memory ({smaller.record_id})"
        return Turn(config, "skipped", None, why, None)

    def measure(self, config: RunConfig) -> Turn:
        """Measure a run once no other benchmark has the device."""
        with exclusive(device_names(config.backend, config.devices), self._watch.waiting):
            # Another sweep of this campaign may have measured it while we waited.
            if (turn := self.earlier(config)) is not None:
                return turn
            if self._settler is not None:
                self._settler.settle(self._order.settle_s)
            self._watch.starting(config)
            folder = RecordFolder.create(self._order.records)
            record = launch_measurement(
                config, folder, self._watch.on_event, deadline_s=self._order.deadline_s
            )
            self.is_interrupted = folder.is_interrupted
            self._deliver(folder, record)
        return Turn.of(record, folder.problem)

    def profile(self, config: RunConfig) -> None:
        """Profile the step of a configuration that has a run without a doubt, and no profile yet.

        A loader alone has no step. Raises `KeyboardInterrupt` where it was interrupted: the next
        sweep makes it again.
        """
        tools = self._tools(config)
        if tools == () or config.data_only or config.config_id in self._profiled:
            return
        order = self._order
        clean = (
            record
            for record in campaign_records(
                order.records, order.campaign, self._environment, newest_first=True
            )
            if isinstance(record, RunRecord)
            and record.environment is not None
            and record.config_id == config.config_id
            and record.verdict is not None
            and record.verdict.level == "clean"
        )
        if (timed := next(clean, None)) is None:
            return
        with exclusive(device_names(config.backend, config.devices), self._watch.waiting):
            self._watch.starting(config, "profile of ")
            folder = RecordFolder.create(order.records)
            record = launch_profile(timed.config, folder, tools, timed, self._watch.on_event)
            self._deliver(folder, record)
        self._watch.profiled(record)
        if record.outcome == "interrupted":
            raise KeyboardInterrupt
        self._profiled.add(config.config_id)

    def _tools(self, config: RunConfig) -> tuple[ToolName, ...] | None:
        """The tools of the order that can examine the configuration here; None for `auto`."""
        asked = self._order.profile
        if "auto" in asked:
            return None
        return tuple(
            name
            for name in asked
            if name != "auto" and not obstacle_to(TOOLS[name](), config, self._device.backend)
        )


# Roofs before the runs

#: Arithmetic of half the bits is twice as fast where a device has it; two measurements of one speed
#: differ by less than this.
_NATIVE_GAIN = 1.3


def measure_roofs(
    backends: Collection[str],
    records: Path,
    deliver: Deliver,
    on_event: OnEvent,
    waiting: Callable[[str], None],
    deadline_s: float = math.inf,
) -> dict[str, CeilingsRecord]:
    """Return the roofs of each backend, measured where `records` holds none of its device."""
    roofs = {}
    for backend in backends:
        record = find_ceilings(records, backend)
        if record is None:
            with exclusive(device_names(backend), waiting):
                folder = RecordFolder.create(records)
                record = launch_ceilings(backend, folder, on_event, deadline_s)
                deliver(folder, record)
        roofs[backend] = record
    return roofs


def in_precisions(
    plan: Plan, roofs: Mapping[str, CeilingsRecord], environments: tuple[Environment, ...]
) -> Plan:
    """Return the plan without the runs in a precision that their device does not have.

    Each arithmetic once: what `amp` is there is left out by its own name beside it.
    """
    have = {backend: precisions(record) for backend, record in roofs.items()}
    planned = set(plan.runs)

    def is_kept(run: RunConfig) -> bool:
        names = have[environment_of(run, environments).device.backend]
        of_amp = next((name for name in names if name.startswith("amp-")), None)
        beside = run.model_copy(update={"precision": "amp"}) in planned
        return run.precision in names and not (run.precision == of_amp and beside)

    return replace(plan, runs=tuple(filter(is_kept, plan.runs)))


def precisions(ceilings: CeilingsRecord) -> tuple[str, ...]:
    """Return the precisions of a device, by the arithmetic that its roofs were measured in.

    After `amp` stands what it is. A 16-bit arithmetic that multiplies no faster than fp32 is
    emulated: `amp` is fp32 again where both are, and `amp-fp16` would take most of the time.
    """
    peaks = {ceiling.math_mode: ceiling.peak_flops_per_s or 0.0 for ceiling in ceilings.ceilings}
    least = _NATIVE_GAIN * peaks.get("fp32", 0.0)
    native = [f"amp-{mode}" for mode in ("bf16", "fp16") if peaks.get(mode, 0.0) > least]
    of_halves = ["amp", *native] if native else []
    return ("fp32", *(mode for mode in ("tf32", "fp8") if mode in peaks), *of_halves)


# The devices: which there are, at rest before each measurement, and how long runs take

#: More than this and something else is at work: percent of the device, or of the whole host.
_IDLE_PERCENT = 10.0
#: A device this near to where it was before the sweep has cooled down.
_COOL_C = 5.0
_POLL_S = 1.0
#: So many readings in a row: one quiet second is no idle machine.
_QUIET_READINGS = 3

_LOADS = ("cpu_utilization_percent", "gpu_utilization_percent")
_TEMPERATURES = ("cpu_temperature_c", "gpu_temperature_c")


def identify_machine(env: str = "auto") -> tuple[Environment, ...]:
    """Return the environment of every device here, the one that `auto` takes first.

    Takes the few seconds of an import of torch. Raises `UserError` where that fails.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        folder = RecordFolder.create(Path(temporary), "machine")
        job = Job(kind="machine", config=RunConfig(env=env))
        folder.write(folder.config, job)
        account = WorkerWatch(job, folder, ignore).wait()
    if account.outcome == "ok":
        return account.environments
    if account.outcome == "interrupted":
        raise KeyboardInterrupt
    raise UserError(f"no worker can start here: {account.reason}; mlproject doctor says more")


def environment_of(config: RunConfig, environments: tuple[Environment, ...]) -> Environment:
    """Return the environment that `config` is measured on."""
    if config.backend == "auto":
        return environments[0]
    return next(
        environment for environment in environments if environment.device.backend == config.backend
    )


class Settler:
    """Waits for a quiet device; a load or temperature that it does not report is not waited for.

    `at_rest_c` are the temperatures to come back to; by default those of now.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        clock: Clock = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        at_rest_c: Mapping[str, float] | None = None,
    ) -> None:
        self._sources = sources
        self._clock = clock
        self._sleep = sleep
        values = self._read()
        now_c = {name: values[name] for name in _TEMPERATURES if name in values}
        self.at_rest_c = now_c if at_rest_c is None else dict(at_rest_c)

    @classmethod
    def of_device(
        cls, backend: str, uuid: str | None, at_rest_c: Mapping[str, float] | None = None
    ) -> Settler:
        """Return a settler of the host and of a device."""
        here = os.getpid()
        sources = [HostSource(here), device_source(backend, uuid, here)]
        return cls(sources, at_rest_c=at_rest_c)

    def settle(self, limit_s: float) -> bool:
        """Wait, at most `limit_s`; return whether the device was quiet before the time was up."""
        deadline_s = self._clock() + limit_s
        quiet = 0
        while self._clock() < deadline_s:
            quiet = quiet + 1 if self._is_quiet(self._read()) else 0
            if quiet == _QUIET_READINGS:
                return True
            self._sleep(_POLL_S)
        return False

    def _read(self) -> dict[str, float]:
        values: dict[str, float] = {}
        for source in self._sources:
            values |= source.read().known
        return values

    def _is_quiet(self, values: dict[str, float]) -> bool:
        idle = all(values.get(name, 0.0) <= _IDLE_PERCENT for name in _LOADS)
        return idle and all(
            values.get(name, at_rest_c) <= at_rest_c + _COOL_C
            for name, at_rest_c in self.at_rest_c.items()
        )


#: FLOP of one sample's training step of a model, or None where it is unknown.
FlopsPerSample = Callable[[RunConfig], float | None]


class _Measured(NamedTuple):
    record: RunRecord
    environment: str
    whole_s: float  # from the worker's start to its end
    sample_s: float
    rest_s: float  # what is neither warm-up nor window


class Durations:
    """What those of `records` took that were measured whole."""

    def __init__(self, records: Iterable[RunRecord], flops_per_sample: FlopsPerSample) -> None:
        self._flops_per_sample = flops_per_sample
        self._past = [
            _Measured(
                record,
                environment_id(record.environment),
                process.real_s,
                measured.window_s / measured.samples,
                max(0.0, process.real_s - measured.window_s - sum(measured.warmup_times_s)),
            )
            for record in records
            if record.outcome == "ok" and record.environment
            if (measured := record.measurement) and (process := record.process)
        ]

    def of_all(
        self, runs: Sequence[RunConfig], environments: tuple[Environment, ...]
    ) -> tuple[float, int]:
        """Return the seconds of the runs whose time is known, and the number of the others."""
        times = [self.of(config, environment_of(config, environments)) for config in runs]
        known = [seconds for seconds in times if seconds is not None]
        return sum(known), len(times) - len(known)

    def of(self, config: RunConfig, environment: Environment) -> float | None:
        """Return the seconds that a run of `config` will take, or None where it is unknown."""
        here, config_id = environment_id(environment), config.config_id
        alike = [past for past in self._past if past.environment == here]
        exact = [past.whole_s for past in alike if past.record.config_id == config_id]
        if exact:
            return median(exact)
        alike = [
            past for past in alike if _same(past.record.config, config, "precision", "data_only")
        ]
        if not alike or config.batch_size == "auto":
            return None
        sample_s = self._sample_s(config, alike)
        if sample_s is None:
            return None
        batch_s = sample_s * config.batch_size * config.grad_accum_steps * config.world_size
        limits = TimeLimits.of(config, environment.device.backend)
        measured_s = limits.expected_warmup_s(batch_s) + limits.expected_window_s(batch_s)
        return measured_s + median(past.rest_s for past in alike)

    def _sample_s(self, config: RunConfig, alike: Sequence[_Measured]) -> float | None:
        names = ("arch", "image_size", "seq_len")
        same = [past.sample_s for past in alike if _same(past.record.config, config, *names)]
        if same:
            return median(same)
        flops = self._flops_per_sample(config)
        paces = [
            past.sample_s / past.record.complexity.step_flops_per_sample
            for past in alike
            if past.record.complexity is not None
        ]
        return flops * median(paces) if flops and paces else None


def _same(one: RunConfig, other: RunConfig, *names: str) -> bool:
    return all(getattr(one, name) == getattr(other, name) for name in names)
