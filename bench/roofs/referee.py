"""Who measures when: all probes are tried, the slower given up, the rest repeated in turn.

Probes of every roof take turns, so that heat, clocks and neighbours' loads fall on all alike.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

from bench.records.journal import Clock
from bench.roofs.arithmetic import set_arithmetic
from bench.roofs.contest import Contest, Entrant
from bench.roofs.memory import free_bytes
from bench.roofs.probe import Launch, rate_text
from bench.roofs.rule import MINIMUM_REPETITIONS, sustained_rate
from bench.training.devices import Device

#: A single launch longer than this, at the best rate reached so far, costs too many repetitions.
_LONGEST_LAUNCH_S = 0.25
_MOST_LAUNCHES = 2**16


class Referee:
    """Gives the probes of all contests their turns on one device until the time is spent."""

    def __init__(
        self,
        device: Device,
        clock: Clock,
        group_s: float,
        progress: Callable[[str], None],
    ) -> None:
        self._device = device
        self._clock = clock
        self._group_s = group_s
        self._progress = progress

    def hold(self, contests: Sequence[Contest], budget_s: float) -> None:
        """Fill `contests` with rates. The leaders' least repetitions may exceed `budget_s`."""
        deadline = self._clock() + budget_s
        for number in itertools.count(1):
            for contest, entrant in _in_turn(contests):
                # However short the time, each roof gets one probe to repeat.
                if self._clock() < deadline or (entrant.waiting and not contest.best_rate):
                    self._turn(contest, entrant)
            standing = [_standing(each.title, each.leader) for each in contests if each.leader]
            if self._clock() >= deadline or not standing:
                break
            self._progress(f"round {number}: {', '.join(standing)}")
        for contest in contests:
            for entrant in contest.entrants:
                if entrant.waiting:
                    self._leave_out(contest, entrant, "the time was spent")
            while (leader := contest.leader) and len(leader.rates) < MINIMUM_REPETITIONS:
                self._turn(contest, leader)

    def _turn(self, contest: Contest, entrant: Entrant) -> None:
        try:
            if entrant.waiting:
                self._start(contest, entrant)
            elif entrant.launch is not None:
                set_arithmetic(entrant.probe.math_mode)
                self._keep(entrant, self._seconds(entrant.launch, entrant.launches))
        except (RuntimeError, MemoryError) as error:  # out of memory, or not implemented there
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            self._leave_out(contest, entrant, reason)
        contest.give_up_slower()

    def _start(self, contest: Contest, entrant: Entrant) -> None:
        """Warm the probe up, find how many launches make a repetition, and keep the first."""
        probe = entrant.probe
        entrant.waiting = False
        if contest.best_rate and probe.work_per_launch > _LONGEST_LAUNCH_S * contest.best_rate:
            self._leave_out(contest, entrant, f"one launch takes over {_LONGEST_LAUNCH_S} s")
            return
        if probe.operand_bytes > free_bytes(self._device) // 4:
            self._leave_out(contest, entrant, "its operands need over a quarter of free memory")
            return
        set_arithmetic(probe.math_mode)
        entrant.launch = probe.prepare()
        seconds = self._seconds(entrant.launch, 1)
        while seconds < self._group_s / 2 and entrant.launches < _MOST_LAUNCHES:
            wanted = math.ceil(entrant.launches * self._group_s / max(seconds, 1e-9))
            entrant.launches = min(max(wanted, 2 * entrant.launches), _MOST_LAUNCHES)
            seconds = self._seconds(entrant.launch, entrant.launches)
        self._keep(entrant, seconds)
        self._progress(f"{probe.name}: {rate_text(entrant.rates[0], probe.quantity)}")

    def _keep(self, entrant: Entrant, seconds: float) -> None:
        entrant.rates.append(entrant.launches * entrant.probe.work_per_launch / seconds)

    def _seconds(self, launch: Launch, launches: int) -> float:
        """Time `launches` after one that is not timed, the device idle at both ends."""
        launch()
        self._device.synchronize()
        start = self._clock()
        for _ in range(launches):
            launch()
        self._device.synchronize()
        return self._clock() - start

    def _leave_out(self, contest: Contest, entrant: Entrant, reason: str) -> None:
        entrant.give_up()
        note = f"{entrant.probe.name} left out: {reason}"
        contest.notes.append(note)
        self._progress(note)


def _in_turn(contests: Sequence[Contest]) -> Iterator[tuple[Contest, Entrant]]:
    """The first live probe of every contest, then the second of every contest, and so on."""
    lanes = [[(each, entrant) for entrant in each.entrants if entrant.live] for each in contests]
    for row in itertools.zip_longest(*lanes):
        yield from (pair for pair in row if pair is not None)


def _standing(title: str, leader: Entrant) -> str:
    return f"{title} {rate_text(sustained_rate(leader.rates), leader.probe.quantity)}"
