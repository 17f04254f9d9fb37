"""A sweep on this machine."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable

from campaigns.sweep.executor import SweepOrder
from campaigns.sweep.machine import identify_machine
from campaigns.sweep.past_run import PastRun
from campaigns.sweep.run import Deliver, Sweep, SweepWatch, Turn
from campaigns.sweep.settle import Settlers


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
