"""`mlproject import`: results of other programs, from their files to records and tracked runs."""  # noqa: N999

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bench.config import parse_config
from bench.errors import UserError
from commands.views.options import records_option, track_option
from commands.views.recorded import NOT_TRACKED, say_not_uploaded, upload_all, write_record
from commands.views.terminal import watched

if TYPE_CHECKING:
    from bench.records import Complexity, ImportedRecord
    from bench.records.folders import RecordFolder
    from tracking.importing.work import Step

_COUNTS = ("batch_size", "repeat", "image_size", "devices", "warmup_iters")
_FACTS = ("arch", "env", "device", "backend", "precision", "unit", *_COUNTS)

#: Why results have no place, of those printed.
_MOST_REASONS = 8


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option(
    "--set",
    "facts",
    multiple=True,
    metavar="FACT=VALUE",
    help=f"a fact that a file does not have: {', '.join(_FACTS)} (may be given again)",
)
@click.option(
    "--campaign", default="imported", show_default=True, help="label of the imported runs"
)
@records_option
@track_option
def command(
    files: tuple[Path, ...], facts: tuple[str, ...], campaign: str, records: Path, tracked: bool
) -> int:
    """Import results of other programs: ledgers, iterations, timm, DLLogger, MLPerf, milabench.

    A folder or a zip is searched; a file is recognised by its contents.

    Each result becomes a record and a tracked run, marked as imported, with the line it comes
    from; of results imported before only work that was not counted is added. Exit codes: 0 all
    imported; 1 some rows could not be imported, the others are; 2 a wrong value; 3 imported, but
    not all on the tracking server.
    """
    given = _checked_facts(facts)
    parse_config({"campaign": campaign})
    from bench.records.folders import RecordFolder
    from bench.records.verdict.claimed_flops import judge_claims
    from tracking.importing import read_results

    folders: list[RecordFolder] = []
    counted: dict[Step, Complexity | str] = {}
    bad = 0
    for path in files:
        found = read_results(path, campaign=campaign, given=given)
        places = [RecordFolder(records / record.record_id) for record in found.records]
        results = judge_claims(_with_work(map(_as_known, places, found.records), counted))
        fates = Counter(map(partial(_keep, records), places, results))
        folders += places
        for problem in found.problems:
            click.echo(f"mlproject: {problem}", err=True)
        bad += len(found.problems)
        parts = {
            "imported": fates["imported"],
            "completed with their work": fates["completed"],
            "known already": fates["known"] + found.repeated,
            "not taken": len(found.problems),
            "other files": found.other_files,
        }
        words = ", ".join(f"{number} {what}" for what, number in parts.items() if number)
        click.echo(f"{path}: {words or 'nothing in it'}")
        _say_places(results, records)
    return max(1 if bad else 0, _upload(folders) if tracked else 0)


def _as_known(place: RecordFolder, result: ImportedRecord) -> ImportedRecord:
    """The result as it was imported before, with its work where that was counted.

    Where it was not, what this version reads beside it, such as the number of devices, is added.
    """
    known = place.readable_record()
    if known is None or known.kind != "imported":
        return result
    if known.complexity is not None:
        return known
    return known.replaced(
        params=result.params | known.params, metrics=result.metrics | known.metrics
    )


def _with_work(
    results: Iterable[ImportedRecord], counted: dict[Step, Complexity | str]
) -> list[ImportedRecord]:
    """The results with the work of their steps, or why it was not counted; each step once."""
    from tracking.importing.work import step_of, with_work

    steps = [(one, None if one.complexity is not None else step_of(one)) for one in results]
    new = {step for _, step in steps if step is not None and not isinstance(step, str)}
    in_order = sorted(
        new - counted.keys(), key=lambda step: (step.arch, step.precision, step.batch_size)
    )
    for step in watched(in_order, "counting the work of their steps"):
        counted[step] = _count(step)
    return [
        one if step is None else with_work(one, step if isinstance(step, str) else counted[step])
        for one, step in steps
    ]


def _keep(records: Path, place: RecordFolder, result: ImportedRecord) -> str:
    """Write what is new of a result and return its fate: imported, completed or known."""
    known = place.readable_record()
    if not place.record.is_file():
        write_record(place, result, records)
        return "imported"
    if known is None or known.kind != "imported" or known.complexity or not result.complexity:
        return "known"
    write_record(place, result, records)
    return "completed"


def _count(step: Step) -> Complexity | str:
    try:
        from bench.cost import DEFAULT_CACHE_BYTES, StepSpec, cached_complexity
    except ImportError as error:
        return f"PyTorch cannot be used here ({error})"
    spec = StepSpec(
        step.arch, step.batch_size, step.precision, step.image_size, backend=step.backend
    )
    try:
        return cached_complexity(spec, cache_bytes=DEFAULT_CACHE_BYTES)
    except UserError as error:
        return str(error)


def _say_places(results: Sequence[ImportedRecord], records: Path) -> None:
    """Say under which roofs the results stand, why others have none, and what cannot be true."""
    from analysis.runs.imported import MODELLED, imported_run
    from bench.records import CeilingsRecord
    from bench.records.folders import readable_records

    ceilings = [one for _, one in readable_records(records) if isinstance(one, CeilingsRecord)]
    runs = [imported_run(result, ceilings) for result in results]
    roofs = Counter(
        f"{run.point.ceiling.device} ({run.point.ceiling.kind})" for run in runs if run.point
    )
    for roof, number in roofs.items():
        click.echo(f"  {number} under the roof of {roof}, by modelled work")
    reasons = Counter(run.refusal for run in runs if run.refusal).most_common()
    for reason, number in reasons[:_MOST_REASONS]:
        click.echo(f"  {number} not placed: {reason}")
    if rest := reasons[_MOST_REASONS:]:
        others = sum(number for _, number in rest)
        click.echo(f"  {others} not placed for {len(rest)} other reasons, which report has")
    for run in runs:
        source = run.source
        where = (
            source.source_file
            if source.source_line is None
            else (f"{source.source_file}:{source.source_line}")
        )
        for finding in run.findings:
            if finding.code != MODELLED:
                click.echo(f"  {where}: {run.label}: {finding.level}: {finding.message}")


def _upload(folders: list[RecordFolder]) -> int:
    """Upload what is not there yet; say once if the server is away."""
    from tracking.store import TrackingError

    try:
        counts = upload_all(folders, None)
    except TrackingError as error:
        say_not_uploaded(error)
        return NOT_TRACKED
    return 1 if counts["failed"] else 0


def _checked_facts(pairs: tuple[str, ...]) -> dict[str, str]:
    facts: dict[str, str] = {}
    for pair in pairs:
        name, _, text = pair.partition("=")
        if name not in _FACTS or not text.strip():
            raise UserError(f"set={pair!r}: give FACT=VALUE with one of {', '.join(_FACTS)}")
        if name in _COUNTS and not (text.isascii() and text.isdigit()):
            raise UserError(f"set={pair!r}: give a whole number")
        if name in _COUNTS and name != "warmup_iters" and int(text) == 0:
            raise UserError(f"set={pair!r}: give a number above 0")
        if name == "unit" and text.strip() not in ("s", "ms", "us", "images/s"):
            raise UserError(f"set={pair!r}: give s, ms, us or images/s")
        facts[name] = text.strip()
    return facts
