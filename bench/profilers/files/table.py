"""What one table of a file adds up to, per kernel name and metric, before its locale is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Context, Decimal, Inexact

from bench.errors import UserError
from bench.profilers.files.numerals import Sure, Unsure, read_number
from bench.profilers.files.units import is_base, unit_power

#: Decimal arithmetic that refuses to round.
EXACT = Context(prec=1000, traps=[Inexact])


@dataclass
class Doubt:
    """Numbers of one spelling that are whole or thousandths; the first of them to name."""

    line: int
    text: str
    digits: int = 0


@dataclass
class Cells:
    """One metric in the launches of one kernel: how many hold a number, and its sums by unit."""

    counted: int = 0
    sums: dict[str, Decimal] = field(default_factory=dict)
    doubts: dict[tuple[str, str], Doubt] = field(default_factory=dict)


class Table:
    """Adds up cells. Sums are by unit as printed; `settle` turns them into base units.

    `of_means` says that the figures are means over launches, which may be fractions.
    """

    def __init__(self, path: str, *, of_means: bool = False) -> None:
        self.path = path
        self.of_means = of_means
        self.launches: Counter[str] = Counter()
        self.cells: dict[tuple[str, str], Cells] = {}
        self.names: set[str] = set()
        self.capabilities: set[str] = set()
        self.marks: set[str] = set()

    def add_total(self, kernel: str, metric: str, unit: str, counted: int, total: Decimal) -> None:
        """Add the numbers of `counted` launches, `total` together."""
        cells = self._cells(kernel, metric)
        cells.counted += counted
        cells.sums[unit] = EXACT.add(cells.sums.get(unit, Decimal()), total)

    def add_doubts(
        self, kernel: str, metric: str, unit: str, mark: str, counted: int, doubt: Doubt
    ) -> None:
        """Add numbers of `counted` launches that `mark` makes whole or thousandths."""
        cells = self._cells(kernel, metric)
        cells.counted += counted
        before = cells.doubts.setdefault((unit, mark), Doubt(doubt.line, doubt.text))
        before.digits += doubt.digits

    def add_text(
        self, kernel: str, metric: str, unit: str, text: str, line: int, launches: int = 1
    ) -> None:
        """Add the figure of a launch, or the mean over `launches` of them, as it is printed."""
        number = self.number(metric, unit, text, line)
        if number is not None:
            self.add_number(kernel, metric, unit, number, text, line, launches)

    def add_number(
        self,
        kernel: str,
        metric: str,
        unit: str,
        number: Sure | Unsure,
        text: str,
        line: int,
        launches: int,
    ) -> None:
        """Add what `number` read from `text`."""
        if isinstance(number, Unsure):
            doubt = Doubt(line, text, number.digits * launches)
            self.add_doubts(kernel, metric, unit, number.mark, launches, doubt)
            return
        self.marks |= {number.mark} - {""}
        cells = self._cells(kernel, metric)
        cells.counted += launches
        value = EXACT.multiply(number.value, Decimal(launches))
        cells.sums[unit] = EXACT.add(cells.sums.get(unit, Decimal()), value)

    def number(self, metric: str, unit: str, text: str, line: int) -> Sure | Unsure | None:
        """Read one cell, or raise `UserError` naming it."""
        try:
            number = read_number(text)
        except ValueError:
            raise self.refusal(
                line, f"{metric}: {text[:40]!r} is not a number that ncu prints"
            ) from None
        if number is None or number == Sure(Decimal()):
            return number
        try:
            unit_power(metric, unit)
        except ValueError:
            raise self.refusal(line, f"{metric}: unknown unit {unit[:20]!r}") from None
        return number

    @property
    def has_doubts(self) -> bool:
        """Whether some number has two readings."""
        return any(cells.doubts for cells in self.cells.values())

    def refusal(self, line: int, message: str) -> UserError:
        """An error that names file, line and remedy."""
        return UserError(f"{self.path}:{line}: {message}; write the file anew with LC_ALL=C ncu")

    def settle(self) -> Iterator[tuple[str, str, int, Decimal]]:
        """Yield kernel, metric, launches with a number, and their sum in base units.

        Raises `UserError` where a number has two readings and nothing in the table decides.
        """
        for (kernel, metric), cells in self.cells.items():
            total = Decimal()
            for unit, value in cells.sums.items():
                total = EXACT.add(total, EXACT.scaleb(value, _power(metric, unit, value)))
            for (unit, mark), doubt in cells.doubts.items():
                whole = self._groups_thousands(metric, unit, mark, doubt)
                power = unit_power(metric, unit) - (0 if whole else 3)
                total = EXACT.add(total, EXACT.scaleb(Decimal(doubt.digits), power))
            yield kernel, metric, cells.counted, total

    def _groups_thousands(self, metric: str, unit: str, mark: str, doubt: Doubt) -> bool:
        """Whether `mark` groups thousands in this table.

        Other numbers of the table tell. Besides, a sum of bytes, nanoseconds or instructions is
        whole, so a comma in it groups thousands: no locale ends whole numbers with one. A dot in
        it may be C's mark in a file that something rewrote, so it needs proof.
        """
        proved = self._proved(mark)
        if is_base(metric, unit) and not self.of_means:
            proved = True if mark == "," and proved is None else proved or None
        if proved is None:
            raise self.refusal(
                doubt.line,
                f"{metric}: {doubt.text!r} {unit} may mean {doubt.text.replace(mark, '')} or"
                f" {doubt.text.replace(mark, '.')}, and nothing in the file decides",
            )
        return proved

    def _proved(self, mark: str) -> bool | None:
        """Whether other numbers show that `mark` groups thousands, or None if they do not tell."""
        if len(self.marks) == 1:
            return not self.marks & {mark, " "}
        return False if self.marks == {mark, " "} else None

    def _cells(self, kernel: str, metric: str) -> Cells:
        key = (kernel, metric)
        found = self.cells.get(key)
        if found is None:
            found = self.cells[key] = Cells()
        return found


def _power(metric: str, unit: str, value: Decimal) -> int:
    """The unit's power of ten; a zero is one in any unit, none included."""
    return unit_power(metric, unit) if value else 0
