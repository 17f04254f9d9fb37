"""What a step gains without a part of it: as measured by turns, and as its account has it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from analysis.account import HOST, StepAccount
from analysis.presentation.words import interval, ratio_digits, three_digits, times
from bench.records import Removal, RunRecord
from bench.records.base import ratio
from bench.records.metrics import data_wait_share, gain_of
from bench.records.profile import LOADER
from bench.statistics.ratios import RatioEstimate, repeats_of

#: What was taken out of steps, in words, and how its parts in an account begin.
_TAKEN_OUT: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "input": ("waiting for input", (LOADER,)),
    "sync": ("the exchange of gradients", ("communication",)),
    "host": ("garbage collection", (HOST, "device idle")),
}
#: As in a comparison a gain counts if all of its interval is above; ratios closer are alike.
_LEAST_GAIN = 0.02
#: An interval that ends higher may hold a gain.
_MAY_GAIN = 1.1


@dataclass(frozen=True)
class Gain:
    """The time of a step over that of one without a part of it, as measured and by the account.

    `measured` is None where it could not be taken out, `account` where there is none.
    """

    removal: Removal
    measured: RatioEstimate | None
    account: float | None

    @property
    def facts(self) -> dict[str, Any]:
        """Return it by the keys of columns and of JSON."""
        low, high = self.measured.ends if self.measured else (None, None)
        sides_ms = [repeats_of(s).centre * 1e3 if s else None
                    for s in (self.removal.with_s, self.removal.without_s)]  # fmt: skip
        return {
            **{"without": self.removal.what, "with_ms": sides_ms[0], "without_ms": sides_ms[1]},
            **{"gain": self.measured and self.measured.ratio, "gain_low": low, "gain_high": high},
            "account_gain": self.account,
            "note": self.removal.note or self.removal.missing.get("with_s"),
            "sentence": self.sentence,
        }

    @property
    def sentence(self) -> str:
        """What was measured, what the account said, and why they differ."""
        words = f"without {_TAKEN_OUT[self.removal.what][0]}"
        if self.measured is None:
            return f"{words}: not measured: {self.removal.missing['with_s']}"
        sides_s = (self.removal.with_s or (), self.removal.without_s or ())
        before, after = (three_digits(1e3 * repeats_of(times_s).centre) for times_s in sides_s)
        low, high = self.measured.interval or (0.0, math.inf)
        nothing = ""
        if low < 1 + _LEAST_GAIN:
            nothing = "nothing to gain: " if high < _MAY_GAIN else "nothing to gain that is sure: "
        gained = f"{ratio_digits(self.measured.ratio)} times, {interval(low, high)}"
        said = f"{words}: {nothing}{before} -> {after} ms a step ({gained})"
        said += "" if self.account is None else self._beside(self.account, low, high)
        return said if self.removal.note is None else f"{said}; {self.removal.note}"

    def _beside(self, account: float, low: float, high: float) -> str:
        if self.removal.what == "host":
            return f"; by the account without all of the host's work at most {times(account)}"
        said = f"; the account said {ratio_digits(account)}"
        if account > (1 + _LEAST_GAIN) * high:
            return f"{said}: without it the next limit appears"
        return f"{said}: it slows other parts too" if account * (1 + _LEAST_GAIN) < low else said


def gains_of(record: RunRecord, account: StepAccount | None) -> Iterator[Gain]:
    """Yield what a run gains without what was taken out of its steps, beside its account."""
    for removal in record.removals:
        claim = None
        if account is not None:
            names = _TAKEN_OUT[removal.what][1]
            part_s = sum(part.time_s for part in account.parts if part.name.startswith(names))
            claim = ratio(account.step_time_s, max(account.step_time_s - part_s, 0.0))
        elif (window := record.measurement) is not None:
            ranks = window.ranks.communication_share if window.ranks else None
            share = {"input": data_wait_share(window, None), "sync": ranks}.get(removal.what)
            claim = None if share is None else ratio(1.0, 1 - share)
        yield Gain(removal, gain_of(removal), claim)


def beside_each_other(a: Iterable[Gain], b: Iterable[Gain]) -> Iterator[str]:
    """Yield `without waiting for input: A 1.44 times, 1.39 to 1.48; B 1 times, 0.99 to 1.01`."""
    sides: dict[str, dict[str, str]] = {}
    for letter, gains in (("A", a), ("B", b)):
        for gain in gains:
            if gain.measured is not None:
                ends = gain.measured.interval
                words = f"{letter} {ratio_digits(gain.measured.ratio)} times"
                words += f", {interval(*ends)}" if ends else ""
                sides.setdefault(gain.removal.what, {})[letter] = words
    for what, words_of in sides.items():
        yield f"without {_TAKEN_OUT[what][0]}: {'; '.join(words_of.values())}"
