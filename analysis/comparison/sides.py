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


def read_sides(
    a: str, b: str, on_unreadable: Callable[[str], object] = lambda line: None
) -> tuple[list[Run], list[Run]]:
    """Return the runs that each text names, in the order of their configurations.

    Different machines of one label get a number, on one side or across both. `on_unreadable` gets
    a line for each record that cannot be read. Raises `UserError` where nothing matches or a named
    run is not there, and `TrackingError`.
    """
    ours, theirs = _records(a), _records(b)
    for line in dict.fromkeys((*ours.unreadable, *theirs.unreadable)):
        on_unreadable(line)
    return _chosen(a, ours.with_unique_labels(theirs)), _chosen(b, theirs.with_unique_labels(ours))


def read_side(text: str, on_unreadable: Callable[[str], object] = lambda line: None) -> list[Run]:
    """Return the runs that one text names, as `read_sides` does."""
    records = _records(text)
    for line in records.unreadable:
        on_unreadable(line)
    return _chosen(text, records.with_unique_labels())


def _records(text: str) -> RecordSet:
    """The records among which the short forms of a text choose, or those of its filter."""
    forms = _forms(text)
    return _gathered(forms) if forms else pull_records(text.strip())


def _chosen(text: str, records: RecordSet) -> list[Run]:
    """The runs that have one of the values of each short form that names no place of records."""
    runs, forms = records.runs(), _forms(text)
    elsewhere = {name: forms.pop(name) for name in ("records", "baseline") if name in forms}
    if matching := [run for run in runs if all(_values(run, n) & {*forms[n]} for n in forms)]:
        return distinguished(matching)
    if not runs and records.unreadable:
        raise UserError(f"{text!r}: no measurement matches ({records.unreadable[0]})")
    rows = [{name: _values(run, name) for name in forms} for run in runs]
    if forms and not rows and not elsewhere:
        rows = _all_tracked()
    why = ""
    for name, values in forms.items():
        left = [row for row in rows if row.get(name, {*values}) & {*values}]
        if rows and not left and name != "run":
            held = {value for row in rows for value in row[name]}
            ordered = sorted(held, key=lambda value: (value.isdecimal() and int(value), value))
            more = f" and {len(held) - _MOST_NAMED} more" if len(held) > _MOST_NAMED else ""
            why = f"; {name} is one of {', '.join(ordered[:_MOST_NAMED]) or 'none'}{more}"
        rows = left
    raise UserError(f"{text!r}: no measurement matches{why}")


def _forms(text: str) -> dict[str, list[str]]:
    """The values of the short forms by their names, run ids too; none of a filter of MLflow's."""
    words = re.split(r"[,\s]+", text.strip(", \n\t"))
    if words == [""]:
        raise UserError(f"a side is empty: give {_USUAL_FORMS}, run ids or an MLflow filter")
    return {"run": words} if all(map(_RUN_ID.fullmatch, words)) else _short_forms(text)


def _short_forms(text: str) -> dict[str, list[str]]:
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
    from tracking.tracked_runs import joined, plain, search_table

    server, kinds = Server(must_exist=True), ("measurement", "imported")
    runs = joined(search_table(server, schema.runs_filter(kind=kind)) for kind in kinds)
    columns = {name: plain(runs, tag.replace("`", "")) for name, tag in _ON_SERVER.items()}
    return [
        {name: {value} - {None} for name, value in zip(columns, row, strict=True)}
        for row in zip(*columns.values(), strict=True)
    ]
