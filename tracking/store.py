"""The tracking server: reached with MLflow's own settings, given up on in seconds, not minutes."""

from __future__ import annotations

import functools
import inspect
import os
import re
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar

import mlflow
import requests
from filelock import FileLock
from mlflow.exceptions import MlflowException
from mlflow.store.tracking import DEFAULT_LOCAL_FILE_AND_ARTIFACT_PATH
from mlflow.tracking import MlflowClient

from bench.doctor import Check
from bench.errors import UserError
from tracking.retry import AWAY_LIMIT_S, failure_line, http_settings, is_away, is_unauthenticated

P = ParamSpec("P")
T = TypeVar("T")

#: MLflow's own ten tries to open a database that is away take 100 s; these take 1 s.
_DATABASE_TRIES = 4

_SQLITE = "sqlite:///"
#: `user:password@` of a URI, wherever a message quotes one.
CREDENTIALS = re.compile(r"(?<=//)[^/@\s]*@")


class TrackingError(Exception):
    """The server could not be used; the message is one line and holds no credentials.

    `away`: whether it can be used for nothing now, as opposed to having refused this one thing.
    """

    def __init__(self, message: str, *, away: bool = True) -> None:
        super().__init__(message)
        self.away = away


@contextmanager
def server_errors(tracking_uri: str | None = None) -> Iterator[None]:
    """Turn everything that a server, its database or the way there can do into `TrackingError`."""
    try:
        with http_settings():
            yield
    except (UserError, TrackingError):
        raise
    except Exception as error:
        line = CREDENTIALS.sub("", failure_line(error))
        away = is_away(error) or is_unauthenticated(error)
        file = sqlite_file(tracking_uri or settings_uri())
        if file is not None and is_broken(file, error):
            away = True
            line = (
                f"the store is damaged or unfinished ({line[:120]}); the records hold everything: "
                f"move {file.name} away, then mlproject sync"
            )
        elif not isinstance(error, _failures()):
            raise
        raise TrackingError(f"{public_uri(tracking_uri)}: {line}"[:400], away=away) from error


def _failures() -> tuple[type[Exception], ...]:
    """What a server, its database or the way there can raise."""
    failures: tuple[type[Exception], ...] = (
        MlflowException,
        requests.RequestException,
        OSError,
        sqlite3.Error,
    )
    # Only an embedded store imports SQLAlchemy, which takes half as long as MLflow.
    sqlalchemy = sys.modules.get("sqlalchemy.exc")
    return failures if sqlalchemy is None else (*failures, sqlalchemy.SQLAlchemyError)


def tracking_call(function: Callable[P, T]) -> Callable[P, T]:
    """Raise `TrackingError` for what the server named by `tracking_uri`, or the usual one, does."""
    names = inspect.signature(function)

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        with server_errors(names.bind(*args, **kwargs).arguments.get("tracking_uri")):
            return function(*args, **kwargs)

    return wrapped


def open_client(tracking_uri: str | None = None) -> MlflowClient:
    """Return a client of `tracking_uri`, or of `MLFLOW_TRACKING_URI`, or of the embedded store."""
    uri = tracking_uri or settings_uri()
    if is_embedded(uri):
        from mlflow.store.db import utils as db_utils

        db_utils.MAX_RETRY_COUNT = _DATABASE_TRIES
        if (file := sqlite_file(uri)) is not None:
            make_store(file, uri)
    return MlflowClient(tracking_uri=uri)


def open_existing(tracking_uri: str | None = None) -> MlflowClient:
    """Return a client that only reads, as `open_client` does.

    Raises `UserError` for an embedded store that does not exist, which MLflow would make.
    """
    uri = tracking_uri or settings_uri()
    file = sqlite_file(uri)
    if file is not None and not file.exists():
        raise UserError(
            f"{file.absolute().parent} has no {file.name}, so no runs are tracked there: go to the "
            "folder that they were measured in, name a server with MLFLOW_TRACKING_URI, or measure "
            "one with mlproject run"
        )
    return open_client(uri)


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


def experiment_id(client: MlflowClient) -> str:
    """Return the experiment that MLflow's variables name, made if new; else MLflow's default.

    The same experiment that `mlflow run` uses, so that runs started either way stand together.
    Raises `TrackingError` where the variables name two experiments, which MLflow refuses too.
    """
    given, name = (os.environ.get(f"MLFLOW_EXPERIMENT_{each}") for each in ("ID", "NAME"))
    if given and name and client.get_experiment(given).name != name:
        raise TrackingError(
            f"MLFLOW_EXPERIMENT_ID={given!r}, MLFLOW_EXPERIMENT_NAME={name!r}: two experiments; "
            "unset one"
        )
    return given or (experiment_named(client, name) if name else "0")


def experiment_named(client: MlflowClient, name: str) -> str:
    """Return the id of the experiment of that name, made by the first process if new."""
    found = client.get_experiment_by_name(name)
    if found is None:
        try:
            return str(client.create_experiment(name))
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
            found = client.get_experiment_by_name(name)
            if found is None:
                raise
    return str(found.experiment_id)


def is_unmade(tracking_uri: str) -> bool:
    """Whether this is an embedded store that does not exist, and that MLflow makes if asked."""
    file = sqlite_file(tracking_uri)
    return file is not None and not file.exists()


def tracking_checks() -> list[Check]:
    """Ask the tracking server for its experiments; an embedded store is not made by that."""
    where = public_uri()
    status: Literal["ok", "warning"] = "ok"
    remedy = None
    if is_unmade(settings_uri()):
        detail = f"{where} will be made by the first tracked run"
    else:
        try:
            with server_errors(), http_settings(AWAY_LIMIT_S):
                count = len(open_client().search_experiments())
                detail = f"{where} answers, {count} experiment{'s' * (count != 1)}"
        except TrackingError as error:
            status, detail = "warning", str(error)
            remedy = (
                "check MLFLOW_TRACKING_URI and the server; records stay on disk until then, "
                "and mlproject sync uploads them"
            )
    return [Check(name="tracking server", status=status, detail=detail, remedy=remedy)]


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


def make_store(file: Path, uri: str) -> None:
    """Make the store of `uri`, or the tables that a newer MLflow needs, whole or not at all."""
    if _has_all_tables(file):
        return
    from sqlalchemy.engine import make_url

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
            made = make_url(uri).set(database=str(new)).render_as_string(hide_password=False)
            sqlalchemy_store.SqlAlchemyStore(made, root).engine.dispose()
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
