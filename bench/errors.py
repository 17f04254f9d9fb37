"""Errors that end a command or a measurement with a reason a person can act on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


class UserError(Exception):
    """A wrong value or an unusable input: one line with the value and the remedy, exit code 2."""


class UnsupportedError(UserError):
    """A valid request that this very device cannot fulfil, such as tf32 on a CPU."""


@dataclass(frozen=True)
class Unknown:
    """What cannot be known, with its reason in place of a value; false, so that `if x` narrows."""

    reason: str

    def __bool__(self) -> Literal[False]:
        """An unknown value is no value."""
        return False


@dataclass(frozen=True)
class Problem:
    """What is wrong, and what to do, word for word."""

    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what}; {self.remedy}"


def printable(text: str) -> str:
    """Return a text of others as one line: its control characters could steer a terminal."""
    if text.isprintable():
        return text
    return one_line("".join(sign if sign.isprintable() else " " for sign in text))


def fault_line(error: Exception) -> str:
    """Return in one line what no error of ours is: its type says that the fault is here."""
    return one_line(f"{type(error).__name__}: {error}")


def one_line(message: object) -> str:
    """Return an error or its message with every run of blanks and line ends as one space."""
    return " ".join(str(message).split())
