"""`mlproject import`: results of other programs, from their files to records and tracked runs."""  # noqa: N999

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import click

from bench.config import parse_config
from bench.config.model_names import nearest
from bench.errors import UserError
from bench.machine.cpu import usable_cores
from bench.records import Complexity, ImportedRecord, StepSpec
from bench.records.folders import RecordFolder, ceilings_in
from commands.console.options import Tracked, argument, note, option, set_values
from commands.console.output import Formatted, Output, watched
from commands.console.recorded import upload_at_the_end, write_record
from tracking.importing import load_readers, read_results
from tracking.importing.readers import GIVEN, GIVEN_COUNTS
from tracking.importing.tables import MEANINGS, plain
from tracking.importing.work import step_of, with_work

#: New steps, of a second each, that are worth a process, which imports torch in four and holds half
#: a gigabyte; and the most processes.
_EACH, _MOST_PROCESSES = 20, 16


class Import(Tracked, Formatted):
    """Import the results of other programs from their files.

    Tables are read: ledgers, iterations, timm's; and what a --reader knows. A folder is searched; a
    file is recognised by its contents. Each result becomes a record and a tracked run, marked as
    imported, with the line it comes from; one that was imported before stays as it is. It ends
    with 1 where some rows could not be imported; the others are.
    """

    files: tuple[Annotated[Path, click.Path(path_type=Path, exists=True)], ...] = argument(
        required=True
    )
    facts: tuple[str, ...] = option(
        f"a fact that a file does not have: {', '.join(GIVEN)} (may be given again)",
        (),
        "--set",
        metavar="FACT=VALUE",
    )
    columns: tuple[str, ...] = option(
        "what a column is whose heading does not say so, as throughput=imgs/sec; other is none "
        "(may be given again)",
        (),
        "--column",
        metavar="FACT=HEADING",
    )
    readers: tuple[str, ...] = option(
        "a plug-in for another format: a Python file or package.module (may be given again)",
        (),
        "--reader",
        metavar="PLUG-IN",
    )
    campaign: str = option("label of the imported runs", "imported")

    def run(self) -> int:
        """Read, judge and keep the results of each file."""
        given = set_values(self.facts, GIVEN, f"FACT=VALUE with one of {', '.join(GIVEN)}")
        _check_facts(given)
        parse_config({"campaign": self.campaign})
        readers, named = load_readers(self.readers), _named(self.columns)
        read = partial(read_results, campaign=self.campaign, given=given, readers=readers)
        # all are read first: a column that must be named stops before anything is kept
        results = [(path, read(path, named=named)) for path in self.files]
        folders: list[RecordFolder] = []
        lines: list[str] = []
        facts: list[dict[str, Any]] = []
        for path, imported in results:
            of_file = [RecordFolder(self.records / each.record_id) for each in imported.records]
            folders += of_file
            known = {folder.record_id for folder in of_file if folder.record.is_file()}
            new = _with_work([each for each in imported.records if each.record_id not in known])
            for result in new:
                write_record(RecordFolder(self.records / result.record_id), result, self.records)
            problems = list(map(str, imported.problems))
            lines_below = list(_place_lines(new, self.records))
            for problem in problems:
                note(problem)
            ids = [record.record_id for record in imported.records]
            fates = {"imported": len(new), "known_already": imported.repeated + len(ids) - len(new),
                     "not_taken": len(problems), "other_files": imported.other_files}  # fmt: skip
            words = [f"{n} {what.replace('_', ' ')}" for what, n in fates.items() if n]
            lines += [f"{path}: {', '.join(words) or 'nothing in it'}"]
            lines += [f"  {line}" for line in lines_below]
            about = {"file": str(path), "records": ids, "problems": problems, "said": lines_below}
            facts.append(fates | about)
        bad = any(fact["problems"] for fact in facts)
        code = self.show(Output(lines, facts, exit_code=int(bad)))
        return max(code, upload_at_the_end(folders, self.say) if self.tracked else 0)


def _named(pairs: Sequence[str]) -> dict[str, str]:
    """Return what the user calls columns, by their headings as `plain` writes them."""
    named = {}
    for pair in pairs:
        fact, _, heading = pair.partition("=")
        if fact not in MEANINGS or not plain(heading):
            hint = nearest(fact, MEANINGS, "FACT is throughput, batch_size, devices, other, ...")
            raise UserError(f"column={pair!r}: give FACT=HEADING; {hint}")
        named[plain(heading)] = fact
    return named


def _check_facts(facts: dict[str, str]) -> None:
    """Refuse a count that is none."""
    for name, text in facts.items():
        if name in GIVEN_COUNTS and not (text.isascii() and text.isdigit()):
            raise UserError(f"set='{name}={text}': give a whole number")
        if name in GIVEN_COUNTS and name != "warmup_iters" and int(text) == 0:
            raise UserError(f"set='{name}={text}': give a number above 0")


def _with_work(results: Sequence[ImportedRecord]) -> list[ImportedRecord]:
    """The results with the work of their steps, each step counted once."""
    steps = [step_of(result) for result in results]
    counted = _counts({step for step in steps if not isinstance(step, str)})
    return [
        with_work(result, step if isinstance(step, str) else counted[step])
        for result, step in zip(results, steps, strict=True)
    ]


def _counts(steps: Collection[StepSpec]) -> dict[StepSpec, Complexity | str]:
    """The work of these steps: many new ones are counted by several processes at once."""
    what = "counting the work of their steps"
    new: list[StepSpec] = []
    counted: dict[StepSpec, Complexity | str] = {}
    with suppress(ImportError):  # of torch, for one: `_count` says so
        from bench.cost import is_counted

        new = [step for step in steps if not is_counted(step)]
    processes = min(usable_cores(), len(new) // _EACH, _MOST_PROCESSES)
    if processes > 1:
        # no forks: a process that has run torch's autograd has none that can
        context, no_interrupt = get_context("spawn"), (signal.SIGINT, signal.SIG_IGN)
        with ProcessPoolExecutor(processes, context, signal.signal, no_interrupt) as pool:
            coming = watched(pool.map(_count, new), what, len(new))
            counted = dict(zip(new, coming, strict=True))
    others = [step for step in steps if step not in counted]
    return counted | {step: _count(step) for step in watched(others, what, len(others))}


def _count(step: StepSpec) -> Complexity | str:
    try:
        from bench.cost import cached_complexity
    except ImportError as error:
        return f"PyTorch cannot be used here ({error})"
    try:
        return cached_complexity(step)
    except UserError as error:
        return str(error)


def _place_lines(results: Sequence[ImportedRecord], records: Path) -> Iterator[str]:
    """Under which roofs the results stand, why others have none, and what cannot be true."""
    from analysis.runs.place import MODELLED, place

    ceilings = ceilings_in(records)
    runs = [place(result, ceilings) for result in results]
    roofs = Counter(
        f"{run.point.ceiling.device} ({run.point.ceiling.kind})" for run in runs if run.point
    )
    for roof, number in roofs.items():
        yield f"{number} under the roof of {roof}, by modelled work"
    for reason, number in Counter(run.refusal for run in runs if run.refusal).most_common():
        yield f"{number} not placed: {reason}"
    for result, run in zip(results, runs, strict=True):
        where = (
            result.source_file
            if result.source_line is None
            else f"{result.source_file}:{result.source_line}"
        )
        for finding in run.findings:
            if finding.code != MODELLED:
                yield f"{where}: {run.label}: {finding.level}: {finding.sentence}"
