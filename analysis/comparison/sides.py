"""A side of a comparison, or any other selection of runs, as a user names it in one text.

Short forms with commas between them, `env=gcp-l4,arch=resnet18`; run ids; or a filter of MLflow's.
A short form is a setting of a run (`docs/compare.md`), and its value is what ran or what was
asked for. `records=FOLDER` reads a folder instead of the tracking server, `baseline=NAME` what
that name was set to.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from analysis.runs.run import Run, distinguished
from analysis.server.pull import RecordSet, pull_records
from bench.config import RunConfig
from bench.errors import UserError
from bench.records.step_settings import CODE, NO_SETTINGS, OF_SCRIPT
from tracking import schema

#: Those that most people need, in the order in which errors list them.
_USUAL = ("env", "device", "campaign", "user", "arch", "precision", "batch_size", "verdict", "run",
          "records", "baseline")  # fmt: skip
_USUAL_FORMS = ", ".join(f"{name}=" for name in _USUAL)
_NAMES = {*_USUAL, CODE, *OF_SCRIPT, *(RunConfig.model_fields.keys() - NO_SETTINGS)}
#: What a tracking server can look for by itself; the rest is looked for among the runs it gives.
_ON_SERVER = {
    "env": f"tags.`{schema.ENV}`",
    "device": f"tags.`{schema.DEVICE}`",
    "campaign": f"tags.`{schema.CAMPAIGN}`",
    "user": f"tags.`{schema.USER}`",
    "arch": "params.arch",
}
_RUN_ID = re.compile(r"[0-9a-f]{32}")
_SHORT_FORM = re.compile(r"\s*([a-z_]+)\s*=\s*(.*?)\s*", re.DOTALL)
_NEXT_FORM = re.compile(r",(?=\s*[a-z_]+\s*=)")
#: The number after a label that machines of several kinds carry.
_NUMBER = re.compile(r" \(\d+\)$")
_MOST_NAMED = 20
#: Short forms that choose records, and not among them.
_OF_RECORDS = ("records", "baseline")


def read_sides(
    a: str, b: str, on_unreadable: Callable[[str], object] = lambda line: None
) -> tuple[list[Run], list[Run]]:
    """Return the runs that each text names, in the order of their configurations.

    Different machines of one label get a number, on one side or across both. `on_unreadable` gets
    a line for each record that cannot be read. Raises `UserError` where nothing matches or a named
    run is not there, and `TrackingError`.
    """
    one, other = _Side(a), _Side(b)
    for line in dict.fromkeys((*one.gathered.unreadable, *other.gathered.unreadable)):
        on_unreadable(line)
    return one.runs(other.gathered), other.runs(one.gathered)


def read_side(text: str, on_unreadable: Callable[[str], object] = lambda line: None) -> list[Run]:
    """Return the runs that one text names, as `read_sides` does."""
    side = _Side(text)
    for line in side.gathered.unreadable:
        on_unreadable(line)
    return side.runs()


class _Side:
    """A text, the values of its short forms by name, and the records that they are looked for in.

    A run counts if it has one of the values of each of the `conditions`.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        words = [word for word in re.split(r"[,\s]+", text.strip()) if word]
        if not words:
            raise UserError(f"a side is empty: give {_USUAL_FORMS}, run ids or an MLflow filter")
        of_ids = all(_RUN_ID.fullmatch(word) for word in words)
        forms = {"run": words} if of_ids else _short_forms(text)
        self.gathered = _gathered(forms) if forms else pull_records(text.strip())
        self.conditions = {name: forms[name] for name in forms if name not in _OF_RECORDS}
        self.tracked = bool(self.conditions) and len(self.conditions) == len(forms)

    def runs(self, *beside: RecordSet) -> list[Run]:
        runs: Sequence[Run] = self.gathered.with_unique_labels(*beside).runs()
        forms = self.conditions.items()
        found = [run for run in runs if all(_values(run, n) & set(of) for n, of in forms)]
        if found:
            return distinguished(found)
        if not runs and self.gathered.unreadable:
            why = f" ({self.gathered.unreadable[0]})"
        else:
            known = [{name: _values(run, name) for name in self.conditions} for run in runs]
            why = self._what_there_is(known or (_all_tracked() if self.tracked else []))
        raise UserError(f"{self.text!r}: no measurement matches{why}")

    def _what_there_is(self, runs: Sequence[Mapping[str, set[str]]]) -> str:
        """For the first condition that leaves no run, what the runs left before it have."""
        held = ""
        for name, values in self.conditions.items():
            left = [run for run in runs if set(values) & run.get(name, set(values))]
            if not left and name != "run":
                known = sorted(
                    {one for run in runs for one in run[name]},
                    key=lambda one: (int(one), "") if one.isdecimal() else (-1, one),
                )
                hidden = len(known) - _MOST_NAMED
                more = f" and {hidden} more" if hidden > 0 else ""
                named = f"one of {', '.join(known[:_MOST_NAMED])}{more}" if known else "in no run"
                return f";{' with' * bool(held)}{held[1:]} {name} is {named}"
            runs, held = left, f"{held}, {name}={' or '.join(values)}"
        return ""


def _short_forms(text: str) -> dict[str, list[str]]:
    """The values of the short forms by their names, none of a filter of MLflow's."""
    found: dict[str, list[str]] = {}
    for part in _NEXT_FORM.split(text):
        form = _SHORT_FORM.fullmatch(part)
        if form is None:
            return {}
        name, value = form[1], form[2]
        if name not in _NAMES:
            if set("'\"") & set(value):  # as MLflow writes text: status = 'FINISHED'
                return {}
            raise UserError(
                f"{text!r}: {name!r} is no setting of a run; give {_USUAL_FORMS}, another setting, "
                "run ids or an MLflow filter such as \"params.arch = 'resnet18'\""
            )
        value = value.strip("'\"")
        if not value or set("'\"`\\") & set(value):
            raise UserError(f"{text!r}: {name}={value!r} is no value that a run can have")
        if name in found and name in ("run", "baseline"):
            raise UserError(f"{text!r}: {name}= stands there twice; give it once")
        found.setdefault(name, []).append(value)
    sources = [f"{name}=" for name in ("records", "run", "baseline") if name in found]
    if "baseline=" in sources and len(sources) > 1:
        named = " and ".join(sources[:2])
        raise UserError(f"{text!r}: {named} each name their own runs; give one")
    if "run" in found:
        found["run"] = re.split(r"[,\s]+", found["run"][0])
    return found


def _gathered(forms: Mapping[str, Sequence[str]]) -> RecordSet:
    """The records among which the short forms choose; their run ids are all there."""
    if "records" in forms:
        return RecordSet.read(map(Path, forms["records"]))
    if "run" in forms:
        return _of_run_ids(forms["run"])
    if "baseline" in forms:
        from tracking.baselines import find_baseline  # takes MLflow along

        (name,), found = forms["baseline"], find_baseline(forms["baseline"][0])
        try:
            return _of_run_ids(found.run_ids)
        except UserError as error:
            raise UserError(f"baseline={name!r}, set at {found.set_at[:16]}: {error}") from None
    asked = (
        f"{_ON_SERVER[name]} = '{_NUMBER.sub('', values[0]) if name == 'env' else values[0]}'"
        for name, values in forms.items()
        if name in _ON_SERVER and len(values) == 1  # MLflow has no `or`
    )
    return pull_records(" and ".join(asked))


def _of_run_ids(run_ids: Sequence[str]) -> RecordSet:
    if wrong := [one for one in run_ids if not _RUN_ID.fullmatch(one)]:
        raise UserError(f"run={wrong[0]!r}: give the 32 digits of the run's id in MLflow")
    quoted = ", ".join(f"'{run_id}'" for run_id in run_ids)
    gathered = pull_records(f"attributes.run_id IN ({quoted})")
    absent = sorted(set(run_ids) - {run.name for run in gathered.runs()})
    if absent:
        why = next((line for line in gathered.unreadable if absent[0] in line), None)
        raise UserError(f"run {absent[0]}: {why or 'no tracked measurement has this id'}")
    return gathered


def _values(run: Run, name: str) -> set[str]:
    """What a run may be called by: what ran and what was asked for, a label without its number."""
    if name in ("run", "campaign", "user", "verdict"):
        value = run.name if name == "run" else getattr(run, name)
        return {value} if value else set()
    found = {value for value in (run.settings.get(name), run.asked_for(name)) if value}
    if name == "env":
        found |= {_NUMBER.sub("", label) for label in found}
    if name == "precision" and any(value.startswith("amp-") for value in found):
        found.add("amp")
    return found


def _all_tracked() -> list[dict[str, set[str]]]:
    """What a server can look for, of each of its runs: by tags alone, which takes no record."""
    from tracking.connection import Server  # takes MLflow along
    from tracking.reading.tracked_runs import RunColumns, search_columns

    server, kinds = Server(must_exist=True), ("measurement", "imported")
    held = RunColumns.joined(
        [search_columns(server, schema.runs_filter(kind=kind)) for kind in kinds]
    )
    columns = [held.plain(column.replace("`", "")) for column in _ON_SERVER.values()]
    rows = zip(*columns, strict=True)
    return [{name: {value} - {None} for name, value in zip(_ON_SERVER, row, strict=True)}
            for row in rows]  # fmt: skip
