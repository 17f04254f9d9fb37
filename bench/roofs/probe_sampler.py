"""When each probe is measured: all are tried, the slower given up, the rest repeated in turn.

Probes of every roof take turns, so that heat, clocks and neighbours' loads fall on all alike.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import psutil
import torch

from bench.records import CeilingSample
from bench.records.journal import Clock
from bench.roofs.roof_probes import (
    MINIMUM_REPETITIONS,
    Launch,
    Probe,
    set_arithmetic,
    sustained_rate,
)
from bench.training.devices import Device

#: A probe whose best repetition is this far under the leader's is given up, after its second.
_GIVEN_UP_BELOW = 0.9


@dataclass
class Candidate:
    """A probe and its repetitions; `launch` is None before its start and when it is given up."""

    probe: Probe
    launch: Launch | None = None
    launches: int = 1  # of one repetition
    rates: list[float] = field(default_factory=list)
    waiting: bool = True

    @property
    def live(self) -> bool:
        """Whether it still takes turns."""
        return self.waiting or self.launch is not None

    def give_up(self) -> None:
        """Take no more turns, and free the operands."""
        self.launch, self.waiting = None, False

    def sample(self, addition: str, rates: Iterable[float]) -> CeilingSample:
        """Return these rates as the probe's, with `addition` to its name."""
        return CeilingSample(
            probe=self.probe.name + addition,
            math_mode=self.probe.math_mode,
            quantity=self.probe.quantity,
            rates=tuple(rates),
        )


class ProbeGroup:
    """The probes of one roof; `notes` say why a probe gave no rate."""

    def __init__(self, title: str, probes: Iterable[Probe], *notes: str) -> None:
        self.title = title
        self.candidates = [Candidate(probe) for probe in probes]
        self.notes = list(notes)
        self.alone: CeilingSample | None = None

    @property
    def best_rate(self) -> float:
        """The fastest repetition of any probe; 0 before the first."""
        return max((rate for candidate in self.candidates for rate in candidate.rates), default=0.0)

    @property
    def leader(self) -> Candidate | None:
        """The live probe of the highest sustained rate."""
        measured = [one for one in self.candidates if one.launch and one.rates]
        return max(measured, key=lambda one: sustained_rate(one.rates), default=None)

    def give_up_slower(self) -> None:
        """End the probes that two repetitions have shown to be far behind."""
        limit = _GIVEN_UP_BELOW * self.best_rate
        for candidate in self.candidates:
            if len(candidate.rates) >= 2 and max(candidate.rates) < limit:
                candidate.give_up()

    def samples(self) -> list[CeilingSample]:
        """Every probe that was measured, with its raw rates; not what was repeated alone."""
        return [one.sample("", one.rates) for one in self.candidates if one.rates]


def free_bytes(device: Device) -> int:
    """Return the bytes that can be allocated, what torch's own cache holds included."""
    if device.backend == "cuda":
        free, _ = torch.cuda.mem_get_info(device.torch_device)
        reserved = torch.cuda.memory_reserved(device.torch_device)
        return int(free + reserved - torch.cuda.memory_allocated(device.torch_device))
    if device.backend == "mps":
        return int(torch.mps.recommended_max_memory() - torch.mps.current_allocated_memory())
    available = int(psutil.virtual_memory().available)
    limit = device.info().memory_bytes  # a container's may be far below the machine's
    if limit is None:
        return available
    return max(0, min(available, limit - int(psutil.Process().memory_info().rss)))


#: A single launch longer than this, at the best rate reached so far, costs too many repetitions.
_LONGEST_LAUNCH_S = 0.25
_MOST_LAUNCHES = 2**16
#: Of what is repeated alone, the part that counts: clocks have followed the power limit by then.
_LAST_S = 1.0


class ProbeSampler:
    """Gives the probes of all groups their turns on one device until the time is spent."""

    def __init__(
        self, device: Device, clock: Clock, group_s: float, progress: Callable[[str], None]
    ) -> None:
        self._device = device
        self._clock = clock
        self._group_s = group_s
        self._progress = progress

    def sample(self, groups: Sequence[ProbeGroup], budget_s: float) -> None:
        """Fill `groups` with rates. The leaders' least repetitions may exceed `budget_s`."""
        deadline = self._clock() + budget_s
        for number in itertools.count(1):
            for group, candidate in _in_turn(groups):
                # However short the time, each roof gets one probe to repeat.
                if self._clock() < deadline or (candidate.waiting and not group.best_rate):
                    self._turn(group, candidate)
            standing = [
                f"{group.title} {_rate_text(leader.probe, sustained_rate(leader.rates))}"
                for group in groups
                if (leader := group.leader)
            ]
            if self._clock() >= deadline or not standing:
                break
            self._progress(f"round {number}: {', '.join(standing)}")
        for group in groups:
            for candidate in group.candidates:
                if candidate.waiting:
                    self._leave_out(group, candidate, "the time was spent")
            while (leader := group.leader) and len(leader.rates) < MINIMUM_REPETITIONS:
                self._turn(group, leader)

    def sustain(self, group: ProbeGroup, seconds: float) -> None:
        """Repeat the group's leader alone for `seconds` and keep the rates of the last second.

        Among probes that take turns each has rested, or followed one that took less power.
        """
        leader = group.leader
        if leader is None or leader.launch is None:
            return
        set_arithmetic(leader.probe.math_mode)
        begin_s, kept = self._clock(), list[tuple[float, float]]()
        while (now_s := self._clock()) < begin_s + seconds:
            repetition_s = self._seconds(leader.launch, leader.launches)
            kept.append((now_s, leader.launches * leader.probe.work_per_launch / repetition_s))
        last = (rate for at_s, rate in kept if at_s >= now_s - _LAST_S)
        group.alone = leader.sample(f", alone for {seconds:g} s", last)
        rate = sustained_rate(group.alone.rates)
        self._progress(f"{group.alone.probe}: {_rate_text(leader.probe, rate)}")

    def _turn(self, group: ProbeGroup, candidate: Candidate) -> None:
        try:
            if candidate.waiting:
                self._start(group, candidate)
            elif candidate.launch is not None:
                set_arithmetic(candidate.probe.math_mode)
                self._keep(candidate, self._seconds(candidate.launch, candidate.launches))
        except (RuntimeError, MemoryError) as error:  # out of memory, or not implemented there
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            self._leave_out(group, candidate, reason)
        group.give_up_slower()

    def _start(self, group: ProbeGroup, candidate: Candidate) -> None:
        """Warm the probe up, find how many launches make a repetition, and keep the first."""
        probe = candidate.probe
        candidate.waiting = False
        if group.best_rate and probe.work_per_launch > _LONGEST_LAUNCH_S * group.best_rate:
            self._leave_out(group, candidate, f"one launch takes over {_LONGEST_LAUNCH_S} s")
            return
        if probe.operand_bytes > free_bytes(self._device) // 4:
            self._leave_out(group, candidate, "its operands need over a quarter of free memory")
            return
        set_arithmetic(probe.math_mode)
        candidate.launch = probe.prepare()
        seconds = self._seconds(candidate.launch, 1)
        while seconds < self._group_s / 2 and candidate.launches < _MOST_LAUNCHES:
            wanted = math.ceil(candidate.launches * self._group_s / max(seconds, 1e-9))
            candidate.launches = min(max(wanted, 2 * candidate.launches), _MOST_LAUNCHES)
            seconds = self._seconds(candidate.launch, candidate.launches)
        self._keep(candidate, seconds)
        self._progress(f"{probe.name}: {_rate_text(probe, candidate.rates[0])}")

    def _keep(self, candidate: Candidate, seconds: float) -> None:
        candidate.rates.append(candidate.launches * candidate.probe.work_per_launch / seconds)

    def _seconds(self, launch: Launch, launches: int) -> float:
        """Time `launches` after one that is not timed, the device idle at both ends."""
        launch()
        self._device.synchronize()
        start = self._clock()
        for _ in range(launches):
            launch()
        self._device.synchronize()
        return self._clock() - start

    def _leave_out(self, group: ProbeGroup, candidate: Candidate, reason: str) -> None:
        candidate.give_up()
        note = f"{candidate.probe.name} left out: {reason}"
        group.notes.append(note)
        self._progress(note)


def _in_turn(groups: Sequence[ProbeGroup]) -> Iterator[tuple[ProbeGroup, Candidate]]:
    lanes = [[(group, one) for one in group.candidates if one.live] for group in groups]
    for row in itertools.zip_longest(*lanes):
        yield from filter(None, row)


def _rate_text(probe: Probe, rate: float) -> str:
    return f"{rate / 1e9:.1f} {'GFLOP/s' if probe.quantity == 'flops_per_s' else 'GB/s'}"
