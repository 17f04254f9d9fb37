"""Reads what profilers traced here or elsewhere: intervals on the host and on devices."""

from __future__ import annotations

import gzip
import re
import shutil
import sqlite3
from pathlib import Path

import msgspec

from bench.errors import UserError, one_line
from bench.profilers.traces.kineto import kineto_trace, read_counters, unpacked
from bench.profilers.traces.nsys import MAGIC, nsys_trace
from bench.profilers.traces.spans import DeviceSpan, HostSpan, ProfilerTrace

#: What a JSON trace says of its host: the name, and the path of the file it was written to.
_NAMES = re.compile(rb'"(host_?name|traceName)"(\s*:\s*)"(?:[^"\\]|\\.)*"', re.IGNORECASE)
#: In the name of a file: which rank of a job it is of.
_RANK = re.compile(r"rank[_-]?(\d{1,9})", re.IGNORECASE)
_REPORTS = (".nsys-rep", ".qdrep")
_WANTED = (
    "wanted is a whole trace of PyTorch's profiler (prof.export_chrome_trace, .json or .json.gz) "
    "or of Nsight Systems (nsys export --type sqlite)"
)


def keep_trace(path: Path, folder: Path) -> Path:
    """Put a trace into `folder`, whole or not at all; return its file, which may be there already.

    JSON is compressed, without the name of its host and its own path, which often has it too.
    """
    with path.open("rb") as source:
        is_database = source.peek(len(MAGIC)).startswith(MAGIC)
        kept = folder / ("trace.sqlite" if is_database else "trace.json.gz")
        if kept.exists():
            return kept
        partial = kept.with_name(f"{kept.name}.partial")
        if is_database:
            shutil.copyfile(path, partial)
        else:
            contents = _NAMES.sub(rb'"\1"\2""', unpacked(source))
            partial.write_bytes(gzip.compress(contents, compresslevel=6))
    return partial.replace(kept)


def read_trace(path: Path) -> ProfilerTrace:
    """Return the trace in the file `path`; where it does not say its rank, its name may.

    Raises `UserError`, one line with the path, for a file that cannot be read, is cut or damaged,
    holds no interval, or is too large.
    """
    if path.suffix in _REPORTS:
        raise UserError(
            f"{path}: a report of Nsight Systems; export it first: "
            f"nsys export --type sqlite {path.name}"
        )
    try:
        with path.open("rb") as file:
            is_database = file.peek(len(MAGIC)).startswith(MAGIC)
            contents = None if is_database else unpacked(file)
        trace = nsys_trace(path) if contents is None else kineto_trace(str(path), contents)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None
    except MemoryError:
        raise UserError(f"{path}: does not fit into memory: record fewer steps") from None
    except (msgspec.DecodeError, sqlite3.Error, ValueError, RecursionError) as error:
        reason = one_line(error)[:200]
        raise UserError(f"{path}: not readable as a trace ({reason}); {_WANTED}") from None
    if not trace.host and not trace.device and trace.counters is None:
        why = trace.left_out or "record it while a step runs"
        raise UserError(f"{path}: holds no op, kernel or runtime call: {why}; {_WANTED}")
    if trace.rank is None and (named := _RANK.search(path.name)):
        trace.rank = int(named[1])
    trace.cut_overruns()
    return trace
