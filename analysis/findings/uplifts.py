"""How much faster a lower precision is than fp32, as surely as the runs show it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from analysis.comparison.judgement import METRICS, Comparison, compare_pairs
from analysis.runs.frame import Row
from analysis.runs.groups import Configurations, Group, names_of
from analysis.runs.run import Run
from analysis.runs.settings import OF_PRECISION, Key
from analysis.statistics import RatioEstimate
from analysis.words import as_fast_as
from bench.config import THROUGHPUT

BASELINE = "fp32"
#: What `amp` became where no device would choose it for its speed.
_AS_FP32 = "amp ran in fp32: this device has neither bf16 nor fp16 arithmetic"
_EMULATED = "emulated: this device has no such arithmetic"


@dataclass(frozen=True)
class Uplift:
    """A lower precision against fp32 in one configuration; `spilled` if either is past a cliff.

    Without a comparison, `note` says why: the precision was not the one asked for.
    """

    low: Group
    full: Group
    spilled: bool
    note: str | None = None
    found: Comparison | None = None

    @property
    def estimate(self) -> RatioEstimate | None:
        """How many times as fast as fp32 it is."""
        return self.found.estimate if self.found else None


def in_fp32(groups: Iterable[Group]) -> dict[Key, Group]:
    """Return the groups that ran in fp32 by the settings that all precisions have."""
    return {
        group.identity.key(OF_PRECISION): group for group in groups if group.precision == BASELINE
    }


def uplifts(runs: Sequence[Run]) -> list[Uplift]:
    """Return every configuration that was measured in fp32 and in another precision.

    They are judged as `mlproject compare` does, with p-values that are corrected for the number of
    configurations of a machine and precision. Also those where `amp` was asked for and fp32 or an
    emulation ran: without a comparison, since the device has no lower precision.
    """
    runs = Configurations.of(runs)
    groups, spilled = [group for curve in runs.curves for group in curve], runs.spilled
    full = in_fp32(groups)
    pairs: list[tuple[Group, Group, str | None]] = []
    rated: dict[tuple[str, str], list[tuple[Group, Group]]] = {}
    for group in groups:
        if (base := full.get(group.identity.key(OF_PRECISION))) is None:
            continue
        if group.precision == BASELINE:
            amp = tuple(run for run in group.runs if run.precision_label != BASELINE)
            pairs += [(Group(amp), base, _AS_FP32)] if amp else []
            continue
        pairs.append((group, base, _EMULATED if _emulated(group) else None))
        if not (_emulated(group) and set(group.identity.asked_for("precision")) == {"amp"}):
            rated.setdefault((group.env, group.precision), []).append((base, group))
    compared = [
        one for alike in rated.values() for one in compare_pairs(alike, METRICS[THROUGHPUT])
    ]
    found = {one.b.names: one for one in compared}
    return [
        Uplift(low, base, bool(spilled & {low.names, base.names}), note, found.get(low.names))
        for low, base, note in pairs
    ]


def _emulated(group: Group) -> bool:
    """Whether the device has no such arithmetic, and a library stands in for it."""
    resolved = group.first.record.resolved if group.first.record else None
    return resolved is not None and not resolved.native_math


def uplift_rows(runs: Configurations) -> Iterator[Row]:
    """Yield each machine, model and precision, over all batch sizes that no spill touched."""
    series: dict[str, list[Uplift]] = {}
    for one in uplifts(runs):
        series.setdefault(one.low.series, []).append(one)
    for found in series.values():
        first = found[0].low
        sound = [one for one in found if not one.spilled]
        if not sound:
            continue
        rated = [one.found for one in sound if one.found is not None]
        note = sound[0].note or ""
        yield {
            "machine": first.env,
            "series": f"{first.env}, {first.model_label}",
            "says": _from_to(rated, found) if rated else f"no uplift of amp. {note.capitalize()}.",
            "runs": names_of(group for one in found for group in (one.low, one.full)),
        }


def _from_to(rated: Sequence[Comparison], found: Sequence[Uplift]) -> str:
    """From where to where, and how sure."""
    first = rated[0].b
    ratios = [one.estimate.ratio for one in rated]
    undecided = sum(one.judgement == "undecided" for one in rated)
    verb, doubt = "is", f"; {undecided} of {len(rated)} undecided" if undecided else ""
    if undecided == len(rated):
        verb, doubt = "measured", ", undecided"
    past = ", ".join(f"{one.low.batch_size}" for one in found if one.spilled)
    note = f" Left out, as memory spilled there: batch {past}." if past else ""
    how = " (emulated)" if _emulated(first) else ""
    speed = as_fast_as(min(ratios), max(ratios))
    return f"{first.precision_label}{how} {verb} {speed} {BASELINE}{doubt}.{note}"
