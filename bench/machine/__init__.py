"""What a run was measured on; each fact is a value, or `Unknown` with the reason.

What reads one fact, here and in the modules beside this one, raises `UnknownFactError` where the
system does not show it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from typing_extensions import ParamSpec

from bench.errors import Unknown

P = ParamSpec("P")
T = TypeVar("T")

#: The file system that facts are read from; tests put a folder that looks like one in its place.
ROOT = Path("/")


class UnknownFactError(Exception):
    """A fact cannot be known here; the message is the reason, fit for a record's `missing`."""


def probe(read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | Unknown:
    """Return what `read` returns; where it raises, whatever it raises, the reason."""
    try:
        return read(*args, **kwargs)
    except Exception as error:
        return Unknown(reason_of(error))


def value_or_none(read: Callable[[], T]) -> T | None:
    """Return the fact, or None where the reason does not matter."""
    try:
        return read()
    except Exception:
        return None


def reason_of(error: Exception) -> str:
    """Return why a fact is unknown, in one line."""
    lines = str(error).strip().splitlines()
    if isinstance(error, UnknownFactError) and lines:
        return lines[0]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def system_path(path: str | Path) -> Path:
    """Return a file or folder of the system, by its path below the root."""
    return ROOT / path


def text_of(path: str | Path) -> str:
    """Return the text of a small file of the system without its trailing newline or NUL."""
    try:
        text = system_path(path).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UnknownFactError(f"cannot read {system_path(path)}: {error.strerror}") from None
    return text.strip("\0\n ")


def output_of(
    *command: str,
    timeout_s: float = 2.0,
    accepted_codes: tuple[int, ...] = (0,),
    unset: tuple[str, ...] = (),
) -> str:
    """Return what a program prints, in the C locale and without the variables in `unset`."""
    # Asked first, because a folder on PATH that may not be read hides that the program is absent.
    if shutil.which(command[0]) is None:
        raise UnknownFactError(f"no program {command[0]} here")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
            env=environment | {"LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired:
        raise UnknownFactError(f"{command[0]} gave no answer in {timeout_s:g} s") from None
    except OSError as error:
        raise UnknownFactError(f"{command[0]} does not start: {error.strerror}") from None
    if done.returncode not in accepted_codes:
        complaint = (done.stderr or done.stdout).strip().removeprefix("Error:").strip()
        says = complaint.splitlines()[0] if complaint else f"exit code {done.returncode}"
        raise UnknownFactError(f"{command[0]}: {says}")
    return done.stdout.strip()


def sysctl(name: str) -> str:
    """Return a value of macOS's sysctl."""
    return output_of("sysctl", "-n", name)


def registry_text(path: str, name: str) -> str:
    """Return a value below Windows's HKEY_LOCAL_MACHINE."""
    if sys.platform != "win32":
        raise UnknownFactError("there is no Windows registry here")
    import winreg

    try:
        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, path) as key:
            return str(winreg.QueryValueEx(key, name)[0]).strip()
    except OSError as error:
        raise UnknownFactError(f"registry {path}\\{name}: {error.strerror}") from None
