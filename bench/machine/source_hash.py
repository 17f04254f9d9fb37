"""Which code measures: numbers of different code do not belong in one table."""

from __future__ import annotations

import hashlib
from pathlib import Path

_BENCH = Path(__file__).resolve().parents[1]


def code_id(bench: Path = _BENCH) -> str:
    """Return twelve hex digits, equal where the source of `bench` is."""
    digest = hashlib.sha256()
    for path in sorted(bench.rglob("*.py"), key=lambda path: path.relative_to(bench).as_posix()):
        digest.update(path.relative_to(bench).as_posix().encode())
        digest.update(path.read_text(encoding="utf-8").encode())  # whatever ends its lines
    return digest.hexdigest()[:12]
