"""What every measuring command does with a record: show it, upload it, end with a code."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import click

from bench.errors import UserError, fault_line
from bench.launcher.device_lock import exclusive
from bench.launcher.profile import read_timed, recover
from bench.records import (
    ImportedRecord,
    ProfileRecord,
    RunRecord,
    TraceRecord,
    Verdict,
    findings_text,
)
from bench.records.folders import (
    AnyRecord,
    MeasuredRecord,
    RecordFolder,
    ceilings_in,
    write_atomically,
)
from bench.records.journal import OnEvent
from bench.records.metrics import profile_summary
from campaigns.plan import PastRun, take_over
from commands import NOT_TRACKED, OUTCOME_CODES
from commands.console.options import Tracked, Truth, note, option, server_needed
from commands.console.output import Output, Shown, WorkerProgress, fact_lines

if TYPE_CHECKING:
    from analysis.account import StepAccount
    from tracking.connection import Server
    from tracking.schema import Addition
    from tracking.upload.delivery import Delivery
    from tracking.upload.upload import Placing

AnyMeasured = TypeVar("AnyMeasured", bound=MeasuredRecord)

_RUN_ID = re.compile(r"[0-9a-f]{32}")
#: What becomes of a record that another process uploads.
_LOCKED = "being uploaded by another process"
#: What becomes of a record whose run somebody deleted: no second run.
_DELETED = "deleted on the server"
#: What may become of a record folder that is to be uploaded, in the order of printing.
_FATES = ("uploaded", "put right", "not as their records", "there already", "not uploaded",
          "still measuring", "without a step", _DELETED, _LOCKED, "failed")  # fmt: skip
#: A person waits: MLflow's import and a server that does not answer take no longer together, save
#: on a machine so busy that the import takes all of it.
_TOLD_WITHIN_S = 8.0
_AT_LEAST_S = 2.0


def import_upload() -> None:
    """Import what an upload to the store of MLflow's settings needs."""
    with suppress(Exception):  # the upload's own import says what is wrong
        import_module("tracking.upload.upload")
        import_module("analysis.server.pull")
        import_module("tracking.store").import_store()


def finish(
    command: Tracked,
    folder: RecordFolder,
    record: MeasuredRecord,
    facts: Mapping[str, Any],
) -> Output:
    """Upload the record if asked, and return `facts` with where it lies, and the exit code.

    Of a step whose ops were timed, the account of its time stands below.
    """
    found = {"record": str(folder.path), "outcome": record.outcome, "reason": record.reason}
    found |= facts
    code = OUTCOME_CODES[record.outcome]
    if folder.problem is not None:
        code = code or 1
    elif command.tracked and _lacks_step(folder, record):
        note(f"no step was measured, so nothing is uploaded; {folder.path} has the record")
    elif command.tracked:
        began_s = time.monotonic()
        from tracking.connection import Server
        from tracking.upload.upload import upload

        left_s = _TOLD_WITHIN_S - (time.monotonic() - began_s)
        server = Server(patience_s=max(left_s, _AT_LEAST_S), answer_s=None)
        found["run_id"], problem = _tried(lambda: upload(folder, record, server, place=_placing()))
        if problem is not None:
            say_not_uploaded(problem, f"the record is safe in {folder.path}")
            code = code or NOT_TRACKED
    if record.reason is not None:
        note(f"{record.outcome}: {record.reason}")
    account, lines, facts = _account(record, command.records), [*fact_lines(found)], {**found}
    if account is not None:
        lines += account.lines()
        facts |= account.facts()
    if isinstance(record, RunRecord) and record.removals:
        from analysis.gains import gains_of

        facts["gains"] = gains = [*gains_of(record, account)]
        lines += [gain["sentence"] for gain in gains]
    return Output(lines, facts, exit_code=code)


class Measuring(Tracked, Shown):
    """A command that has a fresh worker measure on devices of this machine."""

    wait: Truth = option(
        "wait while another process of this machine measures on the device; false: measure "
        "beside it",
        "true",
        metavar="[true|false]",
    )

    def measured(
        self,
        title: str,
        launch: Callable[[RecordFolder, OnEvent], AnyMeasured],
        facts: Callable[[AnyMeasured], Mapping[str, Any]],
        devices: Iterable[str],
        *,
        wait: bool = True,
        drawn: bool = True,
    ) -> Output:
        """Have `launch` make a record in a new folder, show how it goes on, and `finish` it.

        The `devices` are held until it ends, after waiting for who has them unless `wait` or the
        user's --wait says otherwise. The folder remembers the run that `mlflow run` made for it.
        The terminal is left to others where nothing is `drawn`.
        """
        with exclusive(devices, wait=wait and self.wait):
            folder = RecordFolder.create(self.records)
            if self.tracked and (run_id := os.environ.get("MLFLOW_RUN_ID")):
                write_atomically(folder.project_run, run_id)
            with WorkerProgress(title, drawn=drawn) as progress:
                record = launch(folder, progress.on_event)
            return finish(self, folder, record, facts(record))


def _lacks_step(folder: RecordFolder, record: AnyRecord) -> bool:
    """Whether it is of a script that was watched in vain, and `mlflow run` made no run for it."""
    if not isinstance(record, RunRecord) or not record.config.arch.startswith("script:"):
        return False
    return record.environment is None and not folder.project_run.exists()


def _account(record: MeasuredRecord, records: Path) -> StepAccount | None:
    """Where the time of a step goes, under the roofs of its folder; None if no op was timed."""
    if not isinstance(record, RunRecord | ProfileRecord) or record.ops is None:
        return None
    from analysis.account import account_of
    from analysis.roofs import choose_ceiling

    used = choose_ceiling(record, ceilings_in(records))
    timed: object = record
    if isinstance(record, ProfileRecord) and record.timed_record_id:
        timed = RecordFolder(records / record.timed_record_id).readable_record()
    window = timed.measurement if isinstance(timed, RunRecord) else None
    return account_of(record, used.roof if used else None, window) or None


def _placing() -> Placing:
    """What gives an upload a run's place; puts the picture of its account beside the record."""
    from analysis.account import StepAccount
    from analysis.server.pull import LocalRoofs, addition_of

    roofs = LocalRoofs()

    def place(folder: RecordFolder, record: AnyRecord) -> Addition | None:
        run = roofs.run_of(folder, record)
        if run is None:
            return None
        picture = folder.path / "account.png"
        if isinstance(run.account, StepAccount) and not picture.exists():
            with suppress(Exception):  # the run is whole without it
                from analysis.figures import draw_chart
                from analysis.figures.rows import account_chart

                draw_chart(account_chart([(run.label, run.account)])).savefig(picture, dpi=200)
        return addition_of(run)

    return place


def _tried(call: Callable[[], str]) -> tuple[str | None, str | None]:
    """What `call` returns, or why the server has refused it or is away."""
    from tracking.connection import TrackingError

    try:
        return call(), None
    except TrackingError as error:
        return None, str(error)


def verdict_fact(verdict: Verdict | None) -> dict[str, str]:
    """Return the verdict, with what was found, as a fact to show; nothing where there is none."""
    if verdict is None:
        return {}
    messages = findings_text(sorted(verdict.findings, key=lambda finding: finding.level == "note"))
    facts = {"verdict": verdict.level + (f" ({messages})" if messages else "")}
    remedies = [finding.remedy for finding in verdict.findings if finding.level != "note"]
    if known := [*dict.fromkeys(filter(None, remedies))]:
        facts["remedy"] = "; ".join(known)
    return facts


def profile_facts(record: ProfileRecord) -> dict[str, Any]:
    """Return what a profile shows in a few numbers, and why a section is missing."""
    facts: dict[str, Any] = {"explains": record.timed_record_id}
    facts |= {name: float(f"{value:.4g}") for name, value in profile_summary(record).items()}
    for section in ("ops", "counters", "cpu_counters"):
        if getattr(record, section) is None:
            facts[f"no {section}"] = record.missing[section]
    if (ops := record.ops) is not None:
        facts["profiled_step_ms"] = float(f"{1e3 * ops.step_time_s:.4g}")
        longest = sorted(ops.ops, key=lambda op: op.time_s, reverse=True)[:5]
        for rank, op in enumerate(longest, 1):
            share = op.time_s / ops.ops_time_s if ops.ops_time_s else 0.0
            names = dict.fromkeys((op.label, op.phase or "whole step"))
            took = f"{1e3 * op.time_s:.4g} ms, {100 * share:.0f} % of all ops"
            facts[f"op {rank}"] = f"{' '.join(names)}: {took}"
    return facts | verdict_fact(record.verdict)


def say_not_uploaded(problem: object, safe: str = "the records are safe on disk") -> None:
    """Say why a measurement is not on the server, where it is, and how to upload it."""
    remedy = "mlproject sync uploads what is left, once that is mended"
    note(f"not uploaded ({problem}); {safe}: {remedy}")


class _NoDelivery:
    """What `--no-track` does with a campaign's records: nothing, and without importing MLflow."""

    problem: str | None = None
    project_run: str | None = None

    def runs_elsewhere(self) -> list[PastRun]:
        return []

    def _ignore(self, *_: object, **__: object) -> None: ...

    begin = catch_up = deliver = end = _ignore


AnyDelivery: TypeAlias = "_NoDelivery | Delivery"


def open_delivery(campaign: str, kind: str, *, tracked: bool) -> AnyDelivery:
    """Return what brings the campaign's records to the server; `kind` is sweep or tune."""
    if not tracked:
        return _NoDelivery()
    from tracking.upload.delivery import Delivery

    return Delivery(campaign, kind=kind, place=_placing())


def wait_for_others(records: Path) -> None:
    """Complete the records of killed commands, after the workers that they left."""
    take_over(records, lambda each: click.echo(f"waiting for the worker of {each}", err=True))


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
    folders: Sequence[RecordFolder],
    target: str | None,
    *,
    verify: bool = False,
    say: Callable[[str], None] = click.echo,
) -> Counter[str]:
    """Upload what is not there yet and return how many met which fate.

    The record is the truth: what a run lacks of it, or has otherwise, is named and put right; with
    `verify` it is named alone, and nothing is uploaded. A folder that cannot be read, or that the
    server refuses, is named and the others go on. Raises `TrackingError` where the server can be
    used for nothing now.
    """
    from tracking.connection import Server, TrackingError
    from tracking.upload.upload import DeletedRunError, LockedError

    server, place = Server(target), _placing()
    held = server.runs_of(folder.record_id for folder in folders)
    counts = Counter(dict.fromkeys(_FATES, 0))
    for folder in folders:
        try:
            runs = held.get(folder.record_id, [])
            fate = _uploaded(folder, server, place, runs, say, verify=verify)
        except LockedError:
            fate = _LOCKED
        except Exception as error:  # no record stops the others, whatever is in it
            if getattr(error, "away", False):
                if counts["uploaded"]:
                    click.echo(f"{counts['uploaded']} uploaded before that", err=True)
                raise
            fate = _DELETED if isinstance(error, DeletedRunError) else "failed"
            ours = isinstance(error, UserError | TrackingError | OSError)
            note(f"{folder.path}: {error if ours else fault_line(error)}")
        counts[fate] += 1
    return counts


def _uploaded(
    folder: RecordFolder,
    server: Server,
    place: Placing,
    runs: Sequence[Any],
    say: Callable[[str], None],
    *,
    verify: bool,
) -> str:
    """Upload one folder's record, made whole first where its launcher died; return its fate.

    `runs` are what the server has of it, the one that counts first.
    """
    from tracking.content import content_of
    from tracking.schema import is_whole
    from tracking.upload.upload import check_active, differences, upload, uploading

    record = folder.read_record()
    if record is None and not folder.in_use() and not verify:
        with uploading(folder, wait_s=1.0):  # one process alone
            record = recover(folder)
    if record is None:
        return "still measuring" if folder.in_use() or not verify else "not uploaded"
    if record.record_id != folder.record_id:
        raise UserError(f"holds the record {record.record_id[:80]!r}: name the folder so")
    if not runs and _lacks_step(folder, record):
        return "without a step"
    different = None
    if runs and all(map(is_whole, runs)):
        check_active(runs[0])
        different = differences(server, runs[0], content_of(record), folder, byte_by_byte=verify)
        different += [f"a second whole run, {run.info.run_id}" for run in runs[1:] if verify]
    if different == []:
        return "there already"
    if verify:
        if runs or server.has_experiment():
            server.check_files(runs[0].info.experiment_id if runs else server.experiment_id())
        say(f"  {folder.record_id}: {', '.join(different or ['no whole run'])}")
        return "not uploaded" if different is None else "not as their records"
    run_id = upload(folder, record, server, place=place)
    say(f"  {folder.record_id} -> run {run_id}")
    if different is None:
        return "uploaded"
    say(f"    was not as its record says: {', '.join(different)}")
    return "put right"


def upload_at_the_end(folders: Sequence[RecordFolder], say: Callable[[str], None]) -> int:
    """Upload what is not there yet; say once if the server is away, and return the exit code."""
    from tracking.connection import TrackingError

    try:
        return 1 if upload_all(folders, None, say=say)["failed"] else 0
    except TrackingError as error:
        say_not_uploaded(error)
        return NOT_TRACKED


def log_folder(
    out: Path, name: str, tags: dict[str, str], run_id: str | None = None
) -> tuple[str | None, str | None]:
    """Log a folder as the run `run_id` or a new one; return the run's id, or why there is none."""
    from tracking.upload.upload import log_report

    return _tried(partial(log_report, out, name=name, tags=tags, run_id=run_id))


def timed_record(name: str, records: Path, asked: str) -> RunRecord:
    """Return the measurement of a record's name or folder, or of a tracked run's id.

    `asked` is the option that names it. Raises `UserError` where there is none.
    """
    if _RUN_ID.fullmatch(name) is None:
        return read_timed(records, name, option=asked)
    from analysis import pull_record

    with server_needed():
        record = pull_record(name)
    if not isinstance(record, RunRecord):
        raise UserError(f"{asked}={name!r}: holds no measurement but a {record.kind}")
    return record
