"""Back-ups: the whole database and the artifacts, in one folder per back-up, and the way back."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from datetime import datetime, timedelta, timezone
from pathlib import Path

from deploy.server.settings import POSTGRES_NAME, Refused, ServerSettings

_DATABASE = "database.dump"
_ARTIFACTS = "artifacts"
_WHOLE = "backup.json"
#: Characters of a message of Postgres' programs, whose last line alone may be half a sentence.
_MOST_SAID = 400
_STAMP = "%Y%m%dT%H%M%S%fZ"
_NEW_DATABASE = f"{POSTGRES_NAME}_restoring"
#: The database that Postgres always has, to stand in while another is made or renamed.
_MAINTENANCE = "postgres"


def back_up(settings: ServerSettings) -> Path:
    """Write a back-up and return its folder; the oldest beyond `BACKUPS_KEPT` go.

    The server may run: the database is dumped as of one instant, and before the artifacts, so
    that every artifact which the dump knows is copied. Raises Refused.
    """
    now = datetime.now(timezone.utc)
    folder = settings.backups / f"{now:{_STAMP}}.partial"
    try:
        settings.backups.mkdir(parents=True, exist_ok=True, mode=0o700)
        for cut in settings.backups.glob("*.partial"):  # one of today may still be written
            if cut.name < f"{now - timedelta(days=1):{_STAMP}}":
                shutil.rmtree(cut, ignore_errors=True)
        folder.mkdir(mode=0o700)
        dump = ("--format=custom", f"--file={folder / _DATABASE}")
        _postgres(settings, "pg_dump", f"--dbname={POSTGRES_NAME}", *dump)
        if settings.artifacts_folder is not None:
            _copy(settings.artifacts_folder, folder / _ARTIFACTS)
        (folder / _WHOLE).write_text(json.dumps({"artifacts": settings.artifacts}))
    except OSError as error:
        raise Refused(f"{folder}: {error.strerror}; no back-up was made") from error
    finally:
        if not (folder / _WHOLE).exists():
            shutil.rmtree(folder, ignore_errors=True)
    whole = folder.rename(folder.with_suffix(""))
    for old in sorted(settings.backups.glob(f"*/{_WHOLE}"))[: -settings.backups_kept]:
        shutil.rmtree(old.parent)
    return whole


def restore(settings: ServerSettings, folder: Path, *, replace: bool) -> None:
    """Bring database and artifacts back from a back-up, with MLflow stopped.

    Nothing is lost by it: what the server held is moved aside, to `mlflow_replaced_<time>` and
    `<artifacts>.replaced-<time>`, and that only with `replace` and when the back-up is unpacked
    whole. Raises Refused.
    """
    if not (folder / _WHOLE).is_file():
        raise Refused(f"{folder}: no whole back-up (it has no {_WHOLE})")
    tables = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"
    if _psql(settings, POSTGRES_NAME, tables) != "0" and not replace:
        raise Refused("the database is not empty: `--replace` puts the back-up in its place")
    users = f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{POSTGRES_NAME}'"  # noqa: S608
    if _psql(settings, _MAINTENANCE, users) != "0":
        raise Refused("the database is in use: stop the MLflow server first")
    if (packed := folder / f"{_ARTIFACTS}.tar").exists() and not (folder / _ARTIFACTS).exists():
        raise Refused(f"{packed}: of an older version; unpack it to {folder / _ARTIFACTS} first")
    artifacts = settings.artifacts_folder
    new = None
    if artifacts is not None and (folder / _ARTIFACTS).exists():
        new = Path(f"{artifacts}.restoring")
        _copy(folder / _ARTIFACTS, new)
    _psql(settings, _MAINTENANCE, f"DROP DATABASE IF EXISTS {_NEW_DATABASE}")
    _psql(settings, _MAINTENANCE, f"CREATE DATABASE {_NEW_DATABASE} TEMPLATE template0")
    _postgres(
        *(settings, "pg_restore", "--single-transaction", "--exit-on-error", "--no-owner"),
        *(f"--dbname={_NEW_DATABASE}", str(folder / _DATABASE)),
    )
    stamp = f"{datetime.now(timezone.utc):{_STAMP}}"
    _psql(
        *(settings, _MAINTENANCE),
        f"ALTER DATABASE {POSTGRES_NAME} RENAME TO {POSTGRES_NAME}_replaced_{stamp.lower()}",
        f"ALTER DATABASE {_NEW_DATABASE} RENAME TO {POSTGRES_NAME}",
    )
    if new is not None and artifacts is not None:
        if artifacts.exists():
            artifacts.rename(f"{artifacts}.replaced-{stamp}")
        new.rename(artifacts)


def _copy(source: Path, target: Path) -> None:
    """Copy artifacts to a new folder; MLflow makes no links, and none may lead elsewhere."""

    def links(folder: str, names: list[str]) -> list[str]:
        return [name for name in names if Path(folder, name).is_symlink()]

    shutil.rmtree(target, ignore_errors=True)
    try:
        shutil.copytree(source, target, ignore=links)
    except OSError as error:
        raise Refused(f"{source}: {error}"[:_MOST_SAID]) from error


def _psql(settings: ServerSettings, database: str, *statements: str) -> str:
    """Run statements, all of them or none, and return what they answer."""
    words = ["--no-align", "--tuples-only", "--quiet", "--set=ON_ERROR_STOP=1"]
    if len(statements) > 1:
        words.append("--single-transaction")
    words += [f"--command={statement}" for statement in statements]
    return _postgres(settings, "psql", f"--dbname={database}", *words).strip()


def _postgres(settings: ServerSettings, name: str, *words: str) -> str:
    """What a program of Postgres prints; raises Refused with what it says if it fails."""
    program = shutil.which(name)
    if program is None:
        raise Refused(
            f"no {name} on the path: install Postgres, e.g. `sudo apt-get install postgresql` or "
            "`brew install postgresql@17`"
        )
    where = {
        "PGHOST": settings.postgres_host,
        "PGPORT": str(settings.postgres_port),
        "PGUSER": POSTGRES_NAME,
        "PGPASSWORD": settings.postgres_password,
    }
    done = subprocess.run([program, *words], env=os.environ | where, capture_output=True, text=True)
    if done.returncode:
        why = " ".join(done.stderr.split())[-_MOST_SAID:] or f"exit code {done.returncode}"
        raise Refused(f"{name}: {why}")
    return done.stdout
