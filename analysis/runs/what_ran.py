"""How the settings that ran are shown, and by which of them runs of one label are distinguished."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from bench.records.verdict.step_settings import LIMITED, OF_DATA

if TYPE_CHECKING:
    from analysis.runs.run import Run

AnyRun = TypeVar("AnyRun", bound="Run")

#: A precision and what only some precisions have: what is left out to hold precisions together.
OF_PRECISION: Final = ("precision", "depthwise_fp32")


def follows(name: str, differing: Collection[str]) -> bool:
    """Return whether a setting differs because another does: the loader's beside synthetic data."""
    return any(
        leader in differing and name in followers for leader, *followers in (OF_PRECISION, OF_DATA)
    )


def precision_label(ran: str, asked: Collection[str | None]) -> str:
    """Return a precision for people: `fp32 (amp asked for)` where amp became fp32."""
    amp = [one for one in asked if one is not None and one.startswith("amp")]
    if ran.startswith("amp") or not amp:
        return ran
    some = f" in {len(amp)} of {len(asked)} runs" if len(amp) < len(asked) else ""
    return f"{ran} ({amp[0]} asked for{some})"


def distinguished(runs: Sequence[AnyRun]) -> list[AnyRun]:
    """Return `runs`, each with its settings that differ from others of its label."""
    known = [
        {**run.settings, "source": "imported" if run.imported_from else "measured"}
        if run.outcome == "ok"
        else {}
        for run in runs
    ]
    return [
        replace(run, distinction=text) for run, text in zip(runs, distinctions(known), strict=True)
    ]


def distinctions(runs: Sequence[Mapping[str, str]]) -> list[str]:
    """Return for the settings of each run those in which runs of its label differ, as text.

    A label has machine, model, precision and batch size, which are therefore left out. So is, of
    each run, a setting that it lacks.
    """
    values: dict[tuple[str | None, ...], dict[str, set[str]]] = {}
    for settings in runs:
        of_label = values.setdefault(_label(settings), {})
        for name, value in settings.items():
            of_label.setdefault(name, set()).add(value)
    return [
        ", ".join(
            f"{name} {settings[name]}"
            for name, found in sorted(values[_label(settings)].items())
            if (len(found) > 1 or name == LIMITED) and name in settings and name != "batch_size"
        )
        for settings in runs
    ]


def _label(settings: Mapping[str, str]) -> tuple[str | None, ...]:
    return tuple(settings.get(name) for name in ("env", "arch", "precision"))
