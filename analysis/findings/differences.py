"""What differs surely: a lower precision from fp32, and how much machines scatter."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from scipy import special

from analysis.comparison.judgement import METRICS, Comparison, compare_pairs
from analysis.findings.report_finding import ReportFinding, names_of, rate_of, ratio_of
from analysis.runs.groups import Group, batch_curves, cliff_of, group_runs, settings_key
from analysis.runs.quantities import as_fast_as, percent, three_digits
from analysis.runs.run import Run
from analysis.runs.what_ran import OF_PRECISION
from analysis.statistics import RatioEstimate
from bench.config import THROUGHPUT

BASELINE = "fp32"


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


#: What `amp` became where no device would choose it for its speed.
_AS_FP32 = "amp ran in fp32: this device has neither bf16 nor fp16 arithmetic"
_EMULATED = "emulated: this device has no such arithmetic"


def uplifts(runs: Sequence[Run]) -> list[Uplift]:
    """Return every configuration that was measured in fp32 and in another precision.

    They are judged as `mlproject compare` does, with p-values that are corrected for the number of
    configurations of a machine and precision. Also those where `amp` was asked for and fp32 or an
    emulation ran: without a comparison, since the device has no lower precision.
    """
    spilled: set[tuple[str, ...]] = set()
    groups: list[Group] = []
    for curve in batch_curves(runs):
        groups += curve
        place = cliff_of(curve)
        spilled |= {group.names for group in curve[place:]} if place is not None else set()
    baselines = {
        settings_key(group.first, OF_PRECISION): group
        for group in groups
        if group.first.precision == BASELINE
    }
    found = []
    rated: dict[tuple[str, str], list[Uplift]] = {}
    for group in groups:
        full = baselines.get(settings_key(group.first, OF_PRECISION))
        if full is None:
            continue
        past = group.names in spilled or full.names in spilled
        if group.first.precision == BASELINE:
            amp = tuple(run for run in group.runs if run.precision_label != BASELINE)
            if amp:
                found.append(Uplift(Group(amp), full, past, _AS_FP32))
        elif group.emulated and set(group.asked_for("precision")) == {"amp"}:
            found.append(Uplift(group, full, past, _EMULATED))
        else:
            one = Uplift(group, full, past, _EMULATED if group.emulated else None)
            rated.setdefault((group.env, group.precision), []).append(one)
    for alike in rated.values():
        judged = compare_pairs([(one.full, one.low) for one in alike], METRICS[THROUGHPUT])
        found += [replace(one, found=own) for one, own in zip(alike, judged, strict=True)]
    order = {group.names: place for place, group in enumerate(groups)}
    return sorted(found, key=lambda one: order.get(one.low.names, order[one.full.names]))


def find_precision_uplift(runs: Sequence[Run]) -> Iterator[ReportFinding]:
    """Yield one finding per machine, model and precision, over all its batch sizes."""
    series: dict[str, list[Uplift]] = {}
    for one in uplifts(runs):
        series.setdefault(one.low.series, []).append(one)
    for found in series.values():
        first = found[0].low
        names = names_of(group for one in found for group in (one.low, one.full))
        sound = [one for one in found if not one.spilled]
        rated = [(one, one.found) for one in sound if one.found is not None]
        what = f"{first.env}, {first.model_label}"
        if rated:
            ratios = [known.estimate.ratio for _, known in rated]
            undecided = sum(known.judgement == "undecided" for _, known in rated)
            verb = "is" if undecided < len(rated) else "measured"
            some = f"; {undecided} of {len(rated)} undecided" if undecided else ""
            doubt = some if verb == "is" else ", undecided"
            spilled = [one for one in found if one.spilled]
            past = ", ".join(f"{one.low.batch_size}" for one in spilled)
            note = f" Left out, as memory spilled there: batch {past}." if spilled else ""
            how = " (emulated)" if first.emulated else ""
            yield ReportFinding(
                kind="precision uplift",
                headline=(
                    f"{what}: {first.precision_label}{how} {verb} "
                    f"{as_fast_as(min(ratios), max(ratios))} {BASELINE}{doubt}.{note}"
                ),
                evidence=tuple(
                    f"batch {one.low.batch_size}: {known.word}, {ratio_of(known.estimate)}, "
                    f"{rate_of(one.low)} against {rate_of(one.full)}"
                    for one, known in rated
                ),
                runs=names,
            )
        elif sound:
            yield ReportFinding(
                kind="precision uplift",
                headline=f"{what}: no uplift of amp. {_sentence(sound[0].note)}",
                evidence=tuple(f"{one.low.label}: {rate_of(one.low)}" for one in sound),
                runs=names,
            )


def _sentence(note: str | None) -> str:
    return f"{note[:1].upper()}{note[1:]}." if note else ""


_LEVEL = 0.05
#: Degrees of freedom below which a deviation is hardly known.
_MIN_DEGREES = 4


@dataclass(frozen=True)
class Scatter:
    """The relative deviation between repeats of a machine, pooled over its configurations."""

    env: str
    place: str  # cloud, local or unknown
    deviation: float
    degrees: int
    groups: tuple[Group, ...]

    @property
    def label(self) -> str:
        """The machine, and where it stands if a record says so."""
        return self.env if self.place == "unknown" else f"{self.env} ({self.place})"


def scatters(runs: Sequence[Run]) -> list[Scatter]:
    """Return each machine's scatter, the steadiest first; machines without repeats are left out."""
    machines: dict[str, list[Group]] = {}
    for group in group_runs(runs):
        if group.repeats().log_variance is not None:
            machines.setdefault(group.first.env, []).append(group)
    found = []
    for env, groups in machines.items():
        repeats = [group.repeats() for group in groups]
        degrees = sum(one.count - 1 for one in repeats)
        squares = sum((one.count - 1) * (one.log_variance or 0.0) for one in repeats)
        deviation = math.sqrt(squares / degrees)
        found.append(Scatter(env, _place(groups[0].first), deviation, degrees, tuple(groups)))
    return sorted(found, key=lambda one: one.deviation)


def find_variability(runs: Sequence[Run]) -> Iterator[ReportFinding]:
    """Yield a finding where the least and the most steady machine surely differ.

    By an F-test of the two pooled variances, raised for the number of pairs that could have been
    chosen.
    """
    found = [one for one in scatters(runs) if one.degrees >= _MIN_DEGREES]
    if len(found) < 2 or not found[0].deviation:
        return
    steady, wild = found[0], found[-1]
    ratio = (wild.deviation / steady.deviation) ** 2
    pairs = len(found) * (len(found) - 1)
    p_value = pairs * float(special.fdtrc(wild.degrees, steady.degrees, ratio))
    if p_value >= _LEVEL:
        return
    yield ReportFinding(
        kind="variability",
        headline=(
            f"Repeats scatter {three_digits(math.sqrt(ratio))} times as much on {wild.label} "
            f"({percent(wild.deviation)}) as on {steady.label} ({percent(steady.deviation)})."
        ),
        evidence=tuple(
            f"{one.label}: SD {percent(one.deviation)} between repeats, pooled over "
            f"{len(one.groups)} configurations ({one.degrees} degrees of freedom)"
            for one in found
        ),
        runs=names_of(group for one in (steady, wild) for group in one.groups),
        advice=(
            f"On {wild.label} a difference needs to be larger, or measured more often, to be one."
        ),
    )


def _place(run: Run) -> str:
    environment = run.record.environment if run.record else None
    if environment is None or environment.cloud_provider is None:
        return "unknown"
    provider = environment.cloud_provider
    return "local" if provider == "none" else f"cloud, {provider}"
