"""What a tuning says in a few lines: the best setting, its speed-up, the roof, the caveats."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from analysis.runs.points import Refusal, RooflinePoint, roofline_point
from analysis.runs.quantities import three_digits
from bench.config import FILING_FIELDS, WINDOW_FIELDS, run_options
from bench.records import CeilingsRecord, RunRecord
from campaigns.tune.result import Effect, TuneResult
from campaigns.tune.stopping_rule import Interval

Place = RooflinePoint | Refusal
#: Ratios that scatter more hide a gain of 5 % from two or three pairs.
_QUIET = 0.03


def best_record(result: TuneResult) -> RunRecord:
    """Return the best setting's median run, of the confirmation where there was one."""
    best = [t for t in result.trials if t.config_id == result.best.config_id]
    whole = [trial for trial in best if trial.images_per_s is not None]
    fresh = [trial for trial in whole if trial.stage == "confirmation"] or whole
    ordered = sorted(fresh, key=lambda trial: trial.images_per_s or 0.0)
    return ordered[(len(ordered) - 1) // 2].record


def place_best(result: TuneResult, ceilings: Sequence[CeilingsRecord]) -> Place:
    """Return where the best setting stands under its device's roof, or why that is not known."""
    return roofline_point(best_record(result), ceilings)


def best_command(result: TuneResult) -> str:
    """Return the command line that runs the best setting."""
    options = run_options(result.best, leave_out=FILING_FIELDS | WINDOW_FIELDS)
    return shlex.join(["mlproject", "run", *options])


def verdict_line(result: TuneResult) -> str:
    """Return what the fresh runs say of the best setting against the start, in one sentence."""
    effect = result.confirmed
    if effect is None:
        return f"no speed-up confirmed: {result.unconfirmed}"
    found = f"{times(effect.interval)} in {len(effect.ratios)} fresh rounds"
    if effect.confirmed:
        return f"speed-up over the start: {found}"
    return f"not confirmed as faster than the start: {found}"


def roof_line(place: Place) -> str:
    """Return the distance to the roof in one sentence."""
    if isinstance(place, Refusal):
        return f"distance to the roof unknown: {place.reason}"
    low, high = place.fraction_of_roof_min, place.fraction_of_roof_max
    span = f"{low:.2f}" if f"{low:.2f}" == f"{high:.2f}" else f"{low:.2f} to {high:.2f}"
    attained = place.attained_flops_per_s / 1e9
    attainable = place.attainable_max_flops_per_s / 1e9
    return (
        f"{span} of the roof: {three_digits(attained)} of {three_digits(attainable)} GFLOP/s "
        f"attainable; bound {place.bound}{'' if place.bound_sure else ' (unsure)'}"
    )


def times(interval: Interval) -> str:
    """Return a ratio with its bounds, such as `1.042 times (1.024 to 1.060)`."""
    if interval.low is None or interval.high is None:
        return f"{interval.ratio:.3f} times (one pair: no interval)"
    return f"{interval.ratio:.3f} times ({interval.low:.3f} to {interval.high:.3f})"


def time_line(result: TuneResult) -> str:
    """Return what the tuning cost."""
    again = len(result.trials) - result.fresh_trials
    reused = f", {again} more from earlier sessions" if again else ""
    return (
        f"{result.fresh_trials} trials{reused} in {result.used_s:.0f} s "
        f"of a budget of {result.budget_s:.0f} s"
    )


def caveats(result: TuneResult) -> list[str]:
    """Return what a reader must know besides: what was not tried, and why."""
    notes = list(result.notes)
    if result.scatter is not None and result.scatter > _QUIET:
        notes.append(
            f"this machine is not quiet: the ratio of two neighbouring runs scatters by "
            f"{100 * result.scatter:.1f} %, so small gains go unseen"
        )
    suspects = sum(trial.is_doubtful for trial in result.trials)
    if suspects:
        notes.append(f"{suspects} of {len(result.trials)} trials have a doubt of their own")
    notes += [f"left out: {line}" for line in result.left_out]
    notes += [f"not ablated: {line}" for line in result.not_ablated]
    if result.untried:
        notes.append(f"no time was left to try: {', '.join(result.untried)}")
    return notes


def effects(result: TuneResult) -> list[Effect]:
    """Return the confirmed whole, then each knob."""
    return [*([result.confirmed] if result.confirmed else []), *result.ablation]
