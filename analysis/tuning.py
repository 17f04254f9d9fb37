"""What a tuning found: in a few lines and in tables for people, as JSON for programs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

from analysis.presentation.table import Column, Table
from analysis.presentation.words import (
    counted,
    estimated,
    flops_rate,
    interval,
    percent_interval,
    ratio_digits,
)
from analysis.runs.points import RooflinePoint
from bench.config import FILING_FIELDS, WINDOW_FIELDS, rate_column, rate_unit, run_options
from bench.errors import Unknown
from bench.records import RunRecord
from bench.statistics.ratios import RatioEstimate
from campaigns.knobs import changes, differing
from campaigns.trials import Effect, TuneResult

Place = RooflinePoint | Unknown
_RATIO = ("ratio", "low", "high")
#: Ratios that scatter more hide a gain of 5 % from two or three pairs.
_QUIET = 0.03


def best_record(result: TuneResult) -> RunRecord:
    """Return the best setting's median run, of the confirmation where there was one."""
    best = [t for t in result.trials if t.config_id == result.best.config_id]
    whole = [trial for trial in best if trial.samples_per_s is not None]
    fresh = [trial for trial in whole if trial.stage == "confirmation"] or whole
    ordered = sorted(fresh, key=lambda trial: trial.samples_per_s or 0.0)
    return ordered[(len(ordered) - 1) // 2].record


def best_command(result: TuneResult) -> str:
    """Return the command line that runs the best setting."""
    options = run_options(result.best, leave_out=FILING_FIELDS | WINDOW_FIELDS)
    return shlex.join(["mlproject", "run", *options])


def verdict_line(result: TuneResult) -> str:
    """Return what the fresh runs say of the best setting against the start, in one sentence."""
    effect = result.confirmed
    if effect is None:
        return f"no speed-up confirmed: {result.unconfirmed}"
    what = "speed-up over" if effect.confirmed else "not confirmed as faster than"
    return f"{what} the start: {estimated(effect.estimate)} in {len(effect.ratios)} fresh rounds"


def roof_line(place: Place) -> str:
    """Return the distance to the roof in one sentence."""
    if isinstance(place, Unknown):
        return f"distance to the roof unknown: {place.reason}"
    share = percent_interval(place.fraction_of_roof_min, place.fraction_of_roof_max)
    rates = (place.attained_flops_per_s, place.attainable_max_flops_per_s)
    unsure = "" if place.bound_sure else " (unsure)"
    return (
        f"{share} of the roof: {' of '.join(map(flops_rate, rates))} attainable; "
        f"bound {place.bound}{unsure}"
    )


def tuning_lines(result: TuneResult, place: Place) -> list[str]:
    """Return what was found, its distance to the roof, its time, and what was not tried and why."""
    again = len(result.trials) - result.fresh_trials
    reused = f", {again} more from earlier sessions" if again else ""
    lines = [
        verdict_line(result),
        roof_line(place),
        f"{counted(result.fresh_trials, 'trial')}{reused} in {result.used_s:.0f} s "
        f"of a budget of {result.budget_s:.0f} s",
        *result.notes,
    ]
    if result.scatter is not None and result.scatter > _QUIET:
        lines.append(
            f"this machine is not quiet: the ratio of two neighbouring runs scatters by "
            f"{100 * result.scatter:.1f} %, so small gains go unseen"
        )
    if suspects := sum(trial.is_doubtful for trial in result.trials):
        lines.append(f"trials with a doubt of their own: {suspects} of {len(result.trials)}")
    lines += [f"left out: {line}" for line in result.left_out]
    lines += [f"not ablated: {line}" for line in result.not_ablated]
    if result.untried:
        lines.append(f"no time was left to try: {', '.join(result.untried)}")
    return lines


#: What a tuning says of itself.
_SAID = ("untried", "left_out", "not_ablated", "notes", "scatter", "budget_s", "interrupted")


def tuning_facts(result: TuneResult, place: Place) -> dict[str, Any]:
    """Return everything for a program, ready for JSON; ratios are of samples/s."""
    point = place if isinstance(place, RooflinePoint) else None
    return {
        "command": best_command(result),
        "best": {name: getattr(result.best, name) for name in differing(result.start, result.best)},
        "start_config_id": result.start.config_id,
        "best_config_id": result.best.config_id,
        "best_record_id": best_record(result).record_id,
        "confirmed": result.confirmed and _effect_facts(result.confirmed),
        "unconfirmed": result.unconfirmed or None,
        "ablation": [_effect_facts(effect) for effect in result.ablation],
        "fraction_of_roof_min": point and point.fraction_of_roof_min,
        "fraction_of_roof_max": point and point.fraction_of_roof_max,
        "no_roof": place.reason if isinstance(place, Unknown) else None,
        "duels": [
            {
                "knob": duel.field,
                "value": duel.value,
                "decision": duel.decision,
                "reason": duel.reason or None,
                **_ratio_facts(duel.estimate),
                "ratios": duel.ratios,
                "trials": list(duel.trials),
            }
            for duel in result.comparisons
        ],
        "trials": [
            {
                "number": trial.number,
                "stage": trial.stage,
                "setting": changes(result.start, trial.config),
                rate_column(result.sample): trial.samples_per_s,
                "outcome": trial.record.outcome,
                "failure": trial.failure,
                "doubtful": trial.is_doubtful,
                "took_s": round(trial.took_s, 1),
                "reused": not trial.fresh,
                "record_id": trial.record.record_id,
            }
            for trial in result.trials
        ],
        **{name: getattr(result, name) for name in _SAID},
        "used_s": round(result.used_s, 1),
    }


def _ratio_facts(estimate: RatioEstimate | None) -> dict[str, float | None]:
    values = (estimate.ratio, *estimate.ends) if estimate else (None, None, None)
    return dict(zip(_RATIO, values, strict=True))


def _effect_facts(effect: Effect) -> dict[str, Any]:
    return {
        "knob": effect.name,
        "tuned": effect.best_value,
        "put_back": effect.other_value,
        **_ratio_facts(effect.estimate),
        "ratios": effect.ratios,
    }


def tuning_tables(result: TuneResult, facts: dict[str, Any]) -> Iterator[Table]:
    """Yield what each knob gave (`knobs`), what was `tried`, and all `trials`, from its facts."""
    ratio = (
        Column(f"{rate_unit(result.sample)}, times", _RATIO[:1], ratio_digits, numeric=True),
        Column("95 % interval", _RATIO[1:], interval),
        Column("pairs", ("ratios",), lambda ratios: f"{len(ratios)}", numeric=True),
    )
    if result.ablation:
        rows = [facts["confirmed"]] if result.confirmed else []
        put_back = Column("put back to", ("put_back",))
        knobs = (Column("knob", ("knob",)), Column("tuned", ("tuned",)), put_back, *ratio)
        yield Table("knobs", "What each knob gave", [*rows, *facts["ablation"]], knobs)
    value = Column("value", ("knob", "value"), "{}={}".format)
    tried = (value, Column("decision", ("decision",)), *ratio, Column("why", ("reason",)))
    yield Table("tried", "What was tried", facts["duels"], tried, number=2)
    trials = (
        *(Column(name, (name,)) for name in ("number", "stage", "setting")),
        Column(rate_unit(result.sample), (rate_column(result.sample),), "{:.4g}".format),
        Column("no result", ("failure",)),
        Column("", ("doubtful",), lambda doubtful: "doubtful" if doubtful else ""),
        Column("s", ("took_s",), "{:.0f}".format),
        Column("record", ("record_id",)),
    )
    yield Table("trials", "Trials", facts["trials"], trials, number=3)
