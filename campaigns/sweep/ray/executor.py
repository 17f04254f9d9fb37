"""A sweep on the nodes of a Ray cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from pathlib import Path

from bench.records import Environment
from campaigns.sweep.executor import SweepOrder
from campaigns.sweep.past_run import PastRun
from campaigns.sweep.ray.cluster import connected, quiet
from campaigns.sweep.run import Deliver, SweepWatch, Turn

#: What a cluster may get though no node has it yet; no cloud makes Macs on demand.
_ON_DEMAND = {"cpu", "cuda"}


class RayExecutor:
    """Distributes runs over the nodes of the cluster at `address`; `env` labels all of them.

    `note` is told what befalls nodes. A run waits `node_wait_s` for a node with its device.
    """

    place = "the cluster"
    backends: Collection[str] = ()
    environments: tuple[Environment, ...] = ()

    def __init__(
        self, address: str, env: str, *, node_wait_s: float, note: Callable[[str], None]
    ) -> None:
        self._address = address
        self._env = env
        self._node_wait_s = node_wait_s
        self._note = note

    @contextlib.contextmanager
    def connected(self, campaign: str, records: Path) -> Iterator[RayExecutor]:
        """Be connected, and know what the living nodes have. Raises `UserError`."""
        with connected(self._address, campaign):
            from campaigns.sweep.ray.fleet import Fleet

            self._fleet = Fleet(self._env, campaign, records, self._note)
            self._fleet.meet()
            found = (each for node in self._fleet.nodes.values() for each in node.environments)
            self.backends = {*_ON_DEMAND, *(each.device.backend for each in found)}
            yield self

    def sweep(
        self,
        order: SweepOrder,
        elsewhere: Iterable[PastRun],
        deliver: Deliver,
        watch: SweepWatch,
    ) -> Generator[Turn]:
        """Yield what became of each run, as it ends."""
        from campaigns.sweep.ray.sweep import RaySweep

        sweep = RaySweep(
            order, elsewhere, self._fleet, note=self._note, node_wait_s=self._node_wait_s
        )
        with quiet():  # `note` says it in one line
            yield from sweep.run(deliver, watch)
