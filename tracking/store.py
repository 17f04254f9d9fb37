"""The URIs of tracking servers, and the embedded store: made whole or not at all."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing, suppress
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import uuid4

import mlflow
from filelock import FileLock
from mlflow.entities import FileInfo
from mlflow.store.artifact.http_artifact_repo import HttpArtifactRepository
from mlflow.store.artifact.local_artifact_repo import LocalArtifactRepository
from mlflow.store.tracking import DEFAULT_LOCAL_FILE_AND_ARTIFACT_PATH
from mlflow.utils.credentials import get_default_host_creds
from mlflow.utils.file_utils import local_file_uri_to_path
from mlflow.utils.rest_utils import http_request_safe
from mlflow.utils.uri import validate_path_is_safe
from requests import Response

#: MLflow's own ten tries to open a database that is away take 100 s; these take 1 s.
_DATABASE_TRIES = 4

_SQLITE = "sqlite:///"
#: `user:password@` of a URI, wherever a message quotes one.
CREDENTIALS = re.compile(r"(?<=//)[^/@\s]*@")


def import_store() -> None:
    """Import what the store of MLflow's settings needs, without opening it."""
    if is_embedded(settings_uri()):
        import_module("mlflow.store.tracking.sqlalchemy_store")


def settings_uri() -> str:
    """Return the tracking URI that MLflow's settings name."""
    return str(mlflow.get_tracking_uri())


def is_embedded(tracking_uri: str) -> bool:
    """Whether this process itself opens the store, with no server between."""
    return not tracking_uri.startswith(("http://", "https://"))


def public_uri(tracking_uri: str | None = None) -> str:
    """Return the tracking URI without user name, password and query, the same from every folder."""
    plain = CREDENTIALS.sub("", tracking_uri or settings_uri()).partition("?")[0].rstrip("/")
    path = plain.removeprefix(_SQLITE)
    if path == plain or not path or Path(path).is_absolute():
        return plain
    return _SQLITE + Path(path).absolute().as_posix()


#: A path, `file:`, or a drive of Windows: MLflow's client looks for it on its own machine.
_FOLDER = re.compile(r"file:|[a-z]:[\\/]|(?![a-z][\w+.-]*:).", re.IGNORECASE)


def is_servers_folder(tracking_uri: str, artifact_uri: str) -> bool:
    """Whether the files lie in a folder of the machine of a server, which may be another one."""
    return not is_embedded(tracking_uri) and _FOLDER.match(artifact_uri) is not None


class ServersFolder(HttpArtifactRepository):
    """The files of a run in a folder of the server's machine: listed and read by the server.

    They are written to that folder, so on the server's machine alone.
    """

    def __init__(self, artifact_uri: str, tracking_uri: str) -> None:
        HttpArtifactRepository.__init__(self, artifact_uri, tracking_uri)
        self._run_id = re.split(r"[\\/]", artifact_uri.rstrip("/"))[-2:][0]

    def list_artifacts(self, path: str | None = None) -> list[FileInfo]:
        """Return what the server lists of the run, below `path`."""
        answer = self._ask("/api/2.0/mlflow/artifacts/list", path)
        return [
            FileInfo(validate_path_is_safe(file["path"]), file["is_dir"], file.get("file_size"))
            for file in answer.json().get("files", [])
        ]

    def log_artifact(self, local_file: str, artifact_path: str | None = None) -> None:
        """Copy a file to the folder."""
        LocalArtifactRepository(self.artifact_uri).log_artifact(local_file, artifact_path)

    def _download_file(self, remote_file_path: str, local_path: str) -> None:
        Path(local_path).write_bytes(self._ask("/get-artifact", remote_file_path).content)

    def _ask(self, endpoint: str, path: str | None) -> Response:
        asked = {"run_id": self._run_id} | ({} if path is None else {"path": path})
        creds = get_default_host_creds(self.tracking_uri)
        answer: Response = http_request_safe(creds, endpoint, "GET", params=asked)
        return answer

    def is_shared(self) -> bool:
        """Whether the server lists what this process writes; else nothing of the trial stays."""
        folder = Path(LocalArtifactRepository(self.artifact_uri).artifact_dir)
        trial, made, shared = folder / f"trial-{uuid4().hex}", [], False
        try:
            made = [path for path in (folder, *folder.parents) if not path.exists()]
            folder.mkdir(parents=True, exist_ok=True)
            trial.touch()
            shared = trial.name in {file.path for file in self.list_artifacts()}
        except OSError:  # this machine has no such place
            pass
        finally:
            with suppress(OSError):
                trial.unlink()
            for path in [] if shared else made:
                with suppress(OSError):
                    path.rmdir()
        return shared


def place_of_files(tracking_uri: str, artifact_uri: str) -> str:
    """Return where the files of an embedded store's run lie, also if its folder was moved.

    MLflow keeps the absolute path of the day when the run was made: `mlruns/EXPERIMENT/RUN` beside
    the file of the store.
    """
    file = sqlite_file(tracking_uri)
    if file is None or _FOLDER.match(artifact_uri) is None:
        return artifact_uri
    there = Path(local_file_uri_to_path(artifact_uri))
    if len(there.parts) < 5 or there.parts[-4] != "mlruns" or there.name != "artifacts":
        return artifact_uri
    here = file.absolute().parent.joinpath(*there.parts[-4:])
    is_new = not here.exists() and not there.exists()
    of_here = here.parents[1].exists() or not there.parents[3].exists()  # its experiment, project
    return here.as_uri() if here.exists() or (is_new and of_here) else artifact_uri


def is_unmade(tracking_uri: str) -> bool:
    """Whether this is an embedded store that does not exist, and that MLflow makes if asked."""
    file = sqlite_file(tracking_uri)
    return file is not None and not file.exists()


#: Another process needs a second or two to make the store, and one that died holds no lock.
_STORE_WAIT_S = 120.0
#: As MLflow waits for other writers.
_BUSY_S = 20.0
#: What a whole store may say too.
_PASSING = re.compile("disk is full|No space left|locked|readonly|unable to open")


def sqlite_file(tracking_uri: str) -> Path | None:
    """Return the file that SQLAlchemy opens, None for other stores; in a URI a blank may be %20."""
    if not tracking_uri.startswith("sqlite:///"):
        return None
    from sqlalchemy.engine import make_url

    name = make_url(tracking_uri).database or ":memory:"
    return None if name.startswith((":memory:", "file:")) else Path(name)


def open_store(tracking_uri: str) -> None:
    """Make an embedded store ready for MLflow: few tries to open it, and its file whole.

    The store is made, or given the tables that a newer MLflow needs, whole or not at all.
    """
    from mlflow.store.db import utils as db_utils
    from sqlalchemy.engine import make_url

    db_utils.MAX_RETRY_COUNT = _DATABASE_TRIES
    file = sqlite_file(tracking_uri)
    if file is None or _has_all_tables(file):
        return
    sqlalchemy_store: Any = import_module("mlflow.store.tracking.sqlalchemy_store")
    file.parent.mkdir(parents=True, exist_ok=True)
    root = DEFAULT_LOCAL_FILE_AND_ARTIFACT_PATH
    new = file.with_name(f"{file.name}.new")
    with FileLock(file.with_name(f"{file.name}.lock"), timeout=_STORE_WAIT_S):
        if _has_all_tables(file):
            return
        upgraded = _is_file(file)
        unfinished = (new, new.with_name(f"{new.name}-journal"))
        try:
            for left in unfinished:  # by a process that was killed
                left.unlink(missing_ok=True)
            if upgraded:
                _copy_database(file, new)
            else:  # of a file moved away; SQLite would play it into the new one
                file.with_name(f"{file.name}-journal").unlink(missing_ok=True)
            made = make_url(tracking_uri).set(database=str(new))
            uri = made.render_as_string(hide_password=False)
            sqlalchemy_store.SqlAlchemyStore(uri, root).engine.dispose()
            if upgraded:  # in one transaction, for those who have the file open
                _copy_database(new, file)
            else:
                new.replace(file)
        finally:
            for left in unfinished:
                left.unlink(missing_ok=True)


def _has_all_tables(file: Path) -> bool:
    """Whether MLflow will use the store as it is."""
    if not _is_file(file):
        return False
    db_utils: Any = import_module("mlflow.store.db.utils")
    with closing(_database(file)) as database:
        rows = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        return {name for (name,) in rows} >= set(db_utils.Base.metadata.tables)


def _copy_database(source: Path, target: Path) -> None:
    with closing(_database(source)) as whole, closing(_database(target)) as copy:
        whole.backup(copy)


def _database(file: Path) -> sqlite3.Connection:
    return sqlite3.connect(file, timeout=_BUSY_S)


def _is_file(file: Path) -> bool:
    """Whether there is anything; SQLite makes an empty file before it writes."""
    return file.exists() and file.stat().st_size > 0


def is_broken(file: Path, error: Exception) -> bool:
    """Whether `error` came because of what the file of the store holds."""
    if not _is_file(file) or _PASSING.search(str(error)):
        return False
    try:
        with closing(_database(file)) as database:
            whole = database.execute("PRAGMA integrity_check(1)").fetchone() == ("ok",)
        unreadable = "decode" in str(error)  # text that is none is no damage to SQLite
        return unreadable or not whole or not _has_all_tables(file)
    except sqlite3.Error as why:
        return not isinstance(why, sqlite3.OperationalError)  # those are locks and rights
