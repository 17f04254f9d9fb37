"""What every measuring command does with a record: show it, upload it, end with a code."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import click

from bench.errors import UserError
from bench.records import findings_text
from bench.records.folders import MeasuredRecord, RecordFolder, write_atomically
from commands.views.worker_progress import WorkerProgress

if TYPE_CHECKING:
    from bench.records import (
        ImportedRecord,
        OpProfile,
        ProfileRecord,
        RunRecord,
        TraceRecord,
        Verdict,
    )
    from bench.records.journal import OnEvent
    from campaigns.sweep.past import PastRun
    from tracking.upload.delivery import Delivery
    from tracking.upload.upload import Held, Placing

    AnyDelivery: TypeAlias = "NoDelivery | Delivery"

AnyMeasured = TypeVar("AnyMeasured", bound=MeasuredRecord)

#: Exit codes by how a measurement ended.
EXIT_CODES = {"ok": 0, "oom": 1, "crashed": 1, "unsupported": 2, "refused": 2, "interrupted": 130}
NOT_TRACKED = 3
#: What may become of a record folder that is to be uploaded, in the order of printing.
_FATES = (
    "uploaded",
    "put right",
    "not as their records",
    "there already",
    "not uploaded",
    "still measuring",
    "being uploaded by another process",
    "failed",
)
#: Findings about what else the machine did.
_DISTURBANCES = ("busy-host", "stolen-time", "foreign-process", "ops-above-step")
#: A person waits: MLflow's import and a server that does not answer take no longer together, save
#: on a machine so busy that the import takes all of it.
_TOLD_WITHIN_S = 8.0
_AT_LEAST_S = 2.0


def measured(
    records: Path,
    title: str,
    launch: Callable[[RecordFolder, OnEvent], AnyMeasured],
    facts: Callable[[AnyMeasured], dict[str, Any]],
    *,
    devices: Iterable[str],
    wait: bool,
    tracked: bool,
    form: str,
) -> int:
    """Have `launch` make a record in a new folder, show how it goes on, and `finish` it.

    The `devices` are held meanwhile; with `wait` this waits for who has them. The folder remembers
    the run that `mlflow run` made for it.
    """
    from bench.launcher.device_lock import exclusive

    with exclusive(devices, wait=wait):
        folder = RecordFolder.create(records)
        if tracked and (run_id := os.environ.get("MLFLOW_RUN_ID")):
            write_atomically(folder.project_run, run_id)
        with WorkerProgress(title) as progress:
            record = launch(folder, progress.on_event)
        return finish(folder, record, facts(record), tracked=tracked, form=form)


def import_upload() -> None:
    """Import what an upload to the store of MLflow's settings needs."""
    with suppress(Exception):  # the upload's own import says what is wrong
        import_module("tracking.upload.upload")
        import_module("analysis.runs.tracked.additions")
        import_module("tracking.store").import_store()


def finish(
    folder: RecordFolder,
    record: MeasuredRecord,
    facts: dict[str, Any],
    *,
    tracked: bool,
    form: str,
    fresh: bool = True,
) -> int:
    """Upload the record if asked, print `facts` with where it lies, and return the exit code.

    `fresh`: this process has just measured it.
    """
    facts = {"record": str(folder.path), "outcome": record.outcome, "reason": record.reason} | facts
    code = EXIT_CODES[record.outcome]
    if tracked:
        run_id, problem = _upload(folder, record, fresh=fresh)
        facts["run_id"] = run_id
        if problem is not None:
            say_not_uploaded(problem, f"the record is safe in {folder.path}")
            code = code or NOT_TRACKED
    if form == "json":
        click.echo(json.dumps(facts))
    else:
        known = {name: value for name, value in facts.items() if value is not None}
        width = max(map(len, known))
        for name, value in known.items():
            click.echo(f"  {name:<{width}}  {value}")
    if record.reason is not None:
        click.echo(f"mlproject: {record.outcome}: {record.reason}", err=True)
    return code


def _upload(
    folder: RecordFolder, record: MeasuredRecord, *, fresh: bool
) -> tuple[str | None, str | None]:
    """Return the run id, or the reason why there is none."""
    began_s = time.monotonic()
    from analysis.runs.tracked.additions import RoofsBeside
    from tracking.retry import RetryPolicy
    from tracking.store import TrackingError
    from tracking.upload.upload import upload

    left_s = _TOLD_WITHIN_S - (time.monotonic() - began_s)
    try:
        ask = RetryPolicy(max(left_s, _AT_LEAST_S))
        return upload(folder, record, fresh=fresh, ask=ask, place=RoofsBeside()), None
    except TrackingError as error:
        return None, str(error)


def verdict_fact(verdict: Verdict | None) -> dict[str, str]:
    """Return the verdict, with what was found, as a fact to show; nothing where there is none."""
    if verdict is None:
        return {}
    messages = findings_text(verdict.findings)
    facts = {"verdict": verdict.level + (f" ({messages})" if messages else "")}
    found = {finding.code for finding in verdict.findings if finding.level != "note"}
    if not found.isdisjoint(_DISTURBANCES):
        facts["remedy"] = "measure again while the machine rests"
    return facts


def profile_facts(record: ProfileRecord) -> dict[str, Any]:
    """Return what a profile shows in a few numbers, and why a section is missing."""
    from bench.records.verdict.record_metrics import profile_summary

    facts: dict[str, Any] = {"explains": record.timed_record_id}
    facts |= {name: float(f"{value:.4g}") for name, value in profile_summary(record).items()}
    for section in ("ops", "counters", "cpu_counters"):
        if getattr(record, section) is None:
            facts[f"no {section}"] = record.missing[section]
    if record.ops is not None:
        facts["profiled_step_ms"] = float(f"{1e3 * record.ops.step_time_s:.4g}")
        facts |= dict(_dearest(record.ops))
    return facts | verdict_fact(record.verdict)


def _dearest(ops: OpProfile) -> Iterator[tuple[str, str]]:
    """The five ops of the longest times, in ms and as a share of all ops' time."""
    longest = sorted(ops.ops, key=lambda op: op.time_s, reverse=True)[:5]
    for rank, op in enumerate(longest, 1):
        share = op.time_s / ops.ops_time_s if ops.ops_time_s else 0.0
        phase = op.phase or "whole step"
        name = op.label if op.label == phase else f"{op.label} {phase}"
        yield f"op {rank}", f"{name}: {1e3 * op.time_s:.4g} ms, {share:.0%} of all ops"


def say_not_uploaded(problem: object, safe: str = "the records are safe on disk") -> None:
    """Say why a measurement is not on the server, where it is, and how to upload it."""
    click.echo(
        f"mlproject: not uploaded ({problem}); {safe}: "
        "mlproject sync uploads what is left, once that is mended",
        err=True,
    )


class NoDelivery:
    """What `--no-track` does with a campaign's records: nothing, and without importing MLflow."""

    problem: str | None = None
    project_run: str | None = None

    def begin(self, params: dict[str, str]) -> None:
        """Leave the run that `mlflow run` made as it is."""

    def runs_elsewhere(self) -> list[PastRun]:
        """Know of no run but those on disk."""
        return []

    def catch_up(self, records: Path) -> None:
        """Upload nothing."""

    def deliver(self, folder: RecordFolder, record: RunRecord | ProfileRecord) -> None:
        """Upload nothing."""

    def end(self, note: str, *, interrupted: bool) -> None:
        """Have nothing to end."""


def open_delivery(campaign: str, kind: str, *, tracked: bool) -> AnyDelivery:
    """Return what brings the campaign's records to the server; `kind` is sweep or tune."""
    if not tracked:
        return NoDelivery()
    from analysis.runs.tracked.additions import RoofsBeside
    from tracking.upload.delivery import Delivery

    return Delivery(campaign, kind=kind, place=RoofsBeside())


def write_record(folder: RecordFolder, record: ImportedRecord | TraceRecord, records: Path) -> None:
    """Write a record that no worker made; raises `UserError` where it cannot be written."""
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
        folder.write(folder.record, record)
    except OSError as error:
        raise UserError(
            f"records={str(records)!r}: cannot write there ({error.strerror}); "
            "choose another folder with --records"
        ) from None


def upload_all(
    folders: Sequence[RecordFolder], target: str | None, *, verify: bool = False
) -> Counter[str]:
    """Upload what is not there yet and return how many met which fate.

    The record is the truth: what a run lacks of it, or has otherwise, is named and put right; with
    `verify` it is named alone, and nothing is uploaded. A
    folder that cannot be read, or that the server refuses, is named and the others go on. Raises
    `TrackingError` where the server can be used for nothing now.
    """
    from analysis.runs.tracked.additions import RoofsBeside
    from tracking.store import TrackingError
    from tracking.upload.upload import Held, LockedError

    place = RoofsBeside()
    held = Held([folder.record_id for folder in folders], target)
    counts = Counter(dict.fromkeys(_FATES, 0))
    for folder in folders:
        try:
            fate = _uploaded(folder, target, place, held, verify=verify)
        except (LockedError, UserError, TrackingError) as error:
            if isinstance(error, LockedError) or isinstance(error.__cause__, LockedError):
                fate = "being uploaded by another process"
            elif isinstance(error, TrackingError) and error.away:
                click.echo(f"{counts['uploaded']} uploaded before that", err=True)
                raise
            else:
                fate = "failed"
                click.echo(f"mlproject: {folder.record_id}: {error}", err=True)
        counts[fate] += 1
    return counts


def _uploaded(
    folder: RecordFolder, target: str | None, place: Placing, held: Held, *, verify: bool
) -> str:
    """Upload one folder's record, made whole first where its launcher died; return its fate."""
    from bench.launcher.recover import recover
    from tracking.retry import ANSWER_LIMIT_S, AWAY_LIMIT_S, RetryPolicy
    from tracking.upload.upload import upload, uploading

    record = folder.read_record()
    if record is None:
        if folder.in_use() or verify:
            return "still measuring" if folder.in_use() else "not uploaded"
        with uploading(folder, wait_s=1.0):  # one process alone
            record = recover(folder)
    if record is None:
        return "still measuring"
    if record.record_id != folder.record_id:
        raise UserError(f"holds the record {record.record_id[:80]!r}: name the folder so")
    different = held.differences(folder, record, contents=verify)
    if different == []:
        return "there already"
    if verify:
        click.echo(f"  {folder.record_id}: {', '.join(different or ['no whole run'])}")
        return "not uploaded" if different is None else "not as their records"
    ask = RetryPolicy(AWAY_LIMIT_S, ANSWER_LIMIT_S)
    run_id = upload(folder, record, target, ask=ask, place=place)
    click.echo(f"  {folder.record_id} -> run {run_id}")
    if different is None:
        return "uploaded"
    click.echo(f"    was not as its record says: {', '.join(different)}")
    return "put right"
