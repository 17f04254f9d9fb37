"""What stands in a report: its tables in their order, and the problems at its top."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count

from analysis.comparison.machines import AcrossMachines
from analysis.report import run_tables as of_runs
from analysis.report import step_tables as of_steps
from analysis.runs.place import PlacedProfile
from analysis.runs.points import DOUBTFUL_ROOF
from analysis.runs.run import Run
from analysis.table import RunNumbers, Table
from analysis.traces.placed import PlacedTrace

#: The tables of each part of the report, in its order; each profile and trace is a part besides.
_PARTS = {
    "summary": "summary",
    "across": "times-as-fast prices speed-ups",
    "runs": "uplift batch-gains scatter scaling predictions",
    "points": "points",
    "ceilings": "ceilings",
    "profiles": "profiles copies cpu-counters",
    "traces": "trace-steps trace-idle trace-comparison",
    "measurements": "runs imported measurements phases telemetry",
    "complexity": "complexity",
    "environments": "environments",
}


def report_tables(
    runs: Sequence[Run],
    inside: Mapping[str, PlacedProfile | PlacedTrace],
    run_ids: Mapping[str, str],
    numbers: RunNumbers,
    across: AcrossMachines,
) -> dict[str, list[Table]]:
    """Return the tables of each part of the report that have a row, numbered in its order.

    `inside` are profiles and traces by the names of their parts.
    """
    profiles = {name: one for name, one in inside.items() if isinstance(one, PlacedProfile)}
    traces = {name: one for name, one in inside.items() if isinstance(one, PlacedTrace)}
    named = {
        **of_runs.run_tables(runs, run_ids),
        **of_runs.configuration_tables(runs),
        **of_runs.machine_tables(across),
        **of_steps.profile_tables(list(profiles.values())),
        **of_steps.trace_tables(list(traces.values())),
        "environments": of_runs.environments_table(runs),
    }
    parts: dict[str, list[Table]] = {}
    for part, names in _PARTS.items():
        parts[part] = [named[name] for name in names.split() if name in named]
        if part == "profiles":
            parts |= {name: of_steps.tables_of_profile(one, name) for name, one in profiles.items()}
        if part == "traces":
            parts |= {
                name: [of_steps.trace_ops_table(one, f"ops-{name}")] for name, one in traces.items()
            }
    order = count(1)
    return {
        part: [replace(numbers.put_in(one), number=next(order)) for one in tables if one.rows]
        for part, tables in parts.items()
    }


def problems(
    runs: Sequence[Run],
    profiles: Iterable[PlacedProfile],
    unreadable: Sequence[str],
    numbers: RunNumbers,
) -> list[tuple[str, Sequence[str]]]:
    """Return what must not be taken as it stands, each with the reasons; runs alike together."""
    alike: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        alike.setdefault(run.problems, []).append(run)
    found: list[tuple[str, Sequence[str]]] = [("record not read", [line]) for line in unreadable]
    for reasons, those in alike.items():
        words = [numbers.named([run.name for run in those]).capitalize()]
        words += [those[0].label] if len(those) == 1 else []
        words += ["imported"] if all(run.imported for run in those) else []
        found.append((", ".join(words), reasons))
    found += [
        (f"Roof of {under[0].env}, over {numbers.named([run.name for run in under])}", [why])
        for under, why in doubtful_roofs(runs)
    ]
    found += [(f"Profile {one.number}, {one.label}", one.problems) for one in profiles]
    return [(subject, reasons) for subject, reasons in found if reasons]


def doubtful_roofs(runs: Iterable[Run]) -> Iterator[tuple[list[Run], str]]:
    """Yield the runs under each roof whose measurement was disturbed, with what that means."""
    found: dict[str | None, list[Run]] = {}
    for run in runs:
        if any(finding.code == DOUBTFUL_ROOF for finding in run.findings):
            record_id = run.point.ceiling_record_id if run.point else None
            found.setdefault(record_id, []).append(run)
    for under in found.values():
        messages = (f.message for f in under[0].findings if f.code == DOUBTFUL_ROOF)
        doubts = [message.removeprefix("its roof: ") for message in messages]
        yield (
            under,
            f"suspect: {'; '.join(doubts)}: it may be too low, and so the shares of it too high; "
            "measure it again while the machine rests: mlproject ceilings",
        )
