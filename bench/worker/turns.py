"""Takes suspects out of the steps of a loop, one after the other, each by turns.

Of a script on several ranks rank 0 measures, and the others take the same turns: what it plans they
read in the store that torch keeps for its process group. All count the calls of optimizers.
"""

from __future__ import annotations

import json
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any
from weakref import WeakKeyDictionary

import torch

from bench.errors import UserError
from bench.records import Measurement, OpProfile, Removal
from bench.records.journal import Clock
from bench.records.measurement import Removable
from bench.records.metrics import data_wait_share
from bench.records.profile import COMMUNICATION, LOADER
from bench.training.devices import Device
from bench.training.window import Around
from bench.worker.rank_meter import RankMeter
from bench.worker.removal import (
    PREPARING,
    Collector,
    Exchange,
    Loaders,
    Suspect,
    asked_for_batches,
)
from bench.worker.script_model import Training

#: Steps of a turn at least, and pairs of turns.
_STEPS, _MOST_PAIRS, _FEWEST_PAIRS = 10, 30, 3
#: Steps after a switch before one is timed, and until when a thread's batches are awaited.
_SETTLING, _MOST_SETTLING = 2, 200
#: Of the step's time, what `auto` takes out.
_LEAST_SHARE = 0.05
#: Calls of optimizers after which the other ranks look for a plan. Rank 0 is one step ahead at most
#: or behind, and waits for several times as many before what it plans begins.
_LOOK_EACH, _BEGIN_AFTER = 8, 24
_PLAN, _FOLLOWS = "mlproject turns", "mlproject follows {}"
#: The exchange first: ranks that differ in what else they can do without must not differ in it.
_IN_ORDER: tuple[Removable, ...] = ("sync", "input", "host")


@dataclass
class Turns:
    """Turns of a suspect, and what they have measured: the mean step of each, in seconds."""

    what: Removable
    steps: int
    pairs: int
    settle: int = _SETTLING
    until_s: float | None = None  # it then ends after a pair; of several ranks all take all turns
    with_s: list[float] = field(default_factory=list)
    without_s: list[float] = field(default_factory=list)
    note: str | None = None
    why_not: str = "the script ended before two pairs of turns"

    def __str__(self) -> str:
        how = f"{self.pairs} pairs of {self.steps} steps each" if self.pairs else self.why_not
        return f"by turns without {self.what}: {how}"

    def removal(self) -> Removal:
        """Return what was measured, of whole pairs."""
        pairs = min(len(self.with_s), len(self.without_s))
        if pairs < 2:
            return Removal.of(self.why_not, what=self.what)
        sides = {"with_s": self.with_s[:pairs], "without_s": self.without_s[:pairs]}
        how = {"what": self.what, "steps": self.steps, "note": self.note}
        return Removal.of("nothing to add", **how, **sides)

    def taken(self, suspect: Suspect, device: Device, clock: Clock) -> Around[None]:
        """Yield where steps run while `suspect` is taken out of them and put back."""
        loaders = suspect if isinstance(suspect, Loaders) else Loaders(device.torch_device)
        with asked_for_batches(loaders.give):
            try:
                yield from loaders.preparing(keeps=loaders is suspect)
                for pair in range(self.pairs):
                    if self.until_s and pair >= _FEWEST_PAIRS and clock() > self.until_s:
                        break
                    for out, times_s in ((False, self.with_s), (True, self.without_s)):
                        suspect.switch(out=out)
                        times_s.append((yield from self._turn(loaders, device, clock)))
            finally:
                suspect.switch(out=False)
            suspect.put_right()
        self.note = suspect.note

    def _turn(self, loaders: Loaders, device: Device, clock: Clock) -> Around[float]:
        """Yield where the steps of a turn run; return the mean of those that are like most."""
        for settled in range(_MOST_SETTLING):
            if settled >= self.settle and not (self.until_s and loaders.is_held_up):
                break
            yield
            loaders.stepped()
        loaders.begin()
        device.synchronize()
        timer, usual = device.timer(clock), list[bool]()
        timer.mark()
        while len(usual) < self.steps:
            yield
            timer.mark()
            usual.append(loaders.stepped())
        device.synchronize()
        timed_s = timer.times_s()
        return fmean([s for s, is_usual in zip(timed_s, usual, strict=True) if is_usual] or timed_s)


def planned(
    names: Iterable[Removable],
    each_s: float,
    step_s: float,
    workers: int,
    begin_s: float | None = None,
) -> list[Turns]:
    """Return the turns of each suspect, which take at most `each_s` seconds at `step_s` a step.

    A turn has as many batches of each of a loader's `workers`. From `begin_s` on they end by the
    clock.
    """
    plan, each = list[Turns](), max(workers, 1)
    steps, settle = math.ceil(_STEPS / each) * each, _SETTLING + workers
    pair_s, before_s = 2 * (steps + settle) * step_s, 2 * PREPARING * step_s
    for number, what in enumerate(names, 1):
        pairs = min(int((each_s - before_s) / pair_s), _MOST_PAIRS)
        until_s = None if begin_s is None else begin_s + number * each_s
        plan.append(Turns(what, steps, pairs, settle, until_s))
        if pairs < _FEWEST_PAIRS:
            needed_s, plan[-1].pairs = _FEWEST_PAIRS * pair_s + before_s, 0
            plan[-1].why_not = (
                f"its turns need {needed_s:.0f} s, and {each_s:.0f} s are left: give a larger "
                "--seconds"
            )
    return plan


def taking_out(
    plan: Sequence[Turns],
    device: Device,
    optimizers: Iterable[torch.optim.Optimizer],
    clock: Clock = time.perf_counter,
    place: Callable[[], tuple[int, int]] | None = None,
) -> Around[None]:
    """Yield where steps run; what cannot be taken out of them says why.

    Of a script on several ranks `place` says how many calls of optimizers there were, and the
    number of the one that ends a step.
    """
    for turns in plan:
        try:
            if place is not None:
                yield from _announced(plan, place)
                place = None
            if turns.pairs:
                suspect = _suspect(turns.what, device.torch_device, optimizers)
                yield from turns.taken(suspect, device, clock)
        except UserError as error:
            turns.why_not = f"{error}"


def _suspect(
    what: Removable, device: torch.device, optimizers: Iterable[torch.optim.Optimizer]
) -> Suspect:
    if what == "sync":
        return Exchange(optimizers)
    return Loaders(device) if what == "input" else Collector(device)


def _announced(plan: Sequence[Turns], place: Callable[[], tuple[int, int]]) -> Around[None]:
    """Tell the other ranks what is planned, and yield until it begins."""
    store, ranks = _store(), range(1, torch.distributed.get_world_size())
    if not store.check([_FOLLOWS.format(rank) for rank in ranks]):
        raise UserError("not all ranks of the script run under this watch")
    calls, leader = place()
    begin = calls + _BEGIN_AFTER * (leader + 1)
    shared = {"begin": begin, "leader": leader, "turns": [asdict(turns) for turns in plan]}
    store.set(_PLAN, json.dumps(shared))
    while place()[0] < begin:
        yield


def _store() -> Any:
    return torch.distributed.distributed_c10d._get_default_store()


def to_take_out(asked: str, measured: Measurement | None, ops: OpProfile | None) -> list[Removable]:
    """Return what is `asked` for, of `auto` what at least 5 % of a step are spent with."""
    shares: dict[str, float | None] = {"input": data_wait_share(measured, ops)}
    if measured is not None and measured.ranks is not None:
        shares["sync"] = measured.ranks.communication_share
    if ops is not None:
        sums_s: defaultdict[str, float] = defaultdict(float)
        for op in ops.ops:
            sums_s[op.label if op.label in (COMMUNICATION, LOADER) else ""] += op.exclusive_s
        waits_s = max(sums_s[LOADER], ops.data_wait_s or 0.0)
        shares["sync"] = sums_s[COMMUNICATION] / ops.step_time_s
        shares["host"] = 1 - (sums_s[""] + sums_s[COMMUNICATION] + waits_s) / ops.step_time_s
    names = asked.split(",")
    if "auto" in names:
        names += [what for what, share in shares.items() if (share or 0.0) >= _LEAST_SHARE]
    return [what for what in _IN_ORDER if what in names]


class Follower(RankMeter):
    """Another rank of a script that is watched, which takes rank 0's turns too."""

    def __init__(self, folder: Path, *, by_function: bool) -> None:
        super().__init__(folder, by_function=by_function)
        self._order: WeakKeyDictionary[torch.optim.Optimizer, int] = WeakKeyDictionary()
        self._calls = 0
        self._plan: dict[str, Any] | None = None
        self._steps: Around[None] | None = None

    def after(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        """Note that an optimizer's step has ended."""
        super().after(optimizer)
        number = self._order.setdefault(optimizer, len(self._order))
        if not self._by_function:
            self._take_part(number)

    def stepped(self) -> None:
        """Note the end of a step; it is a call of the script's function if that says it."""
        super().stepped()
        if self._by_function:
            self._take_part(0)

    def _take_part(self, ended: int) -> None:
        """Take the turns that rank 0 plans; the step of an optimizer, by its number, has ended."""
        self._calls += 1
        rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
        if rank and self._plan is None and self._calls % _LOOK_EACH == 0:
            store = _store()
            store.set(_FOLLOWS.format(rank), "")
            self._plan = json.loads(store.get(_PLAN)) if store.check([_PLAN]) else None
        plan = self._plan
        if plan is not None and self._calls >= plan["begin"] and ended == plan["leader"]:
            if self._steps is None:
                turns = [Turns(**turns) for turns in plan["turns"]]
                self._steps = taking_out(turns, Training(self._order).open_device(), self._order)
            self.has_ended = next(self._steps, self) is self
