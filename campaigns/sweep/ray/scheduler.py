"""Measures a plan on the nodes of a cluster, each run once on whichever node is free for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone

from bench.config import RunConfig
from bench.launcher.measurement import finish, unmeasured
from bench.records import Environment, RunRecord
from bench.records.folders import RecordFolder, new_record_id
from bench.records.journal import Event
from campaigns.sweep.local import (
    Deliver,
    SweepOrder,
    SweepWatch,
    Turn,
    turn_before,
    turn_too_large,
)
from campaigns.sweep.plan import PastRun, PastRuns
from campaigns.sweep.ray.cluster_nodes import Finished, Node, NodePool
from campaigns.sweep.ray.record_transfer import ArchiveError, unpack

#: A run during which so many nodes were lost may be what ends them.
_MAX_ATTEMPTS = 3
_TICK_S = 1.0
#: Wait after Ctrl-C for the last records; a worker has 20 s to write what it measured.
_LAST_RECORDS_S = 40.0


@dataclass
class PlannedRun:
    """One run of the plan, how often it was started, and what it was last started on."""

    number: int
    config: RunConfig
    attempts: int = 0
    environment: Environment | None = None


#: The records of a finished task, on disk, and why the run has none that counts.
Arrival = tuple[PlannedRun | None, list[tuple[RecordFolder, RunRecord]], str | None]


@dataclass
class RaySweep:
    """One campaign's plan on the nodes of a cluster.

    A run is the same one on whatever node it is measured: a plan is distributed over the nodes,
    not repeated on each.
    """

    order: SweepOrder
    deliver: Deliver
    watch: SweepWatch
    nodes: NodePool
    note: Callable[[str], None]
    node_wait_s: float

    def __post_init__(self) -> None:
        order = self.order
        self._past = PastRuns(
            order.records, order.campaign, None, order.elsewhere, order.retry_failed
        )
        self._waiting = [PlannedRun(*numbered) for numbered in enumerate(order.plan.runs)]
        self._started: dict[str, PlannedRun] = {}  # by record identifier
        self._finished = 0
        self._seen: object = None
        self._without_s: dict[str, float] = {}  # since when no node has had a backend

    def run(self) -> Iterator[Turn]:
        """Measure what is not measured yet; yield what became of each run, as it ends.

        The record is on disk before `deliver` sees it. Ctrl-C ends all workers, yields the runs
        that this interrupted, and is raised again.
        """
        try:
            for turn in self._turns():
                self.watch.ended(turn)
                yield turn
        except KeyboardInterrupt:
            for turn in self._interrupted():
                self.watch.ended(turn)
                yield turn
            raise
        finally:
            self.nodes.cancel()

    def _turns(self) -> Iterator[Turn]:
        # What nodes kept of an earlier sweep, first: it need not be measured.
        yield from self._wait(0.0)
        while self._waiting or self._started:
            self.nodes.refresh()
            seen = (tuple(self.nodes.nodes), self.nodes.identifying, self._finished)
            if seen != self._seen:
                self._seen = seen
                yield from self._measured_before()
                self._place()
                self._request_nodes()
            yield from self._left_over()
            if self._waiting or self._started:
                yield from self._wait(_TICK_S)
                self.watch.on_event(Event("tick", time.perf_counter(), {}))

    def _wait(self, timeout_s: float) -> Iterator[Turn]:
        """Wait for records, at most so long, and take them in."""
        arrivals = [self._take_in(finished) for finished in self.nodes.wait(timeout_s)]
        turns = [self._turn(arrival) for arrival in arrivals]
        if any(run for run, _, _ in arrivals):
            # Nodes that are free go on while the records of the runs before are uploaded.
            self._place()
        for _, arrived, _ in arrivals:
            for folder, record in arrived:
                self.deliver(folder, record)
        yield from (turn for turn in turns if turn is not None)

    def _measured_before(self) -> Iterator[Turn]:
        """Runs that were measured, or would not fit any device of their kind."""
        self._past.refresh()
        for run in list(self._waiting):
            turn = turn_before(run.config, self._past, self.order) or self._too_large(run)
            if turn is not None:
                self._waiting.remove(run)
                yield turn

    def _too_large(self, run: PlannedRun) -> Turn | None:
        """A skip, where every node that has the device would run out of memory."""
        if self.nodes.identifying:  # one with more of it, perhaps
            return None
        devices = {environment.device.name for _, environment in self._able(run.config)}
        turns = [turn_too_large(run.config, self._past, device) for device in devices]
        return turns[0] if turns and all(turns) else None

    def _able(self, config: RunConfig) -> list[tuple[Node, Environment]]:
        """The nodes that have what `config` asks for."""
        found = [(node, node.environment_of(config)) for node in self.nodes.nodes.values()]
        return [(node, environment) for node, environment in found if environment is not None]

    def _place(self) -> None:
        """Start what a free node can measure, in the plan's order."""
        for run in list(self._waiting):
            for node, environment in self._able(run.config):
                if node.is_free_for(run.config, environment) and not turn_too_large(
                    run.config, self._past, environment.device.name
                ):
                    self._waiting.remove(run)
                    self._start(run, node, environment)
                    break

    def _start(self, run: PlannedRun, node: Node, environment: Environment) -> None:
        self.watch.starting(run.number, run.config)
        run.attempts += 1
        record_id = new_record_id()
        run.environment = environment
        self._started[record_id] = run
        self.nodes.start(record_id, node, run.config, environment, self.order.settle_s)

    def _request_nodes(self) -> None:
        """Have an autoscaler add machines where no node has what runs wait for."""
        missing = {"cpu": 0, "cuda": 0}
        if not self.nodes.identifying:
            for run in self._waiting:
                if not self._able(run.config):
                    missing["cuda" if run.config.backend == "cuda" else "cpu"] += 1
        for kind, count in missing.items():
            self.nodes.request_nodes(kind, count)

    def _left_over(self) -> Iterator[Turn]:
        """Runs that no node has been able to measure for too long."""
        now_s = time.monotonic()
        for backend in {run.config.backend for run in self._waiting}:
            runs = [run for run in self._waiting if run.config.backend == backend]
            if self.nodes.identifying or any(self._able(run.config) for run in runs):
                self._without_s.pop(backend, None)
            elif backend not in self._without_s:
                self._without_s[backend] = now_s
                self.note(f"no node has {backend}: waiting at most {self.node_wait_s:.0f} s")
            elif now_s - self._without_s[backend] >= self.node_wait_s:
                self._waiting = [run for run in self._waiting if run not in runs]
                why = f"no node had {backend} for {self.node_wait_s:.0f} s"
                yield from (Turn(run.config, "left over", None, why, None) for run in runs)

    def _take_in(self, finished: Finished) -> Arrival:
        """Write what arrived to disk and note that it is measured."""
        run = self._started.pop(finished.record_id) if finished.record_id is not None else None
        self._finished += 1
        arrived = []
        lost = finished.lost
        for archive in finished.archives:
            try:
                arrived.append(unpack(archive, self.order.records))
            except ArchiveError as error:
                lost = str(error)
                self.note(f"node {finished.node_name}: {error}")
        if run is not None and finished.out_of_memory:
            arrived.append(self._out_of_memory(run, f"node {finished.node_name}: {lost}"))
        for _, record in arrived:
            if record.outcome == "interrupted":
                lost = lost or record.reason
            self._past.add(PastRun.of(record))
        return run, arrived, lost

    def _out_of_memory(self, run: PlannedRun, why: str) -> tuple[RecordFolder, RunRecord]:
        """The record of a run that Ray's memory monitor ended: no process was left to write it."""
        folder = RecordFolder.create(self.order.records)
        folder.write(folder.config, run.config)
        blank = unmeasured(run.config, folder, "oom", why, datetime.now(timezone.utc))
        found = blank.replaced(environment=run.environment)
        return folder, finish(folder, found, why, process=None, telemetry=None)

    def _turn(self, arrival: Arrival) -> Turn | None:
        """The turn of a run that has ended; one whose node was lost waits again."""
        run, arrived, lost = arrival
        if run is None:
            return None
        for _, record in arrived:
            if record.outcome != "interrupted":
                return Turn.of(record)
        if run.attempts < _MAX_ATTEMPTS:
            self.note(f"{run.config.arch} bs{run.config.batch_size} starts again: {lost}")
            self._waiting.insert(0, run)
            return None
        why = f"started {run.attempts} times, the last time: {lost}"
        return Turn(run.config, "left over", None, why, None)

    def _interrupted(self) -> Iterator[Turn]:
        """End all workers and take in what they had measured."""
        self.nodes.cancel()
        deadline_s = time.monotonic() + _LAST_RECORDS_S
        while self._started and time.monotonic() < deadline_s:
            for run, arrived, _ in map(self._take_in, self.nodes.wait(_TICK_S)):
                for folder, record in arrived:
                    self.deliver(folder, record)
                    if run is not None:
                        yield Turn.of(record)
