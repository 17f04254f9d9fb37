"""The folder of a report: names that last, and that nothing which a person changed is lost.

`report.sha256` has the sum of every file as it was written, in the form of `sha256sum --check`. A
file with another sum was edited, and the folder is not written again; nor is one without sums.

A new report is written in `.unfinished` and takes the earlier one's place once it is whole.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Iterable
from itertools import chain, count
from pathlib import Path

from bench.errors import UserError
from bench.records.folders import write_atomically

_SUMS = "report.sha256"
_UNFINISHED = ".unfinished"
#: Of a name, so that whole paths fit on every system.
_MAX_LETTERS = 80
#: What says nothing of a report.
_NO_REPORT = frozenset({_UNFINISHED, ".DS_Store"})
#: What a report's folder holds.
_OURS = _NO_REPORT | {"report.html", "report.md", "report.pdf", "figures", "tables", _SUMS}


def begin_report(folder: Path) -> Path:
    """Return where to write a new report.

    Raises `UserError` where the folder holds files that are no report's, since all of it is
    uploaded, or a report of which a file was edited, or may have been.
    """
    present = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    sums, foreign = _sums(folder), sorted(present - _OURS)
    edited = sorted(
        name
        for name in {name for name, _ in sums}
        if (folder / name).is_file() and (name, _sum(folder / name)) not in sums
    )
    why = ""
    if foreign:
        why = f"holds other files ({foreign[0]}); give a new folder, or that of an earlier report"
    elif _SUMS not in present and present - _NO_REPORT:
        why = (
            f"holds a report without {_SUMS}, so an edit of it would be lost; write to another "
            "folder with --out, or move the report elsewhere"
        )
    elif edited:
        why = (
            f"{edited[0]} was edited since it was written; give your own text with --notes, write "
            "to another folder with --out, or move the file elsewhere"
        )
    if why:
        raise UserError(f"out={str(folder)!r}: {why}")
    new = folder / _UNFINISHED
    if new.exists():
        shutil.rmtree(new)
    for name in ("figures", "tables"):
        (new / name).mkdir(parents=True)
    return new


def end_report(new: Path) -> None:
    """Bring a report that is whole to its place, file by file, and remove what is left of another.

    Until the end the sums are those of both, so that no file looks edited if this is cut short.
    """
    folder = new.parent
    files = {path.relative_to(new).as_posix(): path for path in new.rglob("*") if path.is_file()}
    sums, earlier = {(name, _sum(path)) for name, path in files.items()}, _sums(folder)
    _keep_sums(folder, sums | earlier)
    for name, path in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        path.replace(folder / name)
    for name in {name for name, _ in earlier} - files.keys() | {"report.pdf"}:
        (folder / name).unlink(missing_ok=True)
    _keep_sums(folder, sums)
    shutil.rmtree(new)


def _sum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _sums(folder: Path) -> set[tuple[str, str]]:
    """The files of a report, and their sums; none of what lies outside of the folder."""
    kept, ours = folder / _SUMS, folder.resolve()
    lines = kept.read_text("utf-8").splitlines() if kept.exists() else []
    sums = {(name, total) for total, _, name in (line.partition("  ") for line in lines)}
    return {one for one in sums if (folder / one[0]).resolve().is_relative_to(ours)}


def _keep_sums(folder: Path, sums: Iterable[tuple[str, str]]) -> None:
    lines = sorted(f"{total}  {name}\n" for name, total in sums)
    write_atomically(folder / _SUMS, "".join(lines))


def file_names(labels: Iterable[str]) -> list[str]:
    """Return a part of a file name per label: `amd-epyc (1)` becomes `amd-epyc-1`.

    A name that an earlier label has gets `-2` and so on. Upper and lower case are the same, as on
    macOS and Windows.
    """
    found: dict[str, str] = {}
    for label in labels:
        safe = re.sub(r"[^A-Za-z0-9_.]+", "-", label)[:_MAX_LETTERS].strip("-.") or "unnamed"
        names = chain([safe], (f"{safe}-{number}" for number in count(2)))
        name = next(name for name in names if name.casefold() not in found)
        found[name.casefold()] = name
    return list(found.values())
