"""The folder of a report: names that last, and that nothing which a person changed is lost.

`report.sha256` has the sum of every file as it was written, in the form of `sha256sum --check`. A
file with another sum was edited, and the folder is not written again. A report of a version that
kept no sums may have been edited too: its whole folder is moved aside.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

from bench.errors import UserError

_SUMS = "report.sha256"
#: Of a name, so that whole paths fit on every system.
_MAX_LETTERS = 80
#: What a report's folder holds.
_OURS = frozenset(
    {"report.html", "report.md", "report.pdf", "figures", "tables", _SUMS, ".DS_Store"}
)


def claim_folder(folder: Path) -> Path | None:
    """Make the folder ready for a new report; return where an earlier one was moved, if it was.

    An earlier report with its sums is removed. Raises `UserError` where the folder holds files that
    are no report's, since all of it is uploaded, or a file that was edited.
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
        _remove(folder)
    elif present - {".DS_Store"}:
        moved = _moved_aside(folder)
    for name in ("figures", "tables"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    # Without a sum a file is unfinished work of ours, and may be written over.
    (folder / _SUMS).write_text("", encoding="utf-8")
    return moved


def keep_sums(folder: Path, written: Iterable[Path]) -> None:
    """Keep the sums of the files that were `written`, once the report is finished."""
    lines = [f"{_sum(path)}  {path.relative_to(folder).as_posix()}\n" for path in written]
    (folder / _SUMS).write_text("".join(sorted(lines)), encoding="utf-8", newline="\n")


def _remove(folder: Path) -> None:
    """Remove the files that have a sum, none if one of them was edited."""
    lines = (folder / _SUMS).read_text("utf-8").splitlines()
    sums = {path: total for total, _, path in (line.partition("  ") for line in lines)}
    ours = folder.resolve()
    inside = (name for name in sums if (folder / name).resolve().is_relative_to(ours))
    files = {name: folder / name for name in inside if (folder / name).is_file()}
    for name, path in files.items():
        if _sum(path) != sums[name]:
            raise UserError(
                f"out={str(folder)!r}: {name} was edited since it was written; give your own text "
                "with --notes, write to another folder with --out, or move the file elsewhere"
            )
    for path in (*files.values(), folder / "report.pdf"):
        path.unlink(missing_ok=True)


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
