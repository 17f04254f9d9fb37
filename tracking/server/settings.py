"""The settings of a server: their file, how they are read, and what is refused."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.errors import UserError

#: What must be secret. MLflow and Postgres read them under these very names.
ADMIN_PASSWORD = "MLFLOW_AUTH_ADMIN_PASSWORD"  # noqa: S105
SECRETS = (ADMIN_PASSWORD, "MLFLOW_FLASK_SERVER_SECRET_KEY", "POSTGRES_PASSWORD")

#: Role and database of Postgres.
POSTGRES_NAME = "mlflow"

_SHORTEST_SECRET = 16
_FEWEST_DIFFERENT_CHARACTERS = 8
#: What people leave in place, compared without case, digits' disguises and punctuation.
_PLACEHOLDERS = (
    *("changeme", "changethis", "placeholder", "replaceme", "yourpassword", "yoursecret"),
    *("password", "passwort", "secret", "default", "example", "letmein", "qwerty", "mlflow"),
    *("mlproject", "postgres", "admin", "12345678", "abcdefgh"),
)
#: A DNS name. `*` would let any Host header in, a blank or brace would end Caddy's line.
_NEEDED_NAME = "the public DNS name, such as mlflow.lab.org"
_LABEL = r"[a-z0-9]([a-z0-9-]*[a-z0-9])?"
_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")
#: Settings that are whole numbers, and the largest of each.
_NUMBERS = dict.fromkeys(("MLFLOW_PORT", "POSTGRES_PORT"), 65_535) | dict.fromkeys(
    ("BACKUPS_KEPT", "MAX_REQUESTS"), 99_999
)
_SIZE = re.compile(r"[1-9][0-9]*(KB|MB|GB)")


#: What compose, a shell and we read alike: no quotes, blanks, dollars, backslashes or hashes.
_PLAIN = re.compile(r"[A-Za-z0-9._~:/@+=,%-]*")


@dataclass(frozen=True)
class ServerSettings:
    """What a server needs to know; made by `checked`, so that none exists with a weak secret."""

    name: str
    bind: str
    port: int
    admin: str
    admin_password: str
    flask_key: str
    postgres_host: str
    postgres_port: int
    postgres_password: str
    artifacts: str
    state: Path
    backups: Path
    backups_kept: int

    def __repr__(self) -> str:
        """Name the server only: a settings object in a traceback must not show its secrets."""
        return f"ServerSettings({self.name!r})"

    @property
    def url(self) -> str:
        """Where MLflow itself answers on this machine, behind the proxy."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def artifacts_folder(self) -> Path | None:
        """The local folder of the artifacts, None where a bucket holds them."""
        return None if "://" in self.artifacts else Path(self.artifacts)


def checked(given: Mapping[str, str]) -> ServerSettings:
    """Make settings of variables; raises UserError for all that is missing or weak, in one line."""
    wrong = [*_weak_secrets(given), *_wrong_values(given)]
    if wrong:
        raise UserError("the server does not start: " + "; ".join(wrong))
    state = Path(given.get("STATE_FOLDER") or "/var/lib/mlproject-server")
    return ServerSettings(
        name=given["SERVER_NAME"],
        bind=given.get("MLFLOW_BIND") or "127.0.0.1",
        port=int(given.get("MLFLOW_PORT") or 5000),
        admin=given.get("MLFLOW_AUTH_ADMIN_USERNAME") or "admin",
        admin_password=given[ADMIN_PASSWORD],
        flask_key=given["MLFLOW_FLASK_SERVER_SECRET_KEY"],
        postgres_host=given.get("POSTGRES_HOST") or "127.0.0.1",
        postgres_port=int(given.get("POSTGRES_PORT") or 5432),
        postgres_password=given["POSTGRES_PASSWORD"],
        artifacts=given.get("ARTIFACTS") or str(state / "artifacts"),
        state=state,
        backups=Path(given.get("BACKUP_FOLDER") or "/var/backups/mlproject-server"),
        backups_kept=int(given.get("BACKUPS_KEPT") or 14),
    )


def _weak_secrets(given: Mapping[str, str]) -> list[str]:
    wrong = [f"{name} {why}" for name in SECRETS if (why := weakness(given.get(name, "")))]
    for index, name in enumerate(SECRETS):
        for other in SECRETS[:index]:
            if given.get(name) and given.get(name) == given.get(other):
                wrong.append(f"{name} is the same as {other}: give each its own")
    return wrong


def weakness(secret: str) -> str | None:
    """Say what is wrong with a secret, without quoting it; None for a good one."""
    if not secret:
        return "is missing: `openssl rand -hex 24` makes one"
    if len(secret) < _SHORTEST_SECRET:
        return f"has {len(secret)} characters: {_SHORTEST_SECRET} or more are needed"
    if len(set(secret)) < _FEWEST_DIFFERENT_CHARACTERS:
        return "repeats few characters: `openssl rand -hex 24` makes a good one"
    plain = re.sub(r"[^a-z0-9]", "", secret.lower())
    undisguised = plain.translate(str.maketrans("013457", "oleast"))
    if any(word in plain or word in undisguised for word in _PLACEHOLDERS):
        return "is or holds a placeholder: `openssl rand -hex 24` makes a good one"
    return None


def _wrong_values(given: Mapping[str, str]) -> list[str]:
    wrong = []
    name = given.get("SERVER_NAME", "")
    if not _NAME.fullmatch(name):
        wrong.append(f"SERVER_NAME is {name!r}: {_NEEDED_NAME}")
    for number, most in _NUMBERS.items():
        text = given.get(number, "")
        if text and not (re.fullmatch(r"[1-9][0-9]{0,4}", text) and int(text) <= most):
            wrong.append(f"{number} is {text!r}: a whole number from 1 to {most}")
    size = given.get("MAX_UPLOAD", "")
    if size and not _SIZE.fullmatch(size):
        wrong.append(f"MAX_UPLOAD is {size!r}: a size such as 512MB or 2GB")
    artifacts = given.get("ARTIFACTS", "")
    if artifacts and not artifacts.startswith(("/", "s3://", "gs://")):
        wrong.append(f"ARTIFACTS is {artifacts!r}: an absolute folder, s3://bucket or gs://bucket")
    return wrong


def read_file(path: Path) -> dict[str, str]:
    """Read lines of `NAME=value`; raises UserError for what other readers would read differently.

    No message quotes a value: it may be a secret.
    """
    found = {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UserError(
            f"{path}: {error.strerror}; `python -m tracking.server settings` writes one"
        ) from error
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.startswith("#"):
            continue
        name, equals, value = line.partition("=")
        if not equals or not re.fullmatch(r"[A-Z][A-Z0-9_]*", name):
            raise UserError(f"{path}, line {number}: not NAME=value")
        if not _PLAIN.fullmatch(value):
            raise UserError(
                f"{path}, line {number}: {name} has a quote, blank, $, # or other character that "
                "compose and a shell read differently: use letters, digits and ._~:/@+=,%-"
            )
        found[name] = value
    return found


def write_settings(file: Path, name: str) -> None:
    """Write a new settings file that only its owner can read, with secrets made for it.

    Raises UserError for a name that no server could have, before anything is written.
    """
    name = name.lower()
    if not _NAME.fullmatch(name):
        raise UserError(f"{name!r} is no name of a server: give {_NEEDED_NAME}")
    lines = [f"SERVER_NAME={name}", *(f"{secret}={new_secret()}" for secret in SECRETS)]
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise UserError(f"{file} exists: its secrets may be in use, it is left as it is") from error
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}") from error
    with os.fdopen(descriptor, "w", encoding="utf-8") as output:
        output.write("\n".join(lines) + "\n")


def new_secret() -> str:
    """Return 48 characters that `weakness` finds nothing wrong with."""
    return secrets.token_hex(24)
