"""What a run computed with: its settings as resolved on the device, beside what was asked for.

Runs are one configuration where they ran with the same settings, whatever was asked for: `auto`
and the value that it became are one. How long was measured (`WINDOW_FIELDS`) is no setting: a
longer window says the same of the same step, only more surely, so it does not split repeats.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from bench.config import FILING_FIELDS, SYNTHETIC, WINDOW_FIELDS, spelled
from bench.records import ResolvedConfig, RunRecord

if TYPE_CHECKING:
    from analysis.runs.run import Run

AnyRun = TypeVar("AnyRun", bound="Run")

#: Runs that differ in these alone are repeats.
NO_SETTINGS: Final = FILING_FIELDS | WINDOW_FIELDS
#: How data is read and shown is part of the data's cost; synthetic data has none of it.
OF_DATA: Final = ("data", "workers", "decoder", "prefetch_factor", "persistent_workers",
                  "pin_memory", "augment", "non_blocking")  # fmt: skip
#: The variables that kept a processor from its newer instructions; most runs have none, so
#: that they are shown of each run that has them.
LIMITED: Final = "instructions"
#: Settings of what a model takes, images or tokens.
_OF_SAMPLES: Final = ("image_size", "seq_len")
#: A precision and what only some precisions have: what is left out to hold precisions together.
OF_PRECISION: Final = ("precision", "depthwise_fp32")


def follows(name: str, differing: Collection[str]) -> bool:
    """Return whether a setting differs because another does: the loader's beside synthetic data."""
    return any(
        leader in differing and name in followers for leader, *followers in (OF_PRECISION, OF_DATA)
    )


def precision_of(resolved: ResolvedConfig) -> str:
    """Return the precision that ran: fp32, tf32, amp-bf16 or amp-fp16."""
    if resolved.autocast_dtype == "none":
        return resolved.math_mode
    return f"amp-{resolved.autocast_dtype}"


def settings_of(record: RunRecord) -> tuple[dict[str, str], dict[str, str]]:
    """Return the settings that ran, as text, and those asked for where they read otherwise.

    A run that ended before its device was known has only what was asked for. Settings without any
    effect are left out: the loader's beside synthetic data, those of autocast without it, pixels
    and tokens of a model that takes none.
    """
    config, resolved = record.config, record.resolved
    without = NO_SETTINGS | (set(OF_DATA[1:]) if config.data == SYNTHETIC else set())
    given = {
        name: spelled(value) for name, value in config.model_dump(exclude=set(without)).items()
    }
    ran = dict(given)
    if resolved is not None:
        known = given.keys() & ResolvedConfig.model_fields.keys()
        ran |= {name: spelled(getattr(resolved, name)) for name in sorted(known)}
        ran["precision"] = precision_of(resolved)
        for name in _OF_SAMPLES:
            if getattr(resolved, name) is None:
                del ran[name]
        if resolved.autocast_dtype == "none":
            del ran["depthwise_fp32"]
    asked = {name: value for name, value in given.items() if ran.get(name) != value}
    ran["env"] = config.env
    if record.environment is not None:
        ran["env"] = record.environment.label
        ran["device"] = record.environment.device.name
        if (limits := record.environment.instruction_limits) != "none":
            ran[LIMITED] = " ".join(sorted({one.partition("=")[2] for one in limits.split()}))
    return ran, asked


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
