"""The folder of a report: names that last, and that nothing which a person changed is lost.

`report.sha256` has the sum of every file as it was written, in the form of `sha256sum --check`. A
file with another sum was edited, and the folder is not written again. A report of a version that
kept no sums may have been edited too: its whole folder is moved aside.

A new report is written in `.unfinished` and takes the earlier one's place once it is whole.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Iterable
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


def begin_report(folder: Path) -> tuple[Path, Path | None]:
    """Return where to write a new report; with it where an earlier one was moved, if it was.

    Raises `UserError` where the folder holds files that are no report's, since all of it is
    uploaded, or a file that was edited.
    """
    present = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    foreign = sorted(present - _OURS)
    if foreign:
        raise UserError(
            f"out={str(folder)!r}: holds other files ({foreign[0]}); "
            "give a new folder, or that of an earlier report"
        )
    moved = None
    if _SUMS in present:
        _refuse_edited(folder)
    elif present - _NO_REPORT:
        moved = _moved_aside(folder)
    new = folder / _UNFINISHED
    if new.exists():
        shutil.rmtree(new)
    for name in ("figures", "tables"):
        (new / name).mkdir(parents=True)
    return new, moved


def end_report(new: Path) -> None:
    """Bring a report that is whole to its place, file by file, and remove what is left of another.

    Until the end the sums are those of both, so that no file looks edited if this is cut short.
    """
    folder = new.parent
    files = {path.relative_to(new).as_posix(): path for path in new.rglob("*") if path.is_file()}
    sums = {(name, _sum(path)) for name, path in files.items()}
    earlier = _sums(folder)
    _keep_sums(folder, sums | earlier)
    for name, path in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        path.replace(folder / name)
    for name in {name for name, _ in earlier} - files.keys() | {"report.pdf"}:
        (folder / name).unlink(missing_ok=True)
    _keep_sums(folder, sums)
    shutil.rmtree(new)


def _keep_sums(folder: Path, sums: Iterable[tuple[str, str]]) -> None:
    lines = sorted(f"{total}  {name}\n" for name, total in sums)
    write_atomically(folder / _SUMS, "".join(lines))


def _sums(folder: Path) -> set[tuple[str, str]]:
    """The files of a report, and their sums; none of what lies outside of the folder."""
    try:
        lines = (folder / _SUMS).read_text("utf-8").splitlines()
    except FileNotFoundError:
        return set()
    sums = {(name, total) for total, _, name in (line.partition("  ") for line in lines)}
    ours = folder.resolve()
    return {one for one in sums if (folder / one[0]).resolve().is_relative_to(ours)}


def _refuse_edited(folder: Path) -> None:
    """Refuse a file that has a sum, but another one."""
    sums = _sums(folder)
    for name in sorted({name for name, _ in sums}):
        path = folder / name
        if path.is_file() and (name, _sum(path)) not in sums:
            raise UserError(
                f"out={str(folder)!r}: {name} was edited since it was written; give your own text "
                "with --notes, write to another folder with --out, or move the file elsewhere"
            )


def _moved_aside(folder: Path) -> Path:
    folder = folder.resolve()
    number = 1
    while (aside := folder.with_name(f"{folder.name}-earlier-{number}")).exists():
        number += 1
    return folder.rename(aside)


def _sum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _file_name(words: str) -> str:
    """Return `words` as a part of a file name: `amd-epyc (1)` becomes `amd-epyc-1`."""
    return re.sub(r"[^A-Za-z0-9_.]+", "-", words)[:_MAX_LETTERS].strip("-.") or "unnamed"


def file_names(labels: Iterable[str]) -> list[str]:
    """Return a name per label, `-2` and so on after one that an earlier label has.

    Upper and lower case are the same, as on macOS and Windows.
    """
    taken: set[str] = set()
    found = []
    for label in labels:
        base = name = _file_name(label)
        number = 1
        while name.casefold() in taken:
            number += 1
            name = f"{base}-{number}"
        taken.add(name.casefold())
        found.append(name)
    return found
