"""Measures a plan on the nodes of a cluster, each run once on whichever node is free for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from bench.config import RunConfig
from bench.records import Environment
from bench.records.folders import new_record_id
from bench.records.journal import Event
from campaigns.sweep.executor import SweepOrder
from campaigns.sweep.past import PastRuns
from campaigns.sweep.past_run import PastRun
from campaigns.sweep.ray.fleet import Fleet, Landing
from campaigns.sweep.ray.home import Flight, Home, Landed, Run
from campaigns.sweep.ray.nodes import Node
from campaigns.sweep.run import Deliver, SweepWatch, Turn, turn_before, turn_too_large

#: A run that so many nodes were lost under may be what ends them.
_ATTEMPTS = 3
_TICK_S = 1.0
#: A worker has 20 s to write what it measured; so long is waited for the records after Ctrl-C.
_FAREWELL_S = 40.0


class RaySweep:
    """One campaign's plan on a fleet.

    A run is the same one on whatever node it is measured: a plan is distributed over the nodes,
    not repeated on each.
    """

    def __init__(
        self,
        order: SweepOrder,
        elsewhere: Iterable[PastRun],
        fleet: Fleet,
        *,
        note: Callable[[str], None],
        node_wait_s: float,
    ) -> None:
        self._fleet = fleet
        self._note = note
        self._node_wait_s = node_wait_s
        self._retry_failed = order.retry_failed
        self._settle_s = order.settle_s
        self._past = PastRuns(order.records, order.campaign, None, elsewhere)
        self._home = Home(order.records, self._past, note)
        self._waiting = [Run(number, config) for number, config in enumerate(order.plan.runs)]
        self._flights: dict[str, Flight] = {}
        self._landings = 0
        self._seen: object = None
        self._without_s: dict[str, float] = {}  # since when no node has had a backend

    def run(self, deliver: Deliver, watch: SweepWatch) -> Iterator[Turn]:
        """Measure what is not measured yet; yield what became of each run, as it ends.

        The record is on disk before `deliver` sees it. Ctrl-C ends all workers, yields the runs
        that this interrupted, and is raised again.
        """
        try:
            for turn in self._turns(deliver, watch):
                watch.ended(turn)
                yield turn
        except KeyboardInterrupt:
            for turn in self._interrupted(deliver):
                watch.ended(turn)
                yield turn
            raise
        finally:
            self._fleet.cancel()

    def _turns(self, deliver: Deliver, watch: SweepWatch) -> Iterator[Turn]:
        # What nodes kept of an earlier sweep, first: it need not be measured.
        yield from self._wait(0.0, deliver, watch)
        while self._waiting or self._flights:
            self._fleet.refresh()
            seen = (tuple(self._fleet.nodes), self._fleet.asking, self._landings)
            if seen != self._seen:
                self._seen = seen
                yield from self._need_no_measuring()
                self._place(watch)
                self._call_for_nodes()
            yield from self._left_over()
            if self._waiting or self._flights:
                yield from self._wait(_TICK_S, deliver, watch)
                watch.on_event(Event("tick", time.perf_counter(), {}))

    def _wait(self, timeout_s: float, deliver: Deliver, watch: SweepWatch) -> Iterator[Turn]:
        """Wait for records, at most so long, and take them in."""
        landed = [self._land(landing) for landing in self._fleet.wait(timeout_s)]
        turns = [self._turn(each) for each in landed]
        if any(each.flight for each in landed):
            # Nodes that are free go on while the records of the runs before are uploaded.
            self._place(watch)
        for each in landed:
            for folder, record in each.records:
                deliver(folder, record)
        yield from (turn for turn in turns if turn is not None)

    def _need_no_measuring(self) -> Iterator[Turn]:
        """Runs that were measured, or would not fit any device of their kind."""
        self._past.refresh()
        for run in list(self._waiting):
            turn = turn_before(run.config, self._past, self._retry_failed) or self._too_large(run)
            if turn is not None:
                self._waiting.remove(run)
                yield turn

    def _too_large(self, run: Run) -> Turn | None:
        """A skip, where every node that has the device would run out of memory."""
        if self._fleet.asking:  # one with more of it, perhaps
            return None
        devices = {environment.device.name for _, environment in self._able(run.config)}
        turns = [turn_too_large(run.config, self._past, device) for device in devices]
        return turns[0] if turns and all(turns) else None

    def _able(self, config: RunConfig) -> list[tuple[Node, Environment]]:
        """The nodes that have what `config` asks for."""
        found = [(node, node.environment_of(config)) for node in self._fleet.nodes.values()]
        return [(node, environment) for node, environment in found if environment is not None]

    def _place(self, watch: SweepWatch) -> None:
        """Start what a free node can measure, in the plan's order."""
        for run in list(self._waiting):
            for node, environment in self._able(run.config):
                if node.is_free_for(run.config, environment) and not turn_too_large(
                    run.config, self._past, environment.device.name
                ):
                    self._waiting.remove(run)
                    self._start(run, node, environment, watch)
                    break

    def _start(self, run: Run, node: Node, environment: Environment, watch: SweepWatch) -> None:
        watch.starting(run.number, run.config)
        run.attempts += 1
        key = new_record_id()
        self._flights[key] = Flight(run, environment)
        self._fleet.fly(key, node, run.config, environment, self._settle_s)

    def _call_for_nodes(self) -> None:
        """Have an autoscaler add machines where no node has what runs wait for."""
        calls = {"cpu": 0, "cuda": 0}
        if not self._fleet.asking:
            for run in self._waiting:
                if not self._able(run.config):
                    calls["cuda" if run.config.backend == "cuda" else "cpu"] += 1
        for kind, count in calls.items():
            self._fleet.call_for(kind, count)

    def _left_over(self) -> Iterator[Turn]:
        """Runs that no node has been able to measure for too long."""
        now_s = time.monotonic()
        for backend in {run.config.backend for run in self._waiting}:
            runs = [run for run in self._waiting if run.config.backend == backend]
            if self._fleet.asking or any(self._able(run.config) for run in runs):
                self._without_s.pop(backend, None)
            elif backend not in self._without_s:
                self._without_s[backend] = now_s
                self._note(f"no node has {backend}: waiting at most {self._node_wait_s:.0f} s")
            elif now_s - self._without_s[backend] >= self._node_wait_s:
                self._waiting = [run for run in self._waiting if run not in runs]
                why = f"no node had {backend} for {self._node_wait_s:.0f} s"
                yield from (Turn(run.config, "left over", None, why, None) for run in runs)

    def _land(self, landing: Landing) -> Landed:
        flight = self._flights.pop(landing.key) if landing.key is not None else None
        self._landings += 1
        return self._home.take_in(landing, flight)

    def _turn(self, landed: Landed) -> Turn | None:
        """The turn of a run that is through; one that its node was lost under waits again."""
        if landed.flight is None:
            return None
        for _, record in landed.records:
            if record.outcome != "interrupted":
                return Turn.of(record)
        run = landed.flight.run
        if run.attempts < _ATTEMPTS:
            self._note(f"{run.config.arch} bs{run.config.batch_size} starts again: {landed.lost}")
            self._waiting.insert(0, run)
            return None
        why = f"started {run.attempts} times, the last time: {landed.lost}"
        return Turn(run.config, "left over", None, why, None)

    def _interrupted(self, deliver: Deliver) -> Iterator[Turn]:
        """End all workers and take home what they had measured."""
        self._fleet.cancel()
        deadline_s = time.monotonic() + _FAREWELL_S
        while self._flights and time.monotonic() < deadline_s:
            for landed in map(self._land, self._fleet.wait(_TICK_S)):
                for folder, record in landed.records:
                    deliver(folder, record)
                    if landed.flight is not None:
                        yield Turn.of(record)
