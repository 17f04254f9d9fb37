"""The first minutes on a device that this project has not met: what it claims, checked there.

    python benchmarks/first_contact.py --out first-contact

Prints a line per check: what was expected, what was seen, and whether they agree. Leaves the
records, the files of profilers and `checks.md` in one folder, which `mlproject sync --records
FOLDER/records` uploads and `mlproject report --records FOLDER/records` reads. A check that this
machine cannot answer is named with its reason. Exit code 1 where a check failed.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import click
from contact.checks import CHECKS
from contact.device import CannotTellError, Contact, printed_by

LIMIT_S = 540.0
MOST_BYTES = 8e6
HAS_CUDA = "import torch; print(str(torch.cuda.is_available()).lower())"


@dataclass(frozen=True)
class Answer:
    """What one check saw; `passed` is None where the machine cannot answer it."""

    check: str
    expected: str
    seen: str
    passed: bool | None
    seconds: float

    def __str__(self) -> str:
        word = {True: "pass", False: "FAIL", None: "-"}[self.passed]
        return f"{word:4}  {self.check}: expected {self.expected}; {self.seen}"


def answers(contact: Contact, names: Collection[str], deadline_s: float) -> Iterator[Answer]:
    """Run every check of `names` that begins before `deadline_s`; one that raises has failed."""
    for name, expected, question in CHECKS:
        if name not in names:
            continue
        begin_s = time.monotonic()
        answer = partial(Answer, name, expected)
        if begin_s >= deadline_s:
            yield answer("time was up", None, 0.0)
            continue
        try:
            seen, passed = question(contact)
        except CannotTellError as error:
            yield answer(str(error), None, time.monotonic() - begin_s)
        except Exception as error:
            yield answer(f"{type(error).__name__}: {error}", False, time.monotonic() - begin_s)
        else:
            yield answer(seen, passed, time.monotonic() - begin_s)


def table_of(found: list[Answer]) -> str:
    """Return the answers as a Markdown table."""
    words = {True: "pass", False: "**fail**", None: "not answered"}
    lines = ["| check | expected | seen | | s |", "|---|---|---|---|---|"]
    for one in found:
        cells = (one.check, one.expected, one.seen, words[one.passed], f"{one.seconds:.0f}")
        lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    return "\n".join(lines) + "\n"


def make_room(out: Path) -> None:
    """Delete ncu's reports, whose CSVs stay, where the folder is too large to be carried."""
    files = [path for path in out.rglob("*") if path.is_file()]
    if sum(path.stat().st_size for path in files) > MOST_BYTES:
        for path in files:
            if path.suffix == ".ncu-rep":
                path.unlink()


@click.command(help=__doc__.split("\n\n    ")[0])
@click.option(
    "--backend", type=click.Choice(["cuda", "cpu"]), help="default: CUDA where there is one"
)
@click.option("--out", type=click.Path(path_type=Path), default=Path("first-contact"))
@click.option(
    "--minutes",
    type=click.FloatRange(min=0.1),
    default=LIMIT_S / 60,
    show_default=True,
    help="begin no check after so long",
)
@click.option(
    "--only",
    "names",
    multiple=True,
    type=click.Choice([name for name, _, _ in CHECKS]),
    help="run this check; default: all of them",
)
def main(backend: str | None, out: Path, minutes: float, names: tuple[str, ...]) -> None:
    """Run every check and leave the folder."""
    if out.exists() and any(out.iterdir()):
        raise click.UsageError(f"--out {out}: holds files already; name another folder")
    if backend is None:
        backend = "cuda" if printed_by(HAS_CUDA) else "cpu"
    deadline_s = time.monotonic() + 60 * minutes
    contact, found = Contact(backend, out), []
    out.mkdir(parents=True, exist_ok=True)
    for answer in answers(contact, names or [name for name, _, _ in CHECKS], deadline_s):
        click.echo(str(answer))
        found.append(answer)
        # After each, so that an end in between loses one check alone.
        (out / "checks.md").write_text(table_of(found), encoding="utf-8")
        (out / "checks.json").write_text(json.dumps([asdict(one) for one in found], indent=1))
    make_room(out)
    failed = [one.check for one in found if one.passed is False]
    click.echo(f"{sum(one.passed is True for one in found)} passed, {len(failed)} failed: {out}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
