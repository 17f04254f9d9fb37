"""A sweep on this machine: one fresh worker after the other, taken up again where it was."""

from __future__ import annotations

from collections.abc import Collection, Generator

from bench.config import RunConfig
from bench.launcher.measurement import launch_measurement
from bench.records import Environment
from bench.records.environment import environment_id
from bench.records.folders import RecordFolder
from campaigns.sweep.executor import (
    Deliver,
    SweepOrder,
    SweepWatch,
    Turn,
    turn_before,
    turn_too_large,
)
from campaigns.sweep.local_devices import Settler, environment_of, exclusive
from campaigns.sweep.past import PastRuns


class LocalExecutor:
    """Measures one run after the other here; `environments` are this machine's."""

    place = "this machine"

    def __init__(self, environments: tuple[Environment, ...]) -> None:
        self.environments = environments
        self.backends: Collection[str] = {each.device.backend for each in environments}

    def sweep(self, order: SweepOrder, deliver: Deliver, watch: SweepWatch) -> Generator[Turn]:
        """Measure what is not measured yet, in order; yield what became of each run.

        The record is on disk before `deliver` sees it. An interrupted run is the last.
        """
        devices = [_SweptDevice(each, order) for each in self.environments]
        for number, config in enumerate(order.plan.runs):
            environment = environment_of(config, self.environments)
            device = devices[self.environments.index(environment)]
            turn = device.earlier(config) or device.measure(number, config, deliver, watch)
            watch.ended(turn)
            yield turn
            if turn.record is not None and turn.record.outcome == "interrupted":
                return


class _SweptDevice:
    """One device of this machine, and what the sweep's campaign has measured on it."""

    def __init__(self, environment: Environment, order: SweepOrder) -> None:
        self._device = environment.device
        self._order = order
        here = environment_id(environment)
        self._past = PastRuns(order.records, order.campaign, here, order.elsewhere)
        self._settler = Settler.of_device(self._device) if order.settle_s else None

    def earlier(self, config: RunConfig) -> Turn | None:
        """Return what an earlier run says of this one, or None if it has to be measured."""
        self._past.refresh()
        before = turn_before(config, self._past, self._order)
        return before or turn_too_large(config, self._past)

    def measure(self, number: int, config: RunConfig, deliver: Deliver, watch: SweepWatch) -> Turn:
        """Measure the run of this number once no other benchmark has the device."""
        with exclusive(self._device, lambda: watch.waiting(self._device.name)):
            # Another sweep of this campaign may have measured it while we waited.
            if (turn := self.earlier(config)) is not None:
                return turn
            if self._settler is not None:
                self._settler.settle(self._order.settle_s)
            watch.starting(number, config)
            folder = RecordFolder.create(self._order.records)
            record = launch_measurement(config, folder, watch.on_event)
            deliver(folder, record)
        return Turn.of(record)
