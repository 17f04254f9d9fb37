"""A sweep on this machine: one fresh worker after the other, taken up again where it was."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from pathlib import Path

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
from campaigns.sweep.local_devices import (
    Settlers,
    environment_of,
    exclusive,
    identify_machine,
)
from campaigns.sweep.past import PastRun, PastRuns
from campaigns.sweep.plan import Plan


class Sweep:
    """One campaign's plan on one machine."""

    def __init__(
        self,
        plan: Plan,
        campaign: str,
        environments: tuple[Environment, ...],
        records: Path,
        *,
        retry_failed: bool = False,
        elsewhere: Iterable[PastRun] = (),
    ) -> None:
        self._plan = plan
        self._environments = environments
        self._records = records
        self._retry_failed = retry_failed
        runs = list(elsewhere)
        self._past = {
            name: PastRuns(records, campaign, name, runs)
            for name in map(environment_id, environments)
        }

    def run(
        self, deliver: Deliver, watch: SweepWatch, settle: Callable[[Environment], None]
    ) -> Iterator[Turn]:
        """Measure what is not measured yet, in order; yield what became of each run.

        The record is on disk before `deliver` sees it. An interrupted run is the last.
        """
        for number, config in enumerate(self._plan.runs):
            environment = environment_of(config, self._environments)
            turn = self._earlier(config, environment)
            if turn is None:
                turn = self._measure(number, config, environment, deliver, watch, settle)
            watch.ended(turn)
            yield turn
            if turn.record is not None and turn.record.outcome == "interrupted":
                return

    def _measure(
        self,
        number: int,
        config: RunConfig,
        environment: Environment,
        deliver: Deliver,
        watch: SweepWatch,
        settle: Callable[[Environment], None],
    ) -> Turn:
        with exclusive(environment.device, lambda: watch.waiting(environment.device.name)):
            # Another sweep of this campaign may have measured it while we waited.
            if (turn := self._earlier(config, environment)) is not None:
                return turn
            settle(environment)
            watch.starting(number, config)
            folder = RecordFolder.create(self._records)
            record = launch_measurement(config, folder, watch.on_event)
            deliver(folder, record)
        return Turn.of(record)

    def _earlier(self, config: RunConfig, environment: Environment) -> Turn | None:
        """What an earlier run says of this one, or None if it has to be measured."""
        past = self._past[environment_id(environment)]
        past.refresh()
        return turn_before(config, past, self._retry_failed) or turn_too_large(config, past)


class LocalExecutor:
    """Measures one run after the other here; `env` labels this machine."""

    place = "this machine"

    def __init__(self, env: str) -> None:
        self.environments = identify_machine(env)
        self.backends: Collection[str] = {each.device.backend for each in self.environments}

    def sweep(
        self,
        order: SweepOrder,
        elsewhere: Iterable[PastRun],
        deliver: Deliver,
        watch: SweepWatch,
    ) -> Generator[Turn]:
        """Yield what became of each run, in the plan's order."""
        sweep = Sweep(
            order.plan,
            order.campaign,
            self.environments,
            order.records,
            retry_failed=order.retry_failed,
            elsewhere=elsewhere,
        )
        settlers = Settlers(self.environments, order.settle_s)
        yield from sweep.run(deliver, watch, settlers.settle)
