"""The probes of one roof against each other, and the rates each has shown."""

from __future__ import annotations

from dataclasses import dataclass, field

from bench.records import CeilingSample
from bench.roofs.probe import Launch, Probe
from bench.roofs.rule import sustained_rate

#: A probe whose best repetition is this far under the leader's is given up, after its second.
_GIVEN_UP_BELOW = 0.9


@dataclass
class Entrant:
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


@dataclass
class Contest:
    """Who competes for one roof; `notes` say why a probe gave no rate."""

    title: str
    entrants: list[Entrant]
    notes: list[str] = field(default_factory=list)

    @property
    def best_rate(self) -> float:
        """The fastest repetition of any probe; 0 before the first."""
        return max((rate for entrant in self.entrants for rate in entrant.rates), default=0.0)

    @property
    def leader(self) -> Entrant | None:
        """The live probe of the highest sustained rate."""
        measured = [entrant for entrant in self.entrants if entrant.launch and entrant.rates]
        return max(measured, key=lambda entrant: sustained_rate(entrant.rates), default=None)

    def give_up_slower(self) -> None:
        """End the probes that two repetitions have shown to be far behind."""
        limit = _GIVEN_UP_BELOW * self.best_rate
        for entrant in self.entrants:
            if len(entrant.rates) >= 2 and max(entrant.rates) < limit:
                entrant.give_up()

    def samples(self) -> list[CeilingSample]:
        """Every probe that was measured, with its raw rates."""
        return [
            CeilingSample(
                probe=entrant.probe.name,
                math_mode=entrant.probe.math_mode,
                quantity=entrant.probe.quantity,
                rates=tuple(entrant.rates),
            )
            for entrant in self.entrants
            if entrant.rates
        ]
