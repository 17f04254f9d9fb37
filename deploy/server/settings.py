"""The settings of a server: their file, how they are read, and what is refused."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import click
from pydantic import BaseModel, Field, ValidationError

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
_NAME = r"^{0}(\.{0})*$".format(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_NEEDED_NAME = "the public DNS name, such as mlflow.lab.org"
_STATE = "/var/lib/mlproject-server"
#: What compose, a shell and we read alike: no quotes, blanks, dollars, backslashes or hashes.
_PLAIN = re.compile(r"[A-Za-z0-9._~:/@+=,%-]*")


class Refused(click.ClickException):
    """What the operator can mend: one line, exit code 2."""

    exit_code = 2


def _setting(variable: str, default: Any = "", needed: str = "", **limits: Any) -> Any:
    """A field that an environment variable sets; `needed` says what fits."""
    return Field(default, alias=variable, description=needed, **limits)


def _number(variable: str, default: int, most: int) -> Any:
    return _setting(variable, default, f"a whole number from 1 to {most}", ge=1, le=most)


class ServerSettings(BaseModel, frozen=True, hide_input_in_errors=True, validate_default=True):
    """What a server needs to know; made by `checked`, so that none exists with a weak secret."""

    name: str = _setting("SERVER_NAME", needed=_NEEDED_NAME, pattern=_NAME)
    admin_password: str = _setting(ADMIN_PASSWORD, repr=False)
    flask_key: str = _setting("MLFLOW_FLASK_SERVER_SECRET_KEY", repr=False)
    postgres_password: str = _setting("POSTGRES_PASSWORD", repr=False)
    bind: str = _setting("MLFLOW_BIND", "127.0.0.1")
    port: int = _number("MLFLOW_PORT", 5000, 65_535)
    admin: str = _setting("MLFLOW_AUTH_ADMIN_USERNAME", "admin")
    postgres_host: str = _setting("POSTGRES_HOST", "127.0.0.1")
    postgres_port: int = _number("POSTGRES_PORT", 5432, 65_535)
    state: Path = _setting("STATE_FOLDER", _STATE)
    artifacts: str = _setting(
        *("ARTIFACTS", "", "an absolute folder, s3://bucket or gs://bucket"),
        pattern="^(/|s3://|gs://)",
    )
    backups: Path = _setting("BACKUP_FOLDER", "/var/backups/mlproject-server")
    backups_kept: int = _number("BACKUPS_KEPT", 14, 99_999)
    #: The proxy reads these two.
    max_upload: str = _setting(
        "MAX_UPLOAD", "2GB", "a size such as 512MB or 2GB", pattern="^[1-9][0-9]*(KB|MB|GB)$"
    )
    max_requests: int = _number("MAX_REQUESTS", 64, 99_999)

    @property
    def url(self) -> str:
        """Where MLflow itself answers on this machine, behind the proxy."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def database_uri(self) -> str:
        """The address of the database; the password goes by `PGPASSWORD`, never in here."""
        place = f"{self.postgres_host}:{self.postgres_port}"
        return f"postgresql+psycopg://{POSTGRES_NAME}@{place}/{POSTGRES_NAME}"

    @property
    def artifacts_folder(self) -> Path | None:
        """The local folder of the artifacts, None where a bucket holds them."""
        return None if "://" in self.artifacts else Path(self.artifacts)


def checked(given: Mapping[str, str]) -> ServerSettings:
    """Make settings of variables; raises Refused for all that is missing or weak, in one line."""
    wrong = [f"{name} {why}" for name in SECRETS if (why := weakness(given.get(name, "")))]
    for other, name in combinations(SECRETS, 2):
        if given.get(name) and given.get(name) == given.get(other):
            wrong.append(f"{name} is the same as {other}: give each its own")
    # compose passes what its file leaves out as empty
    texts = {"SERVER_NAME": ""} | {name: text for name, text in given.items() if text}
    texts.setdefault("ARTIFACTS", f"{texts.get('STATE_FOLDER', _STATE)}/artifacts")
    try:
        settings = ServerSettings.model_validate(texts)
    except ValidationError as error:
        needed = {field.alias: field.description for field in ServerSettings.model_fields.values()}
        names = [str(problem["loc"][0]) for problem in error.errors()]
        wrong += [f"{name} is {texts[name]!r}: {needed[name]}" for name in names]
    if wrong:
        raise Refused("the server does not start: " + "; ".join(wrong))
    return settings


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


def read_file(path: Path) -> dict[str, str]:
    """Read lines of `NAME=value`; raises Refused for what other readers would read differently.

    No message quotes a value: it may be a secret.
    """
    values = {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise Refused(
            f"{path}: {error.strerror}; `python -m deploy.server settings` writes one"
        ) from error
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.startswith("#"):
            continue
        name, equals, value = line.partition("=")
        if not equals or not re.fullmatch(r"[A-Z][A-Z0-9_]*", name):
            raise Refused(f"{path}, line {number}: not NAME=value")
        if not _PLAIN.fullmatch(value):
            raise Refused(
                f"{path}, line {number}: {name} has a quote, blank, $, # or other character that "
                "compose and a shell read differently: use letters, digits and ._~:/@+=,%-"
            )
        values[name] = value
    return values


def write_settings(file: Path, name: str) -> None:
    """Write a new settings file that only its owner can read, with secrets made for it.

    Raises Refused for a name that no server could have, before anything is written.
    """
    name = name.lower()
    if not re.fullmatch(_NAME, name):
        raise Refused(f"{name!r} is no name of a server: give {_NEEDED_NAME}")
    lines = [f"SERVER_NAME={name}", *(f"{secret}={secrets.token_hex(24)}" for secret in SECRETS)]
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise Refused(f"{file} exists: its secrets may be in use, it is left as it is") from error
    except OSError as error:
        raise Refused(f"{file}: {error.strerror}") from error
    with os.fdopen(descriptor, "w", encoding="utf-8") as output:
        output.write("\n".join(lines) + "\n")
