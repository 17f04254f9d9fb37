"""The whole account of a tuning: Markdown for people, JSON for programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from analysis.report.markup import markdown_text
from analysis.runs.points import Refusal, RooflinePoint
from analysis.tuning.tuning import (
    Place,
    best_command,
    best_record,
    caveats,
    effects,
    roof_line,
    time_line,
    verdict_line,
)
from bench.config import RunConfig
from campaigns.tune.knobs import changes, differing
from campaigns.tune.result import Effect, PairedComparison, Trial, TuneResult
from campaigns.tune.stopping_rule import Interval


def tuning_facts(result: TuneResult, place: Place) -> dict[str, Any]:
    """Return everything for a program, ready for JSON; ratios are of images/s."""
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
        "trials": [_trial_facts(trial, result.start) for trial in result.trials],
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
    parts += ["## What was tried", _comparisons_table(result.comparisons)]
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
    headings = ["knob", "tuned", "put back to", "images/s, times", "95 % interval", "rounds"]
    return _table(headings, rows)


def _comparisons_table(comparisons: Iterable[PairedComparison]) -> str:
    rows = []
    for comparison in comparisons:
        bounds = _bounds(comparison.interval) if comparison.interval else ("", "")
        rows.append(
            [
                comparison.name,
                comparison.decision,
                *bounds,
                str(len(comparison.ratios)),
                comparison.reason,
            ]
        )
    headings = ["value", "decision", "images/s, times", "bounds", "pairs", "why"]
    return _table(headings, rows)


def _trials_table(result: TuneResult) -> str:
    rows = []
    for trial in result.trials:
        rate = trial.images_per_s
        rows.append(
            [
                str(trial.number),
                trial.stage,
                changes(result.start, trial.config),
                "" if rate is None else f"{rate:.4g}",
                trial.failure or ("doubtful" if trial.is_doubtful else ""),
                f"{trial.took_s:.0f}",
                trial.record.record_id,
            ]
        )
    return _table(["", "stage", "setting", "images/s", "", "s", "record"], rows)


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [list(headings), ["---"] * len(headings)]
    lines += [[markdown_text(cell) for cell in row] for row in rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _bounds(interval: Interval) -> Iterator[str]:
    yield f"{interval.ratio:.3f}"
    known = interval.low is not None and interval.high is not None
    yield f"{interval.low:.3f} to {interval.high:.3f}" if known else "one pair: none"


def _interval_facts(interval: Interval | None) -> dict[str, Any]:
    if interval is None:
        return {"ratio": None, "low": None, "high": None}
    return {"ratio": interval.ratio, "low": interval.low, "high": interval.high}


def _effect_facts(effect: Effect) -> dict[str, Any]:
    return {
        "knob": effect.name,
        "tuned": effect.best_value,
        "put_back": effect.other_value,
        **_interval_facts(effect.interval),
        "ratios": list(effect.ratios),
    }


def _comparison_facts(comparison: PairedComparison) -> dict[str, Any]:
    return {
        "knob": comparison.field,
        "value": comparison.value,
        "decision": comparison.decision,
        "reason": comparison.reason or None,
        **_interval_facts(comparison.interval),
        "ratios": list(comparison.ratios),
        "trials": list(comparison.trials),
    }


def _trial_facts(trial: Trial, start: RunConfig) -> dict[str, Any]:
    return {
        "number": trial.number,
        "stage": trial.stage,
        "setting": changes(start, trial.config),
        "images_per_s": trial.images_per_s,
        "outcome": trial.record.outcome,
        "failure": trial.failure,
        "took_s": round(trial.took_s, 1),
        "reused": not trial.fresh,
        "record_id": trial.record.record_id,
    }
