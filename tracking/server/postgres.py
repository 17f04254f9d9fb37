"""Programs of Postgres: those of the settings' database, and a Postgres of one's own."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.errors import UserError
from tracking.server.settings import POSTGRES_NAME

#: Where the packages of Debian, Fedora and Homebrew put what is not on the path.
_FOLDERS = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/opt/homebrew/opt/postgresql@*/bin")
#: The user that Debian's and Fedora's packages make: Postgres refuses to run as root.
_OWNER = "postgres"
#: The database that Postgres always has, to stand in while another is made or renamed.
MAINTENANCE = "postgres"


def program(name: str) -> str:
    """Return the path of a program of Postgres, the newest; raises UserError without one."""
    found = [file for folder in _FOLDERS for file in Path("/").glob(f"{folder[1:]}/{name}")]
    if found:
        return str(max(found, key=lambda file: [int(n) for n in re.findall(r"\d+", str(file))]))
    on_path = shutil.which(name)
    if on_path is None:
        raise UserError(
            f"no {name} here: install Postgres, e.g. `sudo apt-get install postgresql` or "
            "`brew install postgresql@17`"
        )
    return on_path


def answer(name: str, *words: str, host: str = "127.0.0.1", port: int, password: str) -> str:
    """Return what a program of Postgres prints; raises UserError with its last line if it fails."""
    where = {"PGHOST": host, "PGPORT": str(port), "PGUSER": POSTGRES_NAME, "PGPASSWORD": password}
    done = subprocess.run(
        [program(name), *words], env=os.environ | where, capture_output=True, text=True
    )
    if done.returncode:
        why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise UserError(f"{name}: {why}")
    return done.stdout


@contextmanager
def running(folder: Path, port: int, password: str) -> Iterator[None]:
    """Run a Postgres in `folder`, on 127.0.0.1 only, until the block ends; new if none is there.

    As root its processes and files are those of the user `postgres`, who must be able to enter
    `folder`. Raises UserError where it cannot start.
    """
    data, log = folder / "postgres", folder / "postgres.log"
    if not (data / "PG_VERSION").exists():
        _make(data, password)
    # no socket file: its folder may be one that the owner cannot write to, or too long
    places = ("-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=")
    with log.open("ab") as output:
        process = subprocess.Popen(
            [program("postgres"), "-D", str(data), "-p", str(port), *places],
            stdout=output,
            stderr=output,
            start_new_session=True,
            **_as_owner(),
        )
    try:
        asked = [program("pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]
        wait_until(lambda: not subprocess.run(asked).returncode, process, log)
        there = ("-d", MAINTENANCE, "-Atc", "SELECT datname FROM pg_database")
        if POSTGRES_NAME not in answer("psql", *there, port=port, password=password).split():
            answer("createdb", POSTGRES_NAME, port=port, password=password)
        yield
    finally:
        process.send_signal(signal.SIGINT)  # fast: it lets no client keep it up
        process.wait(timeout=60)


def wait_until(answers: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    """Return when a started program answers; raises UserError with the end of its log if never."""
    deadline = time.monotonic() + 120
    while not answers():
        if process.poll() is not None or time.monotonic() > deadline:
            last = (log.read_text(errors="replace").strip().splitlines() or ["nothing"])[-1]
            raise UserError(f"no answer; the end of {log}: {last}")
        time.sleep(0.1)


def _as_owner() -> dict[str, Any]:
    """How a program is started so that its files are the owner's, None for the caller's own."""
    owner = _OWNER if os.name == "posix" and os.geteuid() == 0 else None
    return {"cwd": "/", "user": owner, "group": owner, "extra_groups": [] if owner else None}


def _make(data: Path, password: str) -> None:
    data.mkdir(parents=True)
    first = data.parent / "postgres.first"  # initdb reads the password from a file only
    first.touch(mode=0o600)
    first.write_text(password, encoding="utf-8")
    if owner := _as_owner()["user"]:
        for path in (data, first):
            shutil.chown(path, owner, owner)
    words = ["-D", str(data), "-U", POSTGRES_NAME, "-E", "UTF8", "--locale=C"]
    words += ["--auth=scram-sha-256", f"--pwfile={first}"]
    done = subprocess.run(
        [program("initdb"), *words], capture_output=True, text=True, **_as_owner()
    )
    first.unlink()
    if done.returncode:
        shutil.rmtree(data)
        why = (done.stderr.strip().splitlines() or ["initdb failed"])[-1]
        raise UserError(f"no database could be made in {data}, which {owner or 'you'} own: {why}")
