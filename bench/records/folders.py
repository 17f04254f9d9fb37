"""Record folders: where a measurement is safe before anything goes over a network.

<records>/<record_id>/config.json     what was asked for; written first
owners.json     the processes at work on it, and where they run
.owned          locked by each of them while it lives
journal.jsonl   what the worker had reached, line by line
console.log     everything the worker printed
worker.json     the worker's own account, once it has ended
rank-N.json     how rank N ended, where several devices measured together
steps-N.bin     each step of rank N, until the record has them
record.json     the whole record; a folder without it is half-written
mlflow_run      the run that `mlflow run` made for it, if it did
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import platform
import re
import secrets
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import IO, Annotated, Any, TypeVar

import psutil
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from bench.config import user_path, without_home
from bench.config.run_config import RECORDED
from bench.errors import UserError, fault_line
from bench.records import (
    Account,
    CeilingsRecord,
    ImportedRecord,
    Job,
    ProfileRecord,
    RankAccount,
    RunRecord,
    TraceRecord,
)

if sys.platform != "win32":
    import fcntl

T = TypeVar("T")
R = TypeVar("R", bound=BaseModel)

DEFAULT_RECORDS = Path("records")

#: The variable by which a worker is told of its folder's `spare`.
SPARE = "MLPROJECT_SPARE"
#: Held while a measurement runs and released before its record is written, so that a disk that
#: fills up during it cannot cost the record. A record with 1,000 iterations is about 200 KB.
_RESERVE_BYTES = 4 * 2**20

#: What this project measures.
MeasuredRecord = RunRecord | CeilingsRecord | ProfileRecord
#: What it works on: another program's results are those of a `TraceRecord`, or are imported.
WholeRecord = MeasuredRecord | TraceRecord
#: What a record folder, and a tracked run, may hold.
AnyRecord = Annotated[WholeRecord | ImportedRecord, Field(discriminator="kind")]
ANY_RECORD: TypeAdapter[WholeRecord | ImportedRecord] = TypeAdapter(
    AnyRecord, config=ConfigDict(defer_build=True)
)
#: Of a JSON text: a backslash of its own, and the control characters that a terminal would obey.
_ESCAPES = re.compile(
    rb"\\(?:\\|[nrt]|[bf]|u00(?:[01][0-9a-f]|7f|[89][0-9a-f]))|\xc2[\x80-\x9f]", re.IGNORECASE
)
_ODD = "\N{REPLACEMENT CHARACTER}".encode()
_ACCOUNT = TypeAdapter(Account)
_RANK_ACCOUNT = TypeAdapter(RankAccount)


def write_atomically(path: Path, content: str | bytes, *, durable: bool = True) -> None:
    """Write text, as UTF-8, or bytes so that a reader, or a crash, finds the whole file or none.

    What is not `durable` a crash of the machine may damage: a cache, whose files are checked.
    """
    data = content.encode() if isinstance(content, str) else content
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with unfinished.open("xb") as file:
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        if isinstance(error, OSError):  # the system names no file where a write fails
            error.filename = str(path)
        raise


class RecordFolder:
    """One record's folder, by the names that everything in it has."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.record_id = path.name
        self.config = path / "config.json"
        self.journal = path / "journal.jsonl"
        self.console = path / "console.log"
        self.worker = path / "worker.json"
        self.record = path / "record.json"
        self.project_run = path / "mlflow_run"
        self._owners = path / "owners.json"
        self._lock = path / ".owned"
        self._held: IO[bytes] | None = None
        #: Takes the files of a folder that is gone; None where no process of ours measures.
        self.spare = Path(spare) if (spare := os.environ.get(SPARE)) else None
        #: Why the record is not on disk.
        self.problem: str | None = None
        #: Whether its worker was ended from outside, which may be after all that it measures.
        self.is_interrupted = False
        self._reserve = path / ".reserve"

    @classmethod
    def create(cls, records: Path, record_id: str | None = None) -> RecordFolder:
        """Make a new folder with room for its record.

        Raises `UserError` where it cannot be written or the disk is full.
        """
        # a name that sorts by time and never repeats: 20261120T104500Z-1f2e3d4c
        new = f"{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"
        folder = cls(records / (record_id or new))
        try:
            folder.path.mkdir(parents=True)
            folder._reserve.write_bytes(b"\0" * _RESERVE_BYTES)
        except OSError as error:
            with contextlib.suppress(OSError):
                folder.release_reserve()
                folder.path.rmdir()
            why = f"cannot write there ({error.strerror}); choose another folder with --records"
            if error.errno == errno.ENOSPC:
                why = "the disk is full; free some space or use another"
            raise UserError(f"records={str(records)!r}: {why}") from None
        folder.spare = Path(tempfile.gettempdir(), f"mlproject-{secrets.token_hex(8)}")
        return folder

    def release_reserve(self) -> None:
        """Give back the room held for the record."""
        with contextlib.suppress(OSError):
            self._reserve.unlink()

    def hold(self) -> None:
        """Share the folder's lock, if it can have one: other containers see it, not our pids."""
        if sys.platform != "win32" and self._held is None:
            with contextlib.suppress(OSError):
                file = self._lock.open("ab+")
                fcntl.flock(file, fcntl.LOCK_SH)
                self._held = file

    def claim(self, *pids: int) -> None:
        """Note that these processes are at work on the record; start times reveal reused pids."""
        self.hold()
        boot_s = psutil.boot_time()
        started = {}
        for pid in pids:
            with contextlib.suppress(psutil.NoSuchProcess):  # it has ended: it owns nothing
                started[pid] = psutil.Process(pid).create_time() - boot_s
        owners = {**_place(), "lock": self._held and _inode(self._held), "processes": started}
        with contextlib.suppress(OSError):  # the folder is gone, in the middle of a measurement
            write_atomically(self._owners, json.dumps(owners))

    def in_use(self) -> bool:
        """Whether a process that claimed the folder may still run."""
        return any(self._owners_running())

    def orphaned(self) -> bool:
        """Whether the launcher, which claims first, has died and its worker still runs."""
        launcher, *others = self._owners_running() or [False]
        return not launcher and any(others)

    def _owners_running(self) -> list[bool]:
        """Whether each owner runs; one that is not proved to be dead does."""
        try:
            owners = json.loads(_plain_file(self._owners))
            started, boot_s = owners["processes"], psutil.boot_time()
            if (elsewhere := self._run_elsewhere(owners)) is not None:
                return [elsewhere] * len(started)
            return [is_running(int(pid), boot_s + start_s) for pid, start_s in started.items()]
        except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
            return []
        except OSError:  # it is there, and cannot be read
            return [True]

    def _run_elsewhere(self, owners: dict[str, Any]) -> bool | None:
        """Whether owners in another container or machine run; None if their pids are ours."""
        here = _place()
        place = "boot" if here["boot"] else "host"
        if owners[place] == here[place]:
            if owners["namespace"] == here["namespace"]:
                return None
            # one kernel, so its locks are everyone's
            return owners["lock"] is None or self._free_lock() != owners["lock"]
        restarted = here["host"][0] and owners["host"] == here["host"]
        return not restarted or self._free_lock() == []

    def _free_lock(self) -> list[int] | None:
        """The inode of the lock file where nobody holds it, else nothing; None: no telling."""
        if sys.platform == "win32":
            return None
        try:
            with self._lock.open("rb+") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return _inode(file)
        except BlockingIOError:
            return []
        except OSError:
            return None

    def write(self, path: Path, content: BaseModel) -> None:
        """Write a record or a configuration whole or not at all, and without the user's home.

        What a worker tells its launcher goes to `spare` where the folder is gone.
        """
        text = without_home(content.model_dump_json(indent=1))
        try:
            write_atomically(path, text)
        except OSError:
            if self.spare is None or path.name in ("record.json", "environment.json"):
                raise
            self.spare.mkdir(mode=0o700, exist_ok=True)
            write_atomically(self.spare / path.name, text)

    def close(self, record: R) -> R:
        """Write the whole record, and return it as written: nothing names the user's home.

        No process works on the folder any more. Of what this process has measured, `problem` says
        why it could not be written.
        """
        self.release_reserve()
        text = record.model_dump_json(indent=1)
        short = without_home(text)
        with self.losing():
            write_atomically(self.record, short)
            for path in (self.console, self.journal):
                said = path.read_bytes().decode(errors="surrogateescape") if path.exists() else ""
                if (told := without_home(said)) != said:
                    write_atomically(path, told.encode(errors="surrogateescape"))
        self.leave()
        return record if short == text else type(record).model_validate_json(short)

    @contextlib.contextmanager
    def losing(self) -> Iterator[None]:
        """Say once that files of the record cannot be written, if this process measured it."""
        try:
            yield
        except OSError as error:
            if self.spare is None:
                raise
            if self.problem is None:
                self.problem = f"{self.path}: cannot be written ({error.strerror})"
                print(f"mlproject: {self.problem}; only what is shown is left", file=sys.stderr)

    def leave(self) -> None:
        """Note that no process works on the folder any more."""
        self.release_reserve()
        for path in (self._owners, self._lock):
            with contextlib.suppress(OSError):
                path.unlink()
        if self._held is not None:
            self._held = self._held.close()
        if self.spare is not None:
            shutil.rmtree(self.spare, ignore_errors=True)

    def _last(self, path: Path) -> Path:
        """The file, or what was written in its place when the folder was gone."""
        spare = path if self.spare is None else self.spare / path.name
        return spare if spare.exists() else path

    def said(self) -> str:
        """Return what the worker printed, if it can be read."""
        with contextlib.suppress(OSError):
            return self.console.read_text(encoding="utf-8", errors="replace")
        return ""

    def read_record(self) -> AnyRecord | None:
        """Return the record, or None while there is none. Raises `UserError` if it is damaged."""
        return _read(self.record, ANY_RECORD)

    def readable_record(self) -> AnyRecord | None:
        """Return the record, or None where there is none that this version can read."""
        try:
            return self.read_record()
        except UserError:
            return None

    def read_job(self, *, recorded: bool = False) -> Job:
        """Return what was asked for; a `recorded` model need not be here any more.

        Raises `pydantic.ValidationError` and `OSError`.
        """
        context = RECORDED if recorded else None
        return Job.model_validate_json(self._last(self.config).read_bytes(), context=context)

    def read_worker(self) -> Account | None:
        """Return the worker's own account, or None if it never ended."""
        return _read(self._last(self.worker), _ACCOUNT)

    def rank(self, rank: int) -> Path:
        """Return the file of one rank's account."""
        return self.path / f"rank-{rank}.json"

    def read_ranks(self) -> list[RankAccount]:
        """Return the accounts of the ranks that left one, in the order of their ranks."""
        places = self.path, self.spare or self.path
        paths = {path.name: path for place in places for path in place.glob("rank-*.json")}
        accounts = filter(None, (_read(path, _RANK_ACCOUNT) for path in paths.values()))
        return sorted(accounts, key=attrgetter("rank"))


def readable_records(
    records: Path, *, newest_first: bool = False
) -> Iterator[tuple[RecordFolder, AnyRecord]]:
    """Yield the records below `records` that can be read, with their folders.

    Oldest first unless said; none where `records` is no folder.
    """
    folders = [*record_folders(records, missing_ok=True)]
    for folder in reversed(folders) if newest_first else folders:
        if (record := folder.readable_record()) is not None:
            yield folder, record


def ceilings_in(records: Path) -> list[CeilingsRecord]:
    """Return the measured roofs below `records`, oldest first; none where it is no folder."""
    folders = record_folders(records, missing_ok=True)
    return [record for folder in folders if (record := ceilings_of(folder))]


def ceilings_of(folder: RecordFolder) -> CeilingsRecord | None:
    """Return the record, if it is of roofs; others are not parsed, which would take much longer."""
    with contextlib.suppress(OSError):
        if b'"ceilings"' in folder.record.read_bytes():
            record = folder.readable_record()
            return record if isinstance(record, CeilingsRecord) else None
    return None


def record_folders(records: Path, *, missing_ok: bool = False) -> Iterator[RecordFolder]:
    """Yield the record folders below `records`, oldest first, half-written ones too.

    Links are left out: one could lead us to write elsewhere. So are names that a terminal would
    obey. Raises `UserError` where `records` is no folder, unless `missing_ok`.
    """
    try:
        paths = sorted(records.iterdir())
    except OSError as error:
        if missing_ok:
            return
        missing = isinstance(error, FileNotFoundError | NotADirectoryError)
        why = "no such folder" if missing else f"cannot be read ({error.strerror})"
        raise UserError(
            f"records={str(records)!r}: {why}; give the one mlproject run used"
        ) from None
    for path in paths:
        folder = RecordFolder(path)
        here = not path.is_symlink() and path.name.isprintable()
        if here and (folder.config.is_file() or folder.record.exists()):
            yield folder


def read_all(places: Iterable[Path]) -> tuple[list[WholeRecord | ImportedRecord], list[str]]:
    """Return the whole records below the folders `places`, each once, and lines on the others.

    A line is of a record that cannot be read or has another's id, or of a place with measurements
    that are not finished. Raises `UserError` where one of `places` is no folder.
    """
    found: dict[str, WholeRecord | ImportedRecord] = {}
    lines = []
    for records in places:
        unfinished = 0
        for folder in record_folders(records):
            try:
                record = folder.read_record()
            except UserError as error:
                lines.append(str(error))
                continue
            if record is None:
                unfinished += folder.worker.is_file() and not folder.in_use()
            elif found.setdefault(record.record_id, record) != record:
                lines.append(
                    f"{folder.record}: another record has its id, {record.record_id[:80]!r}; "
                    "only the first is read: move one of them away"
                )
        if unfinished:
            lines.append(
                f"{records}: {unfinished} measurements are not finished, since their launcher "
                f"died: mlproject sync --records {records} finishes them"
            )
    return list(found.values()), lines


def read_records(records: Path) -> list[WholeRecord]:
    """Return every whole record below `records`, oldest first, but the imported ones.

    Those hold another program's results. Raises `UserError` for one that cannot be read.
    """
    found = (folder.read_record() for folder in record_folders(records))
    return [r for r in found if r is not None and not isinstance(r, ImportedRecord)]


def parse_record(text: bytes, kinds: TypeAdapter[T]) -> T:
    """Return the record of one of `kinds` in a JSON text; its texts hold no control characters.

    An end of line or a tab becomes a blank, and U+FFFD what else a terminal would obey. Raises
    `ValidationError`.
    """
    shown = {rb"\\": rb"\\", **dict.fromkeys((rb"\n", rb"\r", rb"\t"), b" ")}
    return kinds.validate_json(_ESCAPES.sub(lambda found: shown.get(found[0], _ODD), text))


def _read(path: Path, kinds: TypeAdapter[T]) -> T | None:
    try:
        return parse_record(_plain_file(path), kinds)
    except OSError as error:
        # the last: no folder has such a name
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
            return None
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise UserError(
            f"{path}: not a record of this version ({where}: {first['msg']}); "
            "move the folder away, or read it with the version that wrote it"
        ) from None
    except Exception as error:  # no record stops the others, whatever is in it
        raise UserError(f"{path}: cannot be read ({fault_line(error)})") from error


def _plain_file(path: Path) -> bytes:
    """The file's bytes; raises `OSError` for a pipe, which would be waited for, and the like."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "it is no file")
    return path.read_bytes()


@cache
def _place() -> dict[str, Any]:
    """Where this process runs: the machine, the start of its kernel, and whose pids it sees."""
    facts: dict[str, Any] = {"host": ["", platform.node()], "boot": "", "namespace": 0}
    with contextlib.suppress(OSError):  # Linux has them
        facts["boot"] = Path("/proc/sys/kernel/random/boot_id").read_text("utf-8").strip()
        facts["namespace"] = Path("/proc/self/ns/pid").stat().st_ino
        facts["host"][0] = Path("/etc/machine-id").read_text("utf-8").strip()
    return facts


def _inode(file: IO[bytes]) -> list[int]:
    """What names an open file for all processes of this machine."""
    about = os.fstat(file.fileno())
    return [about.st_dev, about.st_ino]


def cache_folder() -> Path:
    """Return `mlproject` below `XDG_CACHE_HOME`, or below what the system uses in its place.

    A user without a home, as containers have them, keeps it in the temporary folder.
    """
    base = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
    home = user_path("~")
    otherwise = home / ".cache" if home.is_absolute() else tempfile.gettempdir()
    return Path(base or otherwise) / "mlproject"


#: Start times of one process, read twice, differ by less: the system rounds its boot to seconds.
_START_TOLERANCE_S = 2.0


def is_running(process: int | psutil.Process, started_s: float | None = None) -> bool:
    """Whether a process, given by its number or as psutil knows it, runs; a zombie does not.

    `started_s` is its start in seconds since 1970: a process that started at another time was only
    given the same number. A process that may not be looked at runs.
    """
    try:
        found = psutil.Process(process) if isinstance(process, int) else process
        if not found.is_running() or found.status() == psutil.STATUS_ZOMBIE:
            return False
        return started_s is None or abs(found.create_time() - started_s) < _START_TOLERANCE_S
    except psutil.AccessDenied:
        return True
    except (psutil.Error, OverflowError):
        return False
