"""What works on this machine, what does not, and the remedy.

Importing this imports no torch; the checks themselves are in `bench.doctor.suite`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warning", "missing"]


@dataclass(frozen=True)
class Check:
    """`missing`: not even a CPU can be measured without it. `warning`: something else cannot.

    `remedy` is what to do, word for word; every check that is not ok has one. Raises
    `ValueError` if it has none.
    """

    name: str
    status: Status
    detail: str
    remedy: str | None

    def __post_init__(self) -> None:
        if self.status != "ok" and not self.remedy:
            raise ValueError(f"check {self.name}: {self.status} without a remedy")


def ok(name: str, detail: str) -> Check:
    """Return a check that found what it looked for."""
    return Check(name, "ok", detail, None)


def can_measure(checks: Iterable[Check]) -> bool:
    """Whether at least this machine's CPU can be measured."""
    return all(check.status != "missing" for check in checks)
