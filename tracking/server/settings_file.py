"""The one settings file: read alike by compose, systemd and us, and written with new secrets."""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path

from bench.errors import UserError
from tracking.server.settings import SECRETS

#: What compose, systemd and we read alike: no quotes, blanks, dollars, backslashes or hashes.
_PLAIN = re.compile(r"[A-Za-z0-9._~:/@+=,%-]*")


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
                "compose and systemd read differently: use letters, digits and ._~:/@+=,%-"
            )
        found[name] = value
    return found


def write_settings(file: Path, name: str) -> None:
    """Write a new settings file that only its owner can read, with secrets made for it."""
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
