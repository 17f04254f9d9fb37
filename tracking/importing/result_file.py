"""A file of results: what kind it is, the good ones of it, and each bad one by its line."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from pydantic import ValidationError

from bench.errors import UserError
from bench.records import ImportedRecord, SourceFormat
from tracking.importing.facts import Facts, Source, record_of
from tracking.importing.optimum import facts_of_report, parse_json
from tracking.importing.tabular import (
    facts_of_iterations,
    facts_of_row,
    facts_of_timm_name,
    is_per_iteration,
    is_timm,
    known_columns,
    problems_of,
)
from tracking.importing.text_table import Table, decoded, parse_table, read_bytes


@dataclass(frozen=True)
class Problem:
    """A result that could not be taken, and why; `line` None for the whole file."""

    path: Path
    line: int | None
    reason: str

    def __str__(self) -> str:
        where = f"{self.path}:{self.line}" if self.line is not None else str(self.path)
        return f"{where}: {self.reason}"


@dataclass
class Found:
    """The results of a file; `repeated` counts rows that say what another row said."""

    records: list[ImportedRecord] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    repeated: int = 0


def read_results(path: Path, *, campaign: str, given: dict[str, str]) -> Found:
    """Read the results in `path`: a table, or a report of optimum-benchmark.

    `given` are facts for where the file is silent: arch, env, device, backend, precision,
    batch_size, repeat. A row that cannot be taken is a `Problem`; so is a file.
    """
    found = Found()
    try:
        content = read_bytes(path)
        text = decoded(content, path)
        now = datetime.now(timezone.utc).replace(microsecond=0)
        source = Source(path.name, hashlib.sha256(content).hexdigest(), campaign, given, now)
        for facts in _read_facts(text, path, found):
            _add(found, facts, source, path)
    except (UserError, ValueError) as error:
        reason = str(error).removeprefix(f"{path}: ")
        found.problems.append(Problem(path, None, reason))
    return found


def _read_facts(text: str, path: Path, found: Found) -> Iterator[Facts]:
    if text.lstrip().startswith(("{", "[")):
        yield facts_of_report(parse_json(text), path)
        return
    table = parse_table(text, path)
    if is_per_iteration(table):
        bad = [Problem(path, row.line, reason) for row, reason in problems_of(table)]
        if bad:  # a run with a hole in it is no run
            found.problems += bad
            return
        yield facts_of_iterations(table, path.stem)
        return
    yield from _facts_of_rows(table, path, found)


def _facts_of_rows(table: Table, path: Path, found: Found) -> Iterator[Facts]:
    kind: SourceFormat = "timm" if is_timm(table) else "table"
    known = known_columns(table, kind)
    if not any(
        meaning.fact.startswith(("throughput", "iteration_time")) for meaning in known.values()
    ):
        raise ValueError(
            f"no column of it is known as a throughput or a time ({', '.join(table.columns)[:200]})"
        )
    in_name = facts_of_timm_name(path.stem) if kind == "timm" else {}
    for row in table.rows:
        try:
            if row.problem is not None:
                raise ValueError(row.problem)
            facts = facts_of_row(table, row, known, kind)
            facts.texts = {**in_name, **facts.texts}
            yield facts
        except ValueError as error:
            found.problems.append(Problem(path, row.line, str(error)))


def _add(found: Found, facts: Facts, source: Source, path: Path) -> None:
    try:
        record = record_of(facts, source)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        found.problems.append(Problem(path, facts.line, f"{where}: {first['msg']}"))
    except ValueError as error:
        found.problems.append(Problem(path, facts.line, str(error)))
    else:
        if any(record.record_id == other.record_id for other in found.records):
            found.repeated += 1
        else:
            found.records.append(record)
