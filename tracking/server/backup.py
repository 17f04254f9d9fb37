"""Back-ups: the whole database and the artifacts, in one folder per back-up, and the way back."""

from __future__ import annotations

import json
import shutil
import tarfile
from datetime import datetime, timedelta, timezone
from pathlib import Path

from bench.errors import UserError
from tracking.server.postgres import MAINTENANCE, answer
from tracking.server.settings import POSTGRES_NAME, ServerSettings

_DATABASE = "database.dump"
_ARTIFACTS = "artifacts.tar"
_WHOLE = "backup.json"
_STAMP = "%Y%m%dT%H%M%S%fZ"
_NEW_DATABASE = f"{POSTGRES_NAME}_restoring"


def back_up(settings: ServerSettings) -> Path:
    """Write a back-up and return its folder; the oldest beyond `BACKUPS_KEPT` go.

    The server may run: the database is dumped as of one instant, and before the artifacts, so
    that every artifact which the dump knows is in the archive. Raises UserError.
    """
    stamp = _now()
    folder = settings.backups / f"{stamp}.partial"
    try:
        settings.backups.mkdir(parents=True, exist_ok=True, mode=0o700)
        _remove_cut_ones(settings.backups)
        folder.mkdir(mode=0o700)
        _fill(settings, folder)
    except OSError as error:
        raise UserError(f"{folder}: {error.strerror}; no back-up was made") from error
    finally:
        if not (folder / _WHOLE).exists():
            shutil.rmtree(folder, ignore_errors=True)
    whole = folder.rename(settings.backups / stamp)
    for whole_one in sorted(settings.backups.glob(f"*/{_WHOLE}"))[: -settings.backups_kept]:
        shutil.rmtree(whole_one.parent)
    return whole


def _remove_cut_ones(backups: Path) -> None:
    """Remove what a reboot or a kill left of back-ups; one of today may still be written."""
    yesterday = f"{datetime.now(timezone.utc) - timedelta(days=1):{_STAMP}}"
    for cut in backups.glob("*.partial"):
        if cut.name < yesterday:
            shutil.rmtree(cut, ignore_errors=True)


def _fill(settings: ServerSettings, folder: Path) -> None:
    _postgres(
        *(settings, "pg_dump", f"--dbname={POSTGRES_NAME}", "--format=custom"),
        f"--file={folder / _DATABASE}",
    )
    if settings.artifacts_folder is not None:
        with tarfile.open(folder / _ARTIFACTS, "w") as archive:
            archive.add(settings.artifacts_folder, arcname=".")
    (folder / _WHOLE).write_text(json.dumps({"artifacts": settings.artifacts}))


def restore(settings: ServerSettings, folder: Path, *, replace: bool) -> None:
    """Bring database and artifacts back from a back-up, with MLflow stopped.

    Nothing is lost by it: what the server held is moved aside, to `mlflow_replaced_<time>` and
    `<artifacts>.replaced-<time>`, and that only with `replace` and when the back-up is unpacked
    whole. Raises UserError.
    """
    if not (folder / _WHOLE).is_file():
        raise UserError(f"{folder}: no whole back-up (it has no {_WHOLE})")
    tables = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"
    if _psql(settings, POSTGRES_NAME, tables) != "0" and not replace:
        raise UserError("the database is not empty: `--replace` puts the back-up in its place")
    users = f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{POSTGRES_NAME}'"  # noqa: S608
    if _psql(settings, MAINTENANCE, users) != "0":
        raise UserError("the database is in use: stop the MLflow server first")
    new = _unpacked(settings, folder)
    _restored_database(settings, folder / _DATABASE)
    stamp = _now()
    _psql(
        *(settings, MAINTENANCE),
        f"ALTER DATABASE {POSTGRES_NAME} RENAME TO {POSTGRES_NAME}_replaced_{stamp.lower()}",
        f"ALTER DATABASE {_NEW_DATABASE} RENAME TO {POSTGRES_NAME}",
    )
    if new is not None and settings.artifacts_folder is not None:
        if settings.artifacts_folder.exists():
            settings.artifacts_folder.rename(f"{settings.artifacts_folder}.replaced-{stamp}")
        new.rename(settings.artifacts_folder)


def _restored_database(settings: ServerSettings, dump: Path) -> None:
    _psql(settings, MAINTENANCE, f"DROP DATABASE IF EXISTS {_NEW_DATABASE}")
    _psql(settings, MAINTENANCE, f"CREATE DATABASE {_NEW_DATABASE} TEMPLATE template0")
    _postgres(
        *(settings, "pg_restore", "--single-transaction", "--exit-on-error", "--no-owner"),
        *(f"--dbname={_NEW_DATABASE}", str(dump)),
    )


def _unpacked(settings: ServerSettings, folder: Path) -> Path | None:
    """Unpack the artifacts beside their place, before anything is replaced."""
    if not (folder / _ARTIFACTS).exists() or settings.artifacts_folder is None:
        return None
    new = Path(f"{settings.artifacts_folder}.restoring")
    shutil.rmtree(new, ignore_errors=True)
    try:
        with tarfile.open(folder / _ARTIFACTS) as archive:
            _refuse_outsiders(archive, new)
            # Debian's Python 3.11 has no such filter; newer ones warn without
            archive.extraction_filter = getattr(tarfile, "data_filter", None)
            archive.extractall(new)  # noqa: S202
    except (tarfile.TarError, OSError) as error:
        raise UserError(f"{folder / _ARTIFACTS}: {error}") from error
    return new


def _refuse_outsiders(archive: tarfile.TarFile, folder: Path) -> None:
    """Raise TarError for a member that would be written outside `folder`, and for links."""
    root = folder.resolve()
    for member in archive:
        inside = (root / member.name).resolve().is_relative_to(root)
        if not inside or not (member.isfile() or member.isdir()):
            raise tarfile.TarError(f"{member.name!r} is a link, or outside the artifacts' folder")


def _now() -> str:
    return f"{datetime.now(timezone.utc):{_STAMP}}"


def _psql(settings: ServerSettings, database: str, *statements: str) -> str:
    """Run statements, all of them or none, and return what they answer."""
    words = ["--no-align", "--tuples-only", "--quiet", "--set=ON_ERROR_STOP=1"]
    if len(statements) > 1:
        words.append("--single-transaction")
    words += [f"--command={statement}" for statement in statements]
    return _postgres(settings, "psql", f"--dbname={database}", *words).strip()


def _postgres(settings: ServerSettings, name: str, *words: str) -> str:
    where = {"host": settings.postgres_host, "password": settings.postgres_password}
    return answer(name, *words, port=settings.postgres_port, **where)
