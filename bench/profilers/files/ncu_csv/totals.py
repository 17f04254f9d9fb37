"""What a table of a file adds up to in base units, its locale decided by the table itself."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from bench.profilers.files.exact_decimals import EXACT
from bench.profilers.files.ncu_csv.cells import Fault
from bench.profilers.files.ncu_csv.numbers import is_base, unit_power
from bench.profilers.files.ncu_csv.rows import Form

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]


#: A process by its number or name, or a summary's group of launches: its kernel and all its cells.
Process = int | str | tuple[str, str]
#: Kernel, metric, unit as printed, the separator whose meaning is in doubt or nothing, and how many
#: of a sum's digits are decimals.
Key = tuple[str, str, str, str, int]


class RefusedError(Exception):
    """A file that is refused, for `fault`."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


class DoubtfulError(RefusedError):
    """A number of two readings, by the locale in which it may have been written."""


class SeenLaunches:
    """Which launches a file has shown, 16 bytes for each."""

    def __init__(self) -> None:
        self._ids: dict[Process, list[tuple[Integers, Integers]]] = defaultdict(list)

    def add(self, rows: TableTotals) -> None:
        """Note launches; raise `RefusedError` for the first row that is refused."""
        for process, ids, lines in rows.ids:
            self._ids[process].append((ids, lines))
        if rows.fault:
            self.refuse_repeated(rows.fault.line)
            raise RefusedError(rows.fault)

    def refuse_repeated(self, most: float = inf) -> None:
        """Raise `RefusedError` for the first launch, up to line `most`, that was there before."""
        faults = []
        for process, noted in self._ids.items():
            ids, lines = (np.concatenate(column) for column in zip(*noted, strict=True))
            if (np.diff(ids) > 0).all():
                continue
            order = np.lexsort((lines, ids))
            again = order[1:][ids[order[1:]] == ids[order[:-1]]]
            if len(again):
                at = again[lines[again].argmin()]
                message = f"launch {ids[at]} of process {process} appears twice"
                message += "; two runs are two files"
                if isinstance(process, tuple):
                    message = f"a second group of rows for kernel {process[0][:60]}"
                faults.append(Fault(int(lines[at]), message))
        if faults and min(faults).line <= most:
            raise RefusedError(min(faults))


@dataclass(slots=True)
class Sum:
    """A sum over launches; `line` and `text` show the first of numbers of two readings."""

    launches: int
    total: int
    line: int
    text: str


@dataclass
class TableTotals:
    """What a table adds up to, or some of its rows, up to `fault`."""

    form: Form
    launches: Counter[str] = field(default_factory=Counter)
    sums: dict[Key, Sum] = field(default_factory=dict)
    #: Of rows: what they add to sums, as `Sum` has it, in any order.
    parts: list[tuple[Key, tuple[int, int, int, str]]] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    capabilities: set[str] = field(default_factory=set)
    marks: set[str] = field(default_factory=set)
    #: Of rows: of each process the IDs of its launches, and their lines.
    ids: list[tuple[Process, Integers, Integers]] = field(default_factory=list)
    fault: Fault | None = None

    def add(self, rows: TableTotals) -> None:
        """Add rows."""
        self.launches.update(rows.launches)
        self.names |= rows.names
        self.capabilities |= rows.capabilities
        self.marks |= rows.marks
        for key, part in rows.parts:
            one = self.sums.get(key)
            if one is None:
                self.sums[key] = Sum(*part)
            else:
                one.launches += part[0]
                one.total += part[1]

    @property
    def is_doubtful(self) -> bool:
        """Whether some number has two readings, and no other number has shown the locale."""
        return not self.marks and any(mark for *_, mark, _ in self.sums)

    def settled(self) -> Iterator[tuple[str, str, int, Decimal]]:
        """Yield kernel, metric, launches with a number, and their sum in base units.

        Raises `RefusedError` where a number has two readings and nothing in the table decides.
        """
        for (kernel, metric, unit, mark, decimals), one in self.sums.items():
            if mark and not self._groups_thousands(metric, unit, mark, one):
                decimals = 3
            power = unit_power(metric, unit) if one.total else 0  # a zero is one in any unit
            yield kernel, metric, one.launches, EXACT.scaleb(Decimal(one.total), power - decimals)

    def _groups_thousands(self, metric: str, unit: str, mark: str, one: Sum) -> bool:
        """Whether `mark` groups thousands in this table.

        Other numbers of the table show it. Besides, a sum of bytes, nanoseconds or instructions is
        whole, so a comma in it groups thousands: no locale ends whole numbers with one. A dot in
        it may be C's mark in a file that something rewrote, so it needs proof. A summary's means
        may be fractions.
        """
        shown = None
        if len(self.marks) == 1:
            shown = not self.marks & {mark, " "}
        elif self.marks == {mark, " "}:
            shown = False
        if is_base(metric, unit) and self.form != "summary":
            shown = True if mark == "," and shown is None else shown or None
        if shown is None:
            whole, fraction = (one.text.replace(mark, to) for to in ("", "."))
            message = f"{metric}: {one.text!r} {unit} may mean {whole} or {fraction}"
            raise DoubtfulError(Fault(one.line, f"{message}, and nothing in the file decides"))
        return shown
