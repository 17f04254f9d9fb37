"""What a table of a file adds up to in base units, its locale decided by the table itself."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal

from bench.errors import UserError
from bench.profilers.files.ncu_numbers import EXACT, is_base, unit_power
from bench.profilers.files.ncu_rows import Fault
from bench.profilers.files.ncu_sums import LaunchRun, MetricSum, RowSums


class SeenLaunches:
    """Which launches a file has shown, in little memory however many there are.

    IDs ascend in what Nsight Compute writes, so a process needs a few runs of them; stragglers,
    which are less than an ID before them, go to a set.
    """

    def __init__(self) -> None:
        self._runs: dict[int | str, tuple[list[int], list[int]]] = {}
        self._stragglers: set[tuple[int | str, int]] = set()

    def add(self, process: int | str, first: int, last: int) -> int | None:
        """Note the launches `first` to `last`; return the first that was there before, or None."""
        starts, ends = self._runs.setdefault(process, ([], []))
        if not ends or first > ends[-1] + 1:
            starts.append(first)
            ends.append(last)
        elif first == ends[-1] + 1:
            ends[-1] = last
        else:
            for launch in range(first, last + 1):
                position = bisect_right(starts, launch)
                known = bool(position) and ends[position - 1] >= launch
                if known or (process, launch) in self._stragglers:
                    return launch
                self._stragglers.add((process, launch))
        return None


@dataclass
class _Doubt:
    """Numbers of one spelling that are whole or thousandths; the first of them to name."""

    line: int
    text: str
    digits: Decimal = Decimal()


@dataclass
class _Cells:
    """One metric in the launches of one kernel: how many hold a number, and its sums by unit."""

    launches: int = 0
    sums: dict[str, Decimal] = field(default_factory=dict)
    doubts: dict[tuple[str, str], _Doubt] = field(default_factory=dict)


class TableTotals:
    """Adds up the rows of one table; `settled` turns its sums into base units.

    `of_means` says that the figures are means over launches, which may be fractions.
    """

    def __init__(self, path: str, *, of_means: bool = False) -> None:
        self._path = path
        self._of_means = of_means
        self._cells: dict[tuple[str, str], _Cells] = {}
        self.launches: Counter[str] = Counter()
        self.names: set[str] = set()
        self.capabilities: set[str] = set()
        self.marks: set[str] = set()

    def add(self, rows: RowSums, seen: SeenLaunches) -> None:
        """Add rows, whose launches must not be among those `seen`.

        Raises `UserError` for the first row that is refused.
        """
        fault = rows.fault
        for run in rows.runs:
            again = seen.add(run.process, run.first, run.last)
            if again is not None:
                line = int(run.lines[again - run.first])
                if fault is None or line <= fault.line:
                    fault = Fault(line, _again(run, again))
                break
        if fault:
            raise self._refusal(*fault)
        self.launches.update(rows.launches)
        self.names |= rows.names
        self.capabilities |= rows.capabilities
        self.marks |= rows.marks
        for one in rows.sums:
            self._add_sum(one)

    def _add_sum(self, one: MetricSum) -> None:
        cells = self._cells.setdefault((one.kernel, one.metric), _Cells())
        cells.launches += one.launches
        if one.mark:
            doubt = cells.doubts.setdefault((one.unit, one.mark), _Doubt(one.line, one.text))
            doubt.digits = EXACT.add(doubt.digits, one.total)
        else:
            before = cells.sums.get(one.unit, Decimal())
            cells.sums[one.unit] = EXACT.add(before, one.total)

    @property
    def is_doubtful(self) -> bool:
        """Whether some number has two readings, and no other number has shown the locale."""
        return not self.marks and any(cells.doubts for cells in self._cells.values())

    def settled(self) -> Iterator[tuple[str, str, int, Decimal]]:
        """Yield kernel, metric, launches with a number, and their sum in base units.

        Raises `UserError` where a number has two readings and nothing in the table decides.
        """
        for (kernel, metric), cells in self._cells.items():
            total = Decimal()
            for unit, value in cells.sums.items():
                power = unit_power(metric, unit) if value else 0  # a zero is one in any unit
                total = EXACT.add(total, EXACT.scaleb(value, power))
            for (unit, mark), doubt in cells.doubts.items():
                whole = self._groups_thousands(metric, unit, mark, doubt)
                power = unit_power(metric, unit) - (0 if whole else 3)
                total = EXACT.add(total, EXACT.scaleb(doubt.digits, power))
            yield kernel, metric, cells.launches, total

    def _groups_thousands(self, metric: str, unit: str, mark: str, doubt: _Doubt) -> bool:
        """Whether `mark` groups thousands in this table.

        Other numbers of the table show it. Besides, a sum of bytes, nanoseconds or instructions is
        whole, so a comma in it groups thousands: no locale ends whole numbers with one. A dot in
        it may be C's mark in a file that something rewrote, so it needs proof.
        """
        shown = self._shown(mark)
        if is_base(metric, unit) and not self._of_means:
            shown = True if mark == "," and shown is None else shown or None
        if shown is None:
            raise self._refusal(
                doubt.line,
                f"{metric}: {doubt.text!r} {unit} may mean {doubt.text.replace(mark, '')} or"
                f" {doubt.text.replace(mark, '.')}, and nothing in the file decides",
            )
        return shown

    def _shown(self, mark: str) -> bool | None:
        """Whether other numbers show that `mark` groups thousands; None if they show neither."""
        if len(self.marks) == 1:
            return not self.marks & {mark, " "}
        return False if self.marks == {mark, " "} else None

    def _refusal(self, line: int, message: str) -> UserError:
        """An error that names file, line and remedy."""
        return UserError(f"{self._path}:{line}: {message}; write the file again with LC_ALL=C ncu")


def _again(run: LaunchRun, launch: int) -> str:
    if run.kernel is not None:
        return f"a second group of rows for kernel {run.kernel[:60]}"
    return f"launch {launch} of process {run.process} appears twice; two runs are two files"
