"""What a step gains without a part of it: as measured by turns, and as its account has it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from analysis.account import HOST, StepAccount
from analysis.presentation.columns import Row
from analysis.presentation.words import interval, ratio_digits, three_digits, times
from bench.records import Removal, RunRecord
from bench.records.base import ratio
from bench.records.metrics import data_wait_share, gain_of
from bench.records.profile import LOADER
from bench.statistics.ratios import repeats_of

#: What was taken out of steps, in words, and how its parts in an account begin.
_TAKEN_OUT: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "input": ("waiting for input", (LOADER,)),
    "sync": ("the exchange of gradients", ("communication",)),
    "host": ("garbage collection", (HOST, "device idle")),
}
#: As in a comparison a gain counts if all of its interval is above; ratios closer are alike.
_LEAST_GAIN = 1.02
#: An interval that ends higher may hold a gain.
_MAY_GAIN = 1.05


def gains_of(record: RunRecord, account: StepAccount | None) -> Iterator[Row]:
    """Yield what a run gains without what was taken out of its steps, by the keys of columns.

    `gain` is the time of a step over that of one without a part of it, `account_gain` the same by
    the account; None where that part could not be taken out, or without an account.
    """
    for removal in record.removals:
        gain = gain_of(removal)
        sides_s = removal.with_s, removal.without_s
        with_ms, without_ms = (times_s and 1e3 * repeats_of(times_s).centre for times_s in sides_s)
        low, high = gain.ends if gain else (None, None)
        facts = {
            **{"without": removal.what, "with_ms": with_ms, "without_ms": without_ms},
            **{"gain": gain and gain.ratio, "gain_low": low, "gain_high": high},
            "account_gain": _by_account(removal, record, account),
            "note": removal.note or removal.missing.get("with_s"),
        }
        yield {**facts, "sentence": _sentence(facts)}


def _by_account(removal: Removal, record: RunRecord, account: StepAccount | None) -> float | None:
    if account is not None:
        names = _TAKEN_OUT[removal.what][1]
        part_s = sum(part.time_s for part in account.parts if part.name.startswith(names))
        return ratio(account.step_time_s, max(account.step_time_s - part_s, 0.0))
    share = data_wait_share(record.measurement, None) if removal.what == "input" else None
    if removal.what == "sync" and record.measurement and record.measurement.ranks:
        share = record.measurement.ranks.communication_share
    return None if share is None else ratio(1.0, 1 - share)


def _sentence(facts: Row) -> str:
    """What was measured, what the account said, and why they differ."""
    keys = ("gain", "gain_low", "gain_high", "account_gain", "with_ms", "without_ms", "note")
    gain, low, high, claim, with_ms, without_ms, note = (facts[key] for key in keys)
    said = f"without {_TAKEN_OUT[facts['without']][0]}: "
    if gain is None:
        return f"{said}not measured: {note}"
    if low < _LEAST_GAIN:
        said += "nothing to gain: " if high < _MAY_GAIN else "nothing to gain that is sure: "
    said += f"{three_digits(with_ms)} -> {three_digits(without_ms)} ms a step "
    said += f"({ratio_digits(gain)} times, {interval(low, high)})"
    if claim is not None and facts["without"] == "host":
        said += f"; by the account without all of the host's work at most {times(claim)}"
    elif claim is not None:
        said += f"; the account said {ratio_digits(claim)}"
        if claim > _LEAST_GAIN * high:
            said += ": without it the next limit appears"
        elif claim * _LEAST_GAIN < low:
            said += ": it slows other parts too"
    return f"{said}; {note}" if note else said
