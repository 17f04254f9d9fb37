"""A side of a comparison, or any other selection of runs, as a user names it in one text.

Short forms with commas between them, `env=gcp-l4,arch=resnet18`; run ids; or a filter of MLflow's.
A short form is a setting of a run (`docs/comparing.md`), and its value is what ran or what was
asked for. `records=FOLDER` reads a folder instead of the tracking server, `baseline=NAME` what
that name was set to.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from analysis.runs.imported import run_of_tags
from analysis.runs.run import Run
from analysis.runs.tracked.pull import pull_records
from analysis.runs.tracked.record_set import RecordSet
from analysis.runs.what_ran import distinguished
from bench.config import RunConfig
from bench.errors import UserError
from bench.records.verdict.step_settings import CODE, NO_SETTINGS
from tracking import schema

#: Short forms that most people need, in the order in which errors list them.
_USUAL = ("env", "device", "campaign", "arch", "precision", "batch_size", "verdict", "run",
          "records", "baseline")  # fmt: skip
_NAMES = {*_USUAL, CODE, *(RunConfig.model_fields.keys() - NO_SETTINGS)}
#: What a tracking server can look for by itself; the rest is looked for among the runs it gives.
_ON_SERVER = {
    "env": f"tags.`{schema.ENV}`",
    "device": f"tags.`{schema.DEVICE}`",
    "campaign": f"tags.`{schema.CAMPAIGN}`",
    "arch": "params.arch",
}
_RUN_ID = re.compile(r"[0-9a-f]{32}")
_SHORT_FORM = re.compile(r"\s*([a-z_]+)\s*=\s*(.*?)\s*", re.DOTALL)
_NEXT_FORM = re.compile(r",(?=\s*[a-z_]+\s*=)")
#: The number after a label that machines of several kinds carry.
_NUMBER = re.compile(r" \(\d+\)$")
_MOST_NAMED = 20

#: By name, the values of which a run must have one.
Conditions = Mapping[str, Sequence[str]]


def read_sides(
    a: str, b: str, on_unreadable: Callable[[str], object] = lambda line: None
) -> tuple[list[Run], list[Run]]:
    """Return the runs that each text names, in the order of their configurations.

    Different machines of one label get a number, on one side or across both. `on_unreadable` gets
    a line for each record that cannot be read. Raises `UserError` where nothing matches or a named
    run is not there, and `TrackingError`.
    """
    one, other = _read(a), _read(b)
    for line in dict.fromkeys((*one.gathered.unreadable, *other.gathered.unreadable)):
        on_unreadable(line)
    return one.runs(other.gathered), other.runs(one.gathered)


def read_side(text: str, on_unreadable: Callable[[str], object] = lambda line: None) -> list[Run]:
    """Return the runs that one text names, as `read_sides` does."""
    side = _read(text)
    for line in side.gathered.unreadable:
        on_unreadable(line)
    return side.runs()


@dataclass(frozen=True)
class _Side:
    """Records, and which of them count."""

    text: str
    gathered: RecordSet
    conditions: Conditions

    def runs(self, *beside: RecordSet) -> list[Run]:
        found = [
            run
            for run in self.gathered.with_unique_labels(*beside).runs()
            if all(_is_one_of(run, name, values) for name, values in self.conditions.items())
        ]
        if not found:
            raise UserError(f"{self.text!r}: no measurement matches{self._why()}")
        return distinguished(found)

    def _why(self) -> str:
        if self.gathered.unreadable and not self.gathered.runs():
            return f" ({self.gathered.unreadable[0]})"
        if not self.conditions:
            return ""
        runs: Sequence[Run] = self.gathered.with_unique_labels().runs()
        if not runs and {"records", "baseline"}.isdisjoint(self.conditions):
            runs = _all_tracked()
        return _what_there_is(runs, self.conditions)


def _read(text: str) -> _Side:
    words = [word for word in re.split(r"[,\s]+", text.strip()) if word]
    if not words:
        raise UserError(f"a side is empty: give {_usual()}, run ids or an MLflow filter")
    if all(_RUN_ID.fullmatch(word) for word in words):
        return _Side(text, _of_run_ids(words), {})
    conditions = _conditions(text)
    if conditions is None:
        return _Side(text, pull_records(text.strip()), {})
    return _Side(text, _gathered(conditions), conditions)


def _conditions(text: str) -> Conditions | None:
    """The short forms of a text, None where it is a filter of MLflow's."""
    found: dict[str, list[str]] = {}
    for part in _NEXT_FORM.split(text):
        form = _SHORT_FORM.fullmatch(part)
        if form is None:
            return None
        name, value = form[1], form[2]
        if name not in _NAMES:
            if set("'\"") & set(value):  # as MLflow writes text: status = 'FINISHED'
                return None
            raise UserError(
                f"{text!r}: {name!r} is no setting of a run; give {_usual()}, another setting, run "
                "ids or an MLflow filter such as \"params.arch = 'resnet18'\""
            )
        value = value.strip("'\"")
        if not value or set("'\"`\\") & set(value):
            raise UserError(f"{text!r}: {name}={value!r} is no value that a run can have")
        found.setdefault(name, []).append(value)
    for name in ("run", "baseline"):
        if len(found.get(name, ())) > 1:
            raise UserError(f"{text!r}: {name}= stands there twice; give it once")
    sources = [name for name in ("records", "run", "baseline") if name in found]
    if "baseline" in sources and len(sources) > 1:
        raise UserError(
            f"{text!r}: {sources[0]}= and {sources[1]}= each name their own runs; give one"
        )
    if "run" in found:
        found["run"] = re.split(r"[,\s]+", found["run"][0])
    return found


def _usual() -> str:
    return ", ".join(f"{name}=" for name in _USUAL)


def _gathered(conditions: Conditions) -> RecordSet:
    if "records" in conditions:
        return RecordSet.read(map(Path, conditions["records"]))
    if "run" in conditions:
        if wrong := [one for one in conditions["run"] if not _RUN_ID.fullmatch(one)]:
            raise UserError(f"run={wrong[0]!r}: give the 32 digits of the run's id in MLflow")
        return _of_run_ids(conditions["run"])
    if "baseline" in conditions:
        return _of_baseline(conditions["baseline"][0])
    asked = (
        f"{_ON_SERVER[name]} = '{_NUMBER.sub('', values[0]) if name == 'env' else values[0]}'"
        for name, values in conditions.items()
        if name in _ON_SERVER and len(values) == 1  # MLflow has no `or`
    )
    return pull_records(" and ".join(asked))


def _of_run_ids(run_ids: Sequence[str]) -> RecordSet:
    quoted = ", ".join(f"'{run_id}'" for run_id in run_ids)
    gathered = pull_records(f"attributes.run_id IN ({quoted})")
    absent = sorted(set(run_ids) - {run.name for run in gathered.runs()})
    if absent:
        why = next((line for line in gathered.unreadable if absent[0] in line), None)
        raise UserError(f"run {absent[0]}: {why or 'no tracked measurement has this id'}")
    return gathered


def _of_baseline(name: str) -> RecordSet:
    from tracking.baselines import find_baseline  # takes MLflow along

    found = find_baseline(name)
    try:
        return _of_run_ids(found.run_ids)
    except UserError as error:
        raise UserError(f"baseline={name!r}, set at {found.set_at[:16]}: {error}") from None


def _is_one_of(run: Run, name: str, values: Sequence[str]) -> bool:
    return name in ("records", "baseline") or not _values(run, name).isdisjoint(values)


def _values(run: Run, name: str) -> set[str]:
    """What a run may be called by: what ran and what was asked for, a label without its number."""
    if name == "run":
        return {run.name}
    if name == "campaign":
        return {run.campaign} if run.campaign else set()
    if name == "verdict":
        return {run.verdict}
    found = {value for value in (run.settings.get(name), run.asked_for(name)) if value}
    if name == "env":
        found |= {_NUMBER.sub("", label) for label in found}
    if name == "precision" and any(value.startswith("amp-") for value in found):
        found.add("amp")
    return found


def _all_tracked() -> list[Run]:
    """Every run of the server by its parameters and tags alone, which takes no record."""
    from tracking.reading.incremental import KeptSearch  # takes MLflow along

    search = KeptSearch()
    return [
        run_of_tags(run)
        for kind in ("measurement", "imported")
        for run in search.runs(schema.runs_filter(kind=kind))
    ]


def _what_there_is(runs: Iterable[Run], conditions: Conditions) -> str:
    """Return for the first condition that leaves no run what the runs left before it have."""
    left = list(runs)
    held: list[str] = []
    for name, values in conditions.items():
        if name in ("records", "baseline"):
            continue
        matching = [run for run in left if _is_one_of(run, name, values)]
        if not matching and name != "run":
            known = sorted({value for run in left for value in _values(run, name)}, key=_by_number)
            more = f" and {len(known) - _MOST_NAMED} more" if len(known) > _MOST_NAMED else ""
            there = f"is one of {', '.join(known[:_MOST_NAMED])}{more}" if known else "is in no run"
            among = f"with {', '.join(held)} " if held else ""
            return f"; {among}{name} {there}"
        left = matching
        held.append(f"{name}={' or '.join(values)}")
    return ""


def _by_number(text: str) -> tuple[int, str]:
    return (int(text), "") if text.isdecimal() else (-1, text)
