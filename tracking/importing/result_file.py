"""Results behind a path: which reader knows a file, the good results, each bad one by its line."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from pydantic import ValidationError

from bench.errors import UserError, printable
from bench.records import ImportedRecord
from tracking.importing.facts import BadLine, Facts, OtherWorkError, Source, record_of
from tracking.importing.formats import likeliest_reader, reader_of
from tracking.importing.source_files import (
    SourceFile,
    Unreadable,
    holds_many,
    source_files,
)


@dataclass(frozen=True)
class Problem:
    """A result that could not be taken, and why; `line` None for the whole file."""

    path: Path
    line: int | None
    reason: str

    def __str__(self) -> str:
        where = f"{self.path}:{self.line}" if self.line is not None else str(self.path)
        return printable(f"{where}: {self.reason}")


@dataclass
class Found:
    """The results of a path.

    `repeated` counts results that say what another one said, `other_files` those of a folder or
    zip that are of no known format, or of other work than training on images.
    """

    records: list[ImportedRecord] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    repeated: int = 0
    other_files: int = 0


def read_results(path: Path, *, campaign: str, given: dict[str, str]) -> Found:
    """Read the results in a file, or in all files of a folder or a zip.

    `given` are facts for where a file is silent: arch, env, device, backend, precision, batch_size,
    repeat, image_size, devices, warmup_iters. A result that cannot be taken is a `Problem`; so is a
    file, but in a folder or zip a file of something else is only counted.
    """
    found = Found()
    many = holds_many(path)
    now = datetime.now(timezone.utc).replace(microsecond=0)
    ids: set[str] = set()
    try:
        for file in source_files(path):
            if isinstance(file, Unreadable):
                found.problems.append(_problem(file.shown, file.error))
                continue
            source = Source(file.name, file.sha256, campaign, given, now)
            _read_file(file, source, found, ids, many=many)
    except UserError as error:
        found.problems.append(_problem(path, error))
    return found


def _read_file(
    file: SourceFile, source: Source, found: Found, ids: set[str], *, many: bool
) -> None:
    """Add a file's results to what was found; with `many` it may be none."""
    try:
        text = file.text()
    except UserError as error:
        if many:
            found.other_files += 1
        else:
            found.problems.append(_problem(file.shown, error))
        return
    reader = reader_of(file, text)
    if reader is None and many:
        found.other_files += 1
        return
    try:
        for result in (reader or likeliest_reader(text)).read(file, text, source.given):
            if isinstance(result, BadLine):
                found.problems.append(Problem(file.shown, result.line, result.reason))
            else:
                _add(found, result, source, file.shown, ids)
    except OtherWorkError as error:
        if many:
            found.other_files += 1
        else:
            found.problems.append(_problem(file.shown, error))
    except (UserError, ValueError) as error:
        found.problems.append(_problem(file.shown, error))


def _problem(path: Path, error: Exception) -> Problem:
    return Problem(path, None, str(error).removeprefix(f"{path}: "))


def _add(found: Found, facts: Facts, source: Source, path: Path, ids: set[str]) -> None:
    try:
        record = record_of(facts, source)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        found.problems.append(Problem(path, facts.line, f"{where}: {first['msg']}"))
    except ValueError as error:
        found.problems.append(Problem(path, facts.line, str(error)))
    else:
        if record.record_id in ids:
            found.repeated += 1
        else:
            ids.add(record.record_id)
            found.records.append(record)
