"""The formats of results that can be imported, a module each; this list recognises a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tracking.importing.facts import BadLine, Facts
from tracking.importing.formats.dllogger import is_dllogger, read_dllogger
from tracking.importing.formats.iterations import is_iterations, read_iterations
from tracking.importing.formats.milabench import is_milabench, read_milabench
from tracking.importing.formats.mlperf import is_mlperf, read_mlperf
from tracking.importing.formats.optimum import is_report, read_report
from tracking.importing.formats.rows import is_rows, read_rows
from tracking.importing.formats.wide_tables import is_wide, read_wide
from tracking.importing.source_files import SourceFile


@dataclass(frozen=True)
class Reader:
    """A format: whether a file's text is of it, and the results in such a text.

    `read` raises `OtherWorkError` where they are not of training on images, `ValueError` or
    `UserError` where the file cannot be taken. Its last argument has what the user states.
    """

    recognises: Callable[[SourceFile, str], bool]
    read: Callable[[SourceFile, str, Mapping[str, str]], Iterator[Facts | BadLine]]


#: In this order: a table of rows is what no other reader knows.
_READERS = (
    Reader(is_dllogger, read_dllogger),
    Reader(is_mlperf, read_mlperf),
    Reader(is_milabench, read_milabench),
    Reader(is_report, read_report),
    Reader(is_wide, read_wide),
    Reader(is_iterations, read_iterations),
    Reader(is_rows, read_rows),
)


def reader_of(file: SourceFile, text: str) -> Reader | None:
    """Return the reader of a file by its contents, None where no format is recognised."""
    return next((one for one in _READERS if one.recognises(file, text)), None)


def likeliest_reader(text: str) -> Reader:
    """Return the reader whose refusal says most of a text that none recognises."""
    return Reader(is_report, read_report) if text.startswith(("{", "[")) else _READERS[-1]
