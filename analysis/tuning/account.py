"""What a tuning found: in a few lines, as Markdown for people, as JSON for programs."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from analysis.runs.points import Refusal, RooflinePoint
from analysis.runs.quantities import three_digits
from analysis.table import markdown_text
from bench.config import (
    FILING_FIELDS,
    WINDOW_FIELDS,
    rate_column,
    rate_unit,
    run_options,
)
from bench.records import RunRecord
from campaigns.tune.knobs import changes, differing
from campaigns.tune.result import Effect, PairedComparison, Trial, TuneResult
from campaigns.tune.stopping_rule import Interval

Place = RooflinePoint | Refusal
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
        "no_roof": place.reason if isinstance(place, Refusal) else None,
        "duels": [_comparison_facts(comparison) for comparison in result.comparisons],
        "trials": [_trial_facts(trial, result) for trial in result.trials],
        "untried": list(result.untried),
        "left_out": list(result.left_out),
        "not_ablated": list(result.not_ablated),
        "notes": list(result.notes),
        "scatter": result.scatter,
        "budget_s": result.budget_s,
        "used_s": round(result.used_s, 1),
        "interrupted": result.interrupted,
    }


def tuning_markdown(result: TuneResult, place: Place) -> str:
    """Return the whole account as Markdown."""
    start, environment = result.start, best_record(result).environment
    device = f" on {markdown_text(environment.device.name)}" if environment else ""
    parts = [
        f"# Tuning of {markdown_text(start.arch)}, {start.precision}{device}",
        f"```sh\n{best_command(result)}\n```",
        "\n".join(
            f"- {markdown_text(line)}"
            for line in (verdict_line(result), roof_line(place), time_line(result))
        ),
    ]
    if result.ablation:
        parts += ["## What each knob gave", _ablation_table(result)]
    unit = rate_unit(result.sample)
    parts += ["## What was tried", _comparisons_table(result.comparisons, unit)]
    if found := caveats(result):
        parts.append("\n".join(f"- {markdown_text(line)}" for line in found))
    parts += ["## Trials", _trials_table(result)]
    return "\n\n".join(parts) + "\n"


def _ablation_table(result: TuneResult) -> str:
    rows = [
        [effect.name, effect.best_value, effect.other_value, *_bounds(effect.interval),
         str(len(effect.ratios))]
        for effect in effects(result)
    ]  # fmt: skip
    rate = f"{rate_unit(result.sample)}, times"
    headings = ["knob", "tuned", "put back to", rate, "95 % interval", "rounds"]
    return _table(headings, rows)


def _comparisons_table(comparisons: Iterable[PairedComparison], unit: str) -> str:
    rows = [
        [one.name, one.decision, *_bounds(one.interval), str(len(one.ratios)), one.reason]
        for one in comparisons
    ]
    headings = ["value", "decision", f"{unit}, times", "bounds", "pairs", "why"]
    return _table(headings, rows)


def _trials_table(result: TuneResult) -> str:
    rows = [
        [
            str(trial.number),
            trial.stage,
            changes(result.start, trial.config),
            "" if trial.samples_per_s is None else f"{trial.samples_per_s:.4g}",
            trial.failure or ("doubtful" if trial.is_doubtful else ""),
            f"{trial.took_s:.0f}",
            trial.record.record_id,
        ]
        for trial in result.trials
    ]
    headings = ["", "stage", "setting", rate_unit(result.sample), "", "s", "record"]
    return _table(headings, rows)


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [list(headings), ["---"] * len(headings)]
    lines += [[markdown_text(cell) for cell in row] for row in rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _bounds(interval: Interval | None) -> tuple[str, str]:
    if interval is None:
        return "", ""
    known = interval.low is not None and interval.high is not None
    span = f"{interval.low:.3f} to {interval.high:.3f}" if known else "one pair: none"
    return f"{interval.ratio:.3f}", span


def _effect_facts(effect: Effect) -> dict[str, Any]:
    return {
        "knob": effect.name,
        "tuned": effect.best_value,
        "put_back": effect.other_value,
        **asdict(effect.interval),
        "ratios": list(effect.ratios),
    }


def _comparison_facts(comparison: PairedComparison) -> dict[str, Any]:
    no_interval = dict.fromkeys(("ratio", "low", "high"))
    return {
        "knob": comparison.field,
        "value": comparison.value,
        "decision": comparison.decision,
        "reason": comparison.reason or None,
        **(asdict(comparison.interval) if comparison.interval else no_interval),
        "ratios": list(comparison.ratios),
        "trials": list(comparison.trials),
    }


def _trial_facts(trial: Trial, result: TuneResult) -> dict[str, Any]:
    return {
        "number": trial.number,
        "stage": trial.stage,
        "setting": changes(result.start, trial.config),
        rate_column(result.sample): trial.samples_per_s,
        "outcome": trial.record.outcome,
        "failure": trial.failure,
        "took_s": round(trial.took_s, 1),
        "reused": not trial.fresh,
        "record_id": trial.record.record_id,
    }
