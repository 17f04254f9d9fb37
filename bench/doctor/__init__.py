"""What works on this machine, what does not, and the remedy.

Importing this imports no torch; the checks themselves are in `bench.doctor.checks`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bench.errors import Problem

Status = Literal["ok", "warning", "missing"]


@dataclass(frozen=True)
class Check:
    """`missing`: not even a CPU can be measured without it. `warning`: something else cannot.

    `remedy` is what to do, word for word; every check that is not ok has one.
    """

    name: str
    status: Status
    detail: str
    remedy: str | None = None


def check(name: str, found: str | Problem, status: Status = "warning") -> Check:
    """Return the check `name`: ok with what was found, or of `status` with its problem."""
    if isinstance(found, Problem):
        return Check(name, status, found.what, found.remedy)
    return Check(name, "ok", found)
