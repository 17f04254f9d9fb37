"""A sweep on this machine: one fresh worker after the other, taken up again where it was.

Where the matrix asks for them the device's roofs come first. A profile of a configuration comes
after its first run without a doubt.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import replace
from pathlib import Path

from bench.config import RunConfig
from bench.launcher.device_lock import device_names, exclusive
from bench.launcher.measurement import find_ceilings, launch_ceilings, launch_measurement
from bench.launcher.profile import TOOLS, launch_profile, obstacle_to
from bench.launcher.watch import TimeLimit
from bench.records import (
    CeilingsRecord,
    Environment,
    ProfileRecord,
    RunRecord,
    ToolName,
)
from bench.records.environment import environment_id
from bench.records.folders import RecordFolder
from bench.records.journal import OnEvent
from campaigns.sweep.executor import Deliver, SweepOrder, SweepWatch, Turn, turn_before
from campaigns.sweep.local_devices import Settler, environment_of
from campaigns.sweep.plan import PastRuns, Plan, campaign_records


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
        limit = TimeLimit(order.deadline_s, watch.on_event)
        devices = [_SweptDevice(here, order, deliver, watch) for here in self.environments]
        for config in order.plan.runs:
            device = devices[self.environments.index(environment_of(config, self.environments))]
            turn = device.earlier(config)
            if turn is None and not limit.is_over:
                turn = device.measure(config, limit.on_event)
            if turn is None or (limit.passed and turn.outcome == "interrupted"):
                turn = Turn(config, "left over", None, "time was up", None)
            yield turn
            if turn.record is not None and turn.record.outcome == "interrupted":
                return
            if turn.outcome == "ok" and not limit.is_over:
                device.profile(config)


class _SweptDevice:
    """One device of this machine, and what the sweep's campaign has measured on it."""

    def __init__(
        self, environment: Environment, order: SweepOrder, deliver: Deliver, watch: SweepWatch
    ) -> None:
        self._environment, self._device = environment, environment.device
        self._order, self._deliver, self._watch = order, deliver, watch
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

    def measure(self, config: RunConfig, on_event: OnEvent) -> Turn:
        """Measure a run once no other benchmark has the device."""
        with exclusive(device_names(config.backend, config.devices), self._watch.waiting):
            # Another sweep of this campaign may have measured it while we waited.
            if (turn := self.earlier(config)) is not None:
                return turn
            if self._settler is not None:
                self._settler.settle(self._order.settle_s)
            self._watch.starting(config)
            folder = RecordFolder.create(self._order.records)
            record = launch_measurement(config, folder, on_event)
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
) -> dict[str, CeilingsRecord]:
    """Return the roofs of each backend, measured where `records` holds none of its device."""
    roofs = {}
    for backend in backends:
        record = find_ceilings(records, backend)
        if record is None:
            with exclusive(device_names(backend), waiting):
                folder = RecordFolder.create(records)
                record = launch_ceilings(backend, folder, on_event)
                deliver(folder, record)
        roofs[backend] = record
    return roofs


def in_precisions(
    plan: Plan, roofs: Mapping[str, CeilingsRecord], environments: tuple[Environment, ...]
) -> Plan:
    """Return the plan without the runs in a precision that their device does not have."""
    have = {backend: precisions(record) for backend, record in roofs.items()}
    runs = (
        run
        for run in plan.runs
        if run.precision in have[environment_of(run, environments).device.backend]
    )
    return replace(plan, runs=tuple(runs))


def precisions(ceilings: CeilingsRecord) -> tuple[str, ...]:
    """Return the precisions of a device, by the arithmetic that its roofs were measured in.

    Each arithmetic once: `amp` is bf16 where there is bf16; `amp-fp16` is then listed too. A 16-bit
    arithmetic that multiplies no faster than fp32 is emulated: `amp` is fp32 again where both are,
    and `amp-fp16` would take most of the time.
    """
    peaks = {ceiling.math_mode: ceiling.peak_flops_per_s or 0.0 for ceiling in ceilings.ceilings}
    least = _NATIVE_GAIN * peaks.get("fp32", 0.0)
    native = {"bf16", "fp16"} & {mode for mode, peak in peaks.items() if peak > least}
    of_halves = ("amp", "amp-fp16")[: len(native)]
    return ("fp32", *(["tf32"] if "tf32" in peaks else []), *of_halves)
