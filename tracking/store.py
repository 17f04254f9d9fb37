"""The URIs of tracking servers, and the embedded store: made whole or not at all."""

from __future__ import annotations

import os
import re
import sqlite3
import sys
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Any

from filelock import FileLock

#: MLflow's own ten tries to open a database that is away take 100 s; these take 1 s.
_DATABASE_TRIES = 4

_SQLITE = "sqlite:///"
#: `user:password@` of a URI, wherever a message quotes one.
CREDENTIALS = re.compile(r"(?<=//)[^/@\s]*@")


def import_store() -> None:
    """Import what an upload to the store of MLflow's settings needs, without opening it."""
    import_module("mlflow.tracking")
    if is_embedded(settings_uri()):
        import_module("mlflow.store.tracking.sqlalchemy_store")


def settings_uri() -> str:
    """Return the tracking URI that MLflow's settings name; MLflow is asked where it matters."""
    asked = getattr(sys.modules.get("mlflow"), "get_tracking_uri", None)
    if asked is None and (uri := os.environ.get("MLFLOW_TRACKING_URI")):
        return uri
    here = Path.cwd().as_posix()
    is_old = any(Path("mlruns").glob("[0-9]*/meta.yaml"))  # MLflow's file store
    if asked is None and not is_old and re.fullmatch(r"[/\w.-]+", here):
        return f"{_SQLITE}{here}/mlflow.db"
    return str((asked or import_module("mlflow").get_tracking_uri)())


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
    return not is_embedded(tracking_uri) and is_folder(artifact_uri)


def is_folder(artifact_uri: str) -> bool:
    """Whether files lie in a folder, of the machine whose store names it."""
    return _FOLDER.match(artifact_uri) is not None


def local_path(artifact_uri: str) -> Path:
    """Return the folder that a path or a `file:` URI names."""
    from urllib.request import url2pathname  # which imports a client of HTTP

    return Path(url2pathname(artifact_uri.removeprefix("file://").removeprefix("file:")))


def place_of_files(tracking_uri: str, artifact_uri: str) -> str:
    """Return where the files of an embedded store's run lie, also if its folder was moved.

    MLflow keeps the absolute path of the day when the run was made: `mlruns/EXPERIMENT/RUN` beside
    the file of the store.
    """
    file = sqlite_file(tracking_uri)
    if file is None or not is_folder(artifact_uri):
        return artifact_uri
    there = local_path(artifact_uri)
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
    name = tracking_uri.removeprefix("sqlite:///") or ":memory:"
    if not re.fullmatch(r"[/\w. :-]+", name):
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
    root = "./mlruns"  # MLflow's own default
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
    with closing(open_database(file)) as database:
        rows = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        return {name for (name,) in rows} >= set(db_utils.Base.metadata.tables)


def _copy_database(source: Path, target: Path) -> None:
    with closing(open_database(source)) as whole, closing(open_database(target)) as copy:
        whole.backup(copy)


def open_database(file: Path) -> sqlite3.Connection:
    """Open the file of a store, as MLflow does; who writes is waited for."""
    return sqlite3.connect(file, timeout=_BUSY_S, check_same_thread=False)


def _is_file(file: Path) -> bool:
    """Whether there is anything; SQLite makes an empty file before it writes."""
    return file.exists() and file.stat().st_size > 0


def is_broken(file: Path, error: Exception) -> bool:
    """Whether `error` came because of what the file of the store holds."""
    if not _is_file(file) or _PASSING.search(str(error)):
        return False
    try:
        with closing(open_database(file)) as database:
            whole = database.execute("PRAGMA integrity_check(1)").fetchone() == ("ok",)
        unreadable = "decode" in str(error)  # text that is none is no damage to SQLite
        return unreadable or not whole or not _has_all_tables(file)
    except sqlite3.Error as why:
        return not isinstance(why, sqlite3.OperationalError)  # those are locks and rights
