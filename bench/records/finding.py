"""Whether a record can be trusted, and what speaks against it."""

from __future__ import annotations

from typing import Literal

from bench.records.base import Level, Record


class Finding(Record):
    """One thing a reader of the run must know, and how much it weighs."""

    code: str
    level: Literal["note", "suspect", "invalid"]
    message: str


class Verdict(Record):
    """Whether the numbers of a run can be trusted, and why not."""

    level: Level
    findings: tuple[Finding, ...]
