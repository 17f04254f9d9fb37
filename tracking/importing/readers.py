"""Results behind a path: which reader knows a file, the good results, each bad one by its line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from pkgutil import resolve_name
from runpy import run_path
from types import MappingProxyType, SimpleNamespace
from typing import Any, Protocol, runtime_checkable

from pydantic import ValidationError

from bench.errors import UserError, one_line
from bench.records import ImportedRecord
from tracking.importing.results import Result, record_of
from tracking.importing.sources import NotTaken, OtherFileError, SourceFile, files_in
from tracking.importing.tables import read_table

#: Installed distributions name readers of theirs in this group of entry points.
ENTRY_POINTS = "mlproject.readers"


@runtime_checkable
class Reader(Protocol):
    """A format of results, as a plug-in reads it: a module with these functions, or an object."""

    def recognises(self, file: SourceFile, text: str) -> bool:
        """Whether the text of a file is of this format."""

    def read(
        self, file: SourceFile, text: str, given: Mapping[str, str]
    ) -> Iterator[Result | NotTaken]:
        """Yield the results in a text, and what cannot be taken by its line.

        `given` is what the user states. Raises `OtherFileError` where the results are not of
        training on images, `ValueError` with the reason where the file cannot be taken.
        """


@dataclass
class Imported:
    """The results of a path.

    `repeated` counts results that say what another one said, `other_files` those of a folder that
    are of no known format, or of other work than training on images.
    """

    records: list[ImportedRecord] = field(default_factory=list)
    problems: list[NotTaken] = field(default_factory=list)
    repeated: int = 0
    other_files: int = 0


def load_readers(names: Sequence[str] = ()) -> list[Reader]:
    """Return the readers of these names, and those of installed distributions.

    A name is a file's path, `package.module` or `package.module:object`. Raises `UserError` for one
    that cannot be loaded.
    """
    readers = []
    for name in (*names, *(plug_in.value for plug_in in entry_points(group=ENTRY_POINTS))):
        try:
            if name.endswith(".py"):
                reader: Any = SimpleNamespace(**run_path(str(Path(name).absolute())))
            else:
                reader = resolve_name(name)
        except Exception as error:  # whatever the code of somebody else raises
            raise UserError(f"reader={name!r}: {one_line(error)}") from error
        if not isinstance(reader, Reader):
            raise UserError(f"reader={name!r}: has no functions recognises and read")
        readers.append(reader)
    return readers


def read_results(
    path: Path,
    *,
    campaign: str,
    given: Mapping[str, str],
    readers: Sequence[Reader] = (),
    named: Mapping[str, str] = MappingProxyType({}),
) -> Imported:
    """Read the results in a file, or in all files of a folder.

    `given` are facts for where a file is silent, of those in `tracking.importing.results.GIVEN`. A
    file that none of `readers` recognises is read as a table; `named` has what the user calls its
    columns, of `MEANINGS`. A result that cannot be taken is a problem; so is a file, but in a
    folder a file of something else is only counted. Raises `UserError` where a column must be named
    first.
    """
    imported, ids = Imported(), set()
    now = datetime.now(timezone.utc).replace(microsecond=0)
    for place in files_in(path):
        problems = []
        try:
            file = SourceFile.at(place)
            text = file.text()
            reader = next((one for one in readers if one.recognises(file, text)), None)
            read = reader.read if reader else partial(read_table, named=named)
            for result in read(file, text, given):
                record = _record(result, file, campaign, given, now)
                if isinstance(record, NotTaken):
                    problems.append(record)
                elif record.record_id in ids:
                    imported.repeated += 1
                else:
                    ids.add(record.record_id)
                    imported.records.append(record)
        except UserError as error:
            raise UserError(f"{place}: {error}") from None
        except Exception as error:  # a mistake in somebody's reader costs its file alone
            if isinstance(error, OtherFileError) and place != path:
                imported.other_files += 1
            else:
                kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
                problems.append(NotTaken(f"{kind}{error}"))
        problems.sort(key=lambda problem: problem.line or 0)
        imported.problems += [replace(problem, path=place) for problem in problems]
    return imported


def _record(result: Result | NotTaken, file: SourceFile, *about: Any) -> ImportedRecord | NotTaken:
    if isinstance(result, NotTaken):
        return result
    try:
        return record_of(result, file, *about)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return NotTaken(f"{where}: {first['msg']}", result.line)
    except ValueError as error:
        return NotTaken(str(error), result.line)
