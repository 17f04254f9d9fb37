"""Takes suspects out of the steps of a loop, one after the other, each by turns.

Of a script on several ranks rank 0 measures, and the others take the same turns: what it plans they
read in the store that torch keeps for its process group. All count the calls of optimizers.
"""

from __future__ import annotations

import json
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
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
from bench.worker.removal import PREPARING, SETTLING, Collector, Exchange, Loaders, Suspect
from bench.worker.script_model import Training

#: Steps of a turn: where as many fit, and where time is short. And pairs of turns.
_MANY_STEPS, _FEW_STEPS = 20, 10
_MOST_PAIRS, _FEWEST_PAIRS = 30, 3
#: Of the step's time, what `auto` takes out.
LEAST_SHARE = 0.05
#: Calls of optimizers after which the other ranks look for a plan. Rank 0 is one step ahead at most
#: or behind, and waits for several times as many before what it plans begins.
_LOOK_EACH, _BEGIN_AFTER = 8, 24


@dataclass
class Turns:
    """Turns of a suspect, and what they have measured: the mean step of each, in seconds.

    With a number of steps to `settle` after each switch all ranks of a job take the same turns.
    """

    what: Removable
    steps: int
    pairs: int
    settle: int | None = None
    until_s: float = math.inf  # then it ends after a pair, if it has as many as it needs
    with_s: list[float] = field(default_factory=list)
    without_s: list[float] = field(default_factory=list)
    note: str | None = None

    @classmethod
    def within(
        cls, what: Removable, left_s: float, step_s: float, workers: int, *, alone: bool = True
    ) -> Turns:
        """Plan the turns of `left_s` seconds; each has as many batches of every loader process.

        Raises `UserError` where the time is too short.
        """
        each = max(workers, 1)
        many = left_s > _MOST_PAIRS * 2 * _MANY_STEPS * step_s
        steps = math.ceil((_MANY_STEPS if many else _FEW_STEPS) / each) * each
        settle = SETTLING + 4 * workers  # until processes are ahead, twice over
        of_pair = 2 * (steps + settle) if not alone else 2 * (steps + SETTLING) + 3 * workers
        pairs = int(left_s / step_s - 2 * PREPARING) // of_pair
        if pairs < _FEWEST_PAIRS:
            needed_s = (_FEWEST_PAIRS * of_pair + 2 * PREPARING) * step_s
            raise UserError(
                f"its turns need {needed_s:.0f} s, and {left_s:.0f} s are left: give a larger "
                "--seconds"
            )
        return cls(what, steps, min(pairs, _MOST_PAIRS), None if alone else settle)

    def __str__(self) -> str:
        return f"by turns without {self.what}: {self.pairs} pairs of {self.steps} steps each"

    def removal(self) -> Removal:
        """Return what was measured, of whole pairs."""
        pairs = min(len(self.with_s), len(self.without_s))
        if pairs < 2:
            return Removal.of("the script ended before two pairs of turns", what=self.what)
        sides = {"with_s": self.with_s[:pairs], "without_s": self.without_s[:pairs]}
        how = {"steps": self.steps, "note": self.note}
        return Removal.of("nothing to add", what=self.what, **how, **sides)

    def taken(
        self, suspect: Suspect, loaders: Loaders, device: Device, clock: Clock
    ) -> Around[None]:
        """Yield where a step of a turn runs."""
        for pair in range(self.pairs):
            if pair >= _FEWEST_PAIRS and clock() > self.until_s:
                break
            for out, times_s in ((False, self.with_s), (True, self.without_s)):
                suspect.switch(out=out)
                settled = 0
                while (
                    suspect.is_settling(settled) if self.settle is None else settled < self.settle
                ):
                    yield
                    loaders.stepped()
                    settled += 1
                suspect.begin()
                device.synchronize()
                timer, usual = device.timer(clock), list[bool]()
                timer.mark()
                while len(usual) < self.steps:
                    yield
                    timer.mark()
                    usual.append(loaders.stepped())
                device.synchronize()
                timed_s = timer.times_s()
                alike_s = [s for s, is_usual in zip(timed_s, usual, strict=True) if is_usual]
                times_s.append(fmean(alike_s or timed_s))
        self.note = suspect.note


def named_by_account(measured: Measurement | None, ops: OpProfile | None) -> list[Removable]:
    """Return what a step spends at least 5 % of its time with, as far as can be known."""
    shares: dict[Removable, float | None] = {"input": data_wait_share(measured, ops)}
    if ops is not None:
        sums_s: defaultdict[str, float] = defaultdict(float)
        for op in ops.ops:
            sums_s[op.label if op.label in (COMMUNICATION, LOADER) else ""] += op.exclusive_s
        waits_s = max(sums_s[LOADER], ops.data_wait_s or 0.0)
        shares["sync"] = sums_s[COMMUNICATION] / ops.step_time_s
        shares["host"] = 1 - (sums_s[""] + sums_s[COMMUNICATION] + waits_s) / ops.step_time_s
    return [what for what, share in shares.items() if share is not None and share >= LEAST_SHARE]


def suspects_of(
    asked: str,
    device: Device,
    optimizers: Iterable[torch.optim.Optimizer],
    account: Callable[[], Iterable[Removable]],
    input_of: Callable[[torch.device], Suspect] = Loaders,
) -> dict[Removable, Callable[[], Suspect]]:
    """Return what makes each suspect that is `asked` for, of `auto` those that `account` names."""
    known: dict[Removable, Callable[[], Suspect]] = {
        "input": lambda: input_of(device.torch_device),
        "sync": lambda: Exchange(optimizers),
        "host": lambda: Collector(device.torch_device),
    }
    words = asked.split(",")
    names = {*words, *(account() if "auto" in words else ())}
    return {what: make for what, make in known.items() if what in names}


def taken_out(suspect: Suspect, turns: Turns, device: Device, clock: Clock) -> Around[None]:
    """Yield where steps run while `suspect` is taken out of them and put back."""
    loaders = suspect if isinstance(suspect, Loaders) else Loaders(device.torch_device)
    with loaders.watched():
        try:
            if loaders is not suspect:
                with suppress(UserError):  # then no loader tells a validation from a step
                    yield from loaders.preparing(keeps=False)
            yield from suspect.preparing()
            yield from turns.taken(suspect, loaders, device, clock)
        finally:
            suspect.switch(out=False)
        suspect.put_right()


@dataclass
class Removals:
    """What is taken out of the steps of a loop whose pace is `step_s`, until `deadline_s`.

    Of several ranks `place` says how many calls of optimizers there were, and which ends a step.
    """

    device: Device
    deadline_s: float
    step_s: float
    workers: int
    say: Callable[[str], object]
    place: Callable[[], tuple[int, int]] | None = None
    clock: Clock = time.perf_counter
    most: Callable[[float], float] | None = None  # of ranks that all take turns by themselves
    found: dict[Removable, Callable[[], Removal]] = field(default_factory=dict)
    _plans: int = 0

    def taking_out(self, suspects: Mapping[Removable, Callable[[], Suspect]]) -> Around[None]:
        """Yield where steps run; what cannot be taken out says why."""
        if not suspects:
            self.say("nothing is taken out: the account names no part of 5 % or more that can be")
        for number, (what, make) in enumerate(suspects.items()):
            left_s = (self.deadline_s - self.clock()) / (len(suspects) - number)
            try:
                suspect, alone = make(), self.place is None and self.most is None
                left_s = self.most(left_s) if self.most else left_s
                turns = Turns.within(what, left_s, self.step_s, self.workers, alone=alone)
                turns.until_s = self.clock() + left_s if alone else math.inf
                self.found[what] = turns.removal
                self.say(f"{turns}")
                yield from self._with_others(turns)
                yield from taken_out(suspect, turns, self.device, self.clock)
            except UserError as error:
                self.found[what] = partial(Removal.of, str(error), what=what)
            while self._plans and not _all_have(f"{self._plans} done"):
                yield

    def _with_others(self, turns: Turns) -> Around[None]:
        """Tell the other ranks what begins, and yield until it does."""
        if self.place is None:
            return
        if not _all_have("follows"):
            raise UserError("not all ranks of the script run under this watch")
        calls, leader = self.place()
        begin = calls + _BEGIN_AFTER * (leader + 1)
        plan = {"begin": begin, "leader": leader, "turns": asdict(turns)}
        self._plans += 1
        _store().set(f"mlproject {self._plans} plan", json.dumps(plan))
        while self.place()[0] < begin:
            yield


def _store() -> Any:
    return torch.distributed.distributed_c10d._get_default_store()


def _all_have(what: str) -> bool:
    """Whether every other rank has set a key."""
    ranks = range(1, torch.distributed.get_world_size())
    return bool(_store().check([f"mlproject {what} {rank}" for rank in ranks]))


class Follower:
    """Another rank of a script that is watched; torch's hooks call `before` and `after`."""

    is_timing, has_ended = True, False

    def __init__(self, *, by_function: bool) -> None:
        self._by_function = by_function  # a step ends where a function of the script returns
        self._clock = time.perf_counter
        self._order: WeakKeyDictionary[torch.optim.Optimizer, int] = WeakKeyDictionary()
        self._calls, self._number = 0, 1
        self._plan: dict[str, Any] | None = None
        self._steps: Around[None] | None = None

    def before(self, *_: object) -> None:
        """Note nothing: that an optimizer's step begins."""

    def after(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        """Note that it has ended."""
        number = self._order.setdefault(optimizer, len(self._order))
        if not self._by_function:
            self.stepped(number)

    def stepped(self, ended: int = 0) -> None:
        """Note the end of the step of an optimizer, by its number."""
        self._calls += 1
        rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
        if rank and self._plan is None and self._calls % _LOOK_EACH == 0:
            store, key = _store(), f"mlproject {self._number} plan"
            store.set(f"mlproject follows {rank}", "")
            self._plan = json.loads(store.get(key)) if store.check([key]) else None
        plan = self._plan
        if plan is None or self._calls < plan["begin"] or ended != plan["leader"]:
            return
        try:
            self._steps = self._steps or self._following(Turns(**plan["turns"]))
            next(self._steps)
        except (StopIteration, UserError):
            _store().set(f"mlproject {self._number} done {rank}", "")
            self._plan, self._steps, self._number = None, None, self._number + 1

    def _following(self, turns: Turns) -> Around[None]:
        device = Training(self._order).open_device()
        make = suspects_of(turns.what, device, self._order, list)[turns.what]
        yield from taken_out(make(), turns, device, self._clock)

    def close(self, *_: object) -> None:
        """Leave the loop as it is."""
