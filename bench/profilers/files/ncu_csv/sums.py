"""What the rows of a piece add up to, column by column: launches, and sums of the wanted metrics.

Every check of a row is here. A check names the first row that fails it, and of several rows the
first in the file is refused.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from bench.profilers.files.ncu_csv.arrays import mask, positions
from bench.profilers.files.ncu_csv.cells import (
    Coded,
    Fault,
    Figures,
    Piece,
    cells_of_piece,
    grouped,
)
from bench.profilers.files.ncu_csv.numbers import (
    DOUBTFUL,
    MARKS,
    NUMBER,
    REFUSED,
    Numbers,
    decimals_of_mean,
    is_base,
    is_unit,
    whole_numbers,
)
from bench.profilers.files.ncu_csv.rows import explaining_names, metric_in
from bench.profilers.files.ncu_csv.totals import Process, TableTotals
from bench.profilers.files.ncu_metrics import DURATION_LABEL

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]
    Flags = NDArray[np.bool_]

_SECTION = "Speed Of Light"


def sum_rows(piece: Piece) -> TableTotals:
    """Add up the rows of whole launches."""
    if not len(piece.rows):
        return TableTotals(piece.layout.form, fault=piece.fault)
    return _Summation(piece).run()


def marks_shown(piece: Piece) -> set[str]:
    """The decimal marks that any figure of the rows proves, whatever its metric.

    Only figures with a unit are spelled by the locale for certain.
    """
    layout = piece.layout
    if not len(piece.rows):
        return set()
    cells = cells_of_piece(piece, layout.printed)
    figures = [cells[index] for index in layout.values]
    if layout.form != "raw":
        units = Coded(cells[layout.where["Metric Unit"]])
        has_unit = mask(units.each(lambda unit: bool(unit.strip()), bool))
        figures = [texts.filter(has_unit) for texts in figures]
    return set().union(*(Numbers(texts).marks_shown() for texts in figures))


class _Summation:
    def __init__(self, piece: Piece) -> None:
        self._piece = piece
        self._layout = layout = piece.layout
        self._cells = cells_of_piece(piece, layout.needed)
        self._faults: list[tuple[int, int, str]] = []  # row, order within it, message
        self._kernel = self._coded("Kernel Name")
        self._result = TableTotals(layout.form)

    def _coded(self, name: str) -> Coded:
        return Coded(self._cells[self._layout.where[name]])

    def run(self) -> TableTotals:
        """Add up everything, then look which row comes first of those that are refused."""
        is_summary = self._layout.form == "summary"
        first = self._cells[self._layout.first]
        numbers, is_none = whole_numbers(first)
        name = "Invocations" if is_summary else "ID"
        self._refuse(
            is_none, 0, lambda row: f"{name}: {first[row].as_py()[:40]!r} is not a whole number"
        )
        # None of the refused is a launch seen before.
        numbers = np.where(is_none, -1 - np.arange(len(is_none)), numbers)
        launch = self._note_launches(numbers)
        for figures in self._raw() if self._layout.form == "raw" else [self._long()]:
            self._sum(self._without_repetitions(figures, launch), numbers if is_summary else None)
        self._result.fault = self._piece.fault
        if self._faults:
            row, _, message = min(self._faults, key=lambda fault: fault[:2])
            self._result.fault = Fault(int(self._piece.rows.lines[row]), message)
        return self._result

    def _refuse(
        self, which: Flags, order: int, message: Callable[[int], str], row: Integers | None = None
    ) -> None:
        """Refuse the first of `which` rows, or of the figures that are in `row`."""
        if which.any():
            positions = np.flatnonzero(which)
            rows = positions if row is None else row[positions]
            at = int(rows.argmin())
            self._faults.append((int(rows[at]), order, message(int(positions[at]))))

    # Launches

    def _note_launches(self, numbers: Integers) -> Integers:
        """Note the launches, or groups of them; return which of them each row is of."""
        layout, kernel = self._layout, self._kernel.codes
        process, processes = self._processes()
        is_summary = layout.form == "summary"
        ids = np.zeros_like(numbers) if is_summary else numbers
        begins = np.ones(len(ids), bool)
        begins[1:] = (ids[1:] != ids[:-1]) | (process[1:] != process[:-1])
        first = np.flatnonzero(begins)
        launch = np.cumsum(begins) - 1
        again = ~begins if layout.form == "raw" else kernel != kernel[first][launch]
        self._refuse(again, 1, lambda row: f"a second row for launch {ids[row]}")
        counts = np.zeros(len(self._kernel.texts), np.int64)
        np.add.at(counts, kernel[first], numbers[first] if is_summary else 1)
        self._result.launches.update(dict(zip(self._kernel.texts, counts.tolist(), strict=True)))
        if "CC" in layout.where:
            capability = self._coded("CC")
            self._result.capabilities.update(capability.texts_at(first))
        process = process[first]
        for code in np.flatnonzero(np.bincount(process)).tolist():
            own = first[process == code] if len(processes) > 1 else first
            self._result.ids.append((processes[code], ids[own], self._piece.rows.lines[own]))
        return launch

    def _processes(self) -> tuple[Integers, list[Process]]:
        """Of each row the code of its process; a summary's group is a process with the ID 0."""
        layout = self._layout
        if layout.form == "summary":
            columns = [Coded(self._cells[index]) for index in layout.launch]
            codes, first = grouped(*(column.codes for column in columns))
            groups = zip(*(column.at(first) for column in columns), strict=True)
            return codes, [(group[-1], "\n\0".join(group)) for group in groups]
        if "Process ID" not in layout.where:
            return np.zeros(len(self._piece.rows), np.int64), [""]
        process = self._coded("Process ID")
        known = list(dict.fromkeys(map(_process, process.texts)))
        return process.each(lambda text: known.index(_process(text))), [*known]

    # Figures

    def _long(self) -> Figures:
        """The cells of wanted metrics, where a row has one each."""
        name, unit = self._coded("Metric Name"), self._coded("Metric Unit")
        self._result.names = explaining_names(name.texts)
        named = {text: metric for text in name.texts if (metric := metric_in(text))}
        metrics = list(dict.fromkeys(named.values()))
        code = name.each(lambda text: metrics.index(named[text]) if text in named else -1)
        wanted = code >= 0
        if DURATION_LABEL in metrics:
            is_duration = code == metrics.index(DURATION_LABEL)
            if "Section Name" in self._layout.where:
                is_duration &= ~self._coded("Section Name").each(lambda s: _SECTION in s, bool)
            wanted &= ~is_duration
        values = self._cells[self._layout.values[0]]
        every = np.arange(len(wanted))
        return Figures(every, code, unit.codes, values, metrics, unit.texts).kept(wanted)

    def _raw(self) -> Iterator[Figures]:
        """The cells of each wanted metric, which has a column, or several."""
        columns_of = defaultdict(list)
        for index, metric in self._layout.metrics:
            columns_of[metric].append(index)
        every = np.arange(len(self._piece.rows))
        for metric, columns in columns_of.items():
            yield Figures(
                row=np.tile(every, len(columns)),
                metric=np.zeros(len(every) * len(columns), np.int64),
                unit=np.repeat(np.arange(len(columns)), len(every)),
                texts=pa.concat_arrays([self._cells[index] for index in columns]),
                metrics=[metric],
                units=[self._layout.units[index] for index in columns],
            )

    def _without_repetitions(self, figures: Figures, launch: Integers) -> Figures:
        """The first figure of each metric in each launch; an unlike second one is refused."""
        if self._layout.form == "raw" and len(figures.units) == 1:
            return figures
        key = launch[figures.row] * len(figures.metrics) + figures.metric
        if (key[1:] > key[:-1]).all():
            return figures
        order = np.argsort(key, kind="stable")
        again, before = order[1:], order[:-1]
        same = key[again] == key[before]
        if not same.any():
            return figures
        again, before = again[same], before[same]
        texts, texts_before = (
            figures.texts.take(positions(at)).to_pylist() for at in (again, before)
        )
        units = np.array(figures.units, object)
        unlike = np.array([one != other for one, other in zip(texts, texts_before, strict=True)])
        unlike |= units[figures.unit[again]] != units[figures.unit[before]]

        def message(at: int) -> str:
            name = figures.name(int(again[at]))
            return f"{name} is {texts_before[at]!r} and then {texts[at]!r} for the same launch"

        self._refuse(unlike, 3, message, figures.row[again])
        kept = np.ones(len(key), bool)
        kept[again] = False
        return figures.kept(kept)

    def _sum(self, figures: Figures, weight: Integers | None) -> None:
        """Read the numbers and add them up, those of one kernel, metric and unit together.

        A number counts `weight` times by its row, or once where there are no weights.
        """
        numbers = Numbers(figures.texts)

        def refused(at: int) -> str:
            text = figures.texts[at].as_py()[:40]
            return f"{figures.name(at)}: {text!r} is not a number that ncu prints"

        def in_unknown_unit(at: int) -> str:
            return f"{figures.name(at)}: unknown unit {figures.unit_at(at)[:20]!r}"

        unknown = self._in_unknown_units(figures)
        if unknown.any():  # zero is zero in any unit
            is_zero = (numbers.digits == 0) & (numbers.mark == 0)
            is_zero[list(numbers.long)] = False
            unknown &= (numbers.kind >= NUMBER) & ~is_zero
        self._refuse(numbers.kind == REFUSED, 4, refused, figures.row)
        self._refuse(unknown, 4, in_unknown_unit, figures.row)
        if not numbers.is_plain:
            if len(self._layout.values) > 1 and self._layout.form == "summary":
                self._decide_means(figures, numbers, ~unknown)
            self._result.marks |= numbers.marks_shown()
        if not self._faults:  # else what would be summed is refused
            self._add_up(figures, numbers, weight)

    def _add_up(self, figures: Figures, numbers: Numbers, weight: Integers | None) -> None:
        at: Any = slice(None)  # where there are numbers
        keys: list[Any] = [figures.metric, figures.unit]
        if not numbers.is_plain:
            at = np.flatnonzero(numbers.kind >= NUMBER)
            keys += [np.where(numbers.kind == DOUBTFUL, numbers.mark, 0), numbers.decimals]
        row = figures.row[at]
        if weight is not None:
            keys.append(weight[figures.row])
        label, first = self._kernel.grouped(row, [key[at] for key in keys])
        totals = np.zeros(len(first), np.int64)
        np.add.at(totals, label, numbers.digits[at])  # of so few rows and digits: no overflow
        exact = totals.tolist()
        for position, value in numbers.long.items():
            exact[label[np.searchsorted(at, position)]] += value
        launches = np.bincount(label, minlength=len(first)).tolist()
        if not numbers.is_plain:
            first = at[first]
        row = figures.row[first]
        mark = np.where(numbers.kind[first] == DOUBTFUL, numbers.mark[first], 0)
        texts = figures.texts.take(positions(first)).to_pylist() if mark.any() else [""] * len(row)
        if weight is not None:
            times = weight[row].tolist()
            launches = [count * each for count, each in zip(launches, times, strict=True)]
            exact = [total * each for total, each in zip(exact, times, strict=True)]
        of_groups = zip(
            self._kernel.at(row),
            (figures.metrics[code] for code in figures.metric[first].tolist()),
            (figures.units[code] for code in figures.unit[first].tolist()),
            (MARKS[code] for code in mark.tolist()),
            numbers.decimals[first].tolist(),
            strict=True,
        )
        lines = self._piece.rows.lines[row].tolist()
        self._result.parts += zip(
            of_groups, zip(launches, exact, lines, texts, strict=True), strict=True
        )

    @staticmethod
    def _in_unknown_units(figures: Figures) -> Flags:
        """Where a metric is in a unit that it is not measured in."""
        known = [[is_unit(metric, unit) for unit in figures.units] for metric in figures.metrics]
        unknown = ~np.array(known, bool).reshape(-1)
        if not unknown.any():
            return np.zeros(len(figures.row), bool)
        return np.asarray(unknown[figures.metric * len(figures.units) + figures.unit])

    def _decide_means(self, figures: Figures, numbers: Numbers, known: Flags) -> None:
        """Decide doubtful means that lie between the least and the largest value."""
        low, high = (self._cells[index] for index in self._layout.values[1:])
        for at in np.flatnonzero((numbers.kind == DOUBTFUL) & known).tolist():
            row, whole = int(figures.row[at]), is_base(figures.name(at), figures.unit_at(at))
            decimals = decimals_of_mean(
                Decimal(int(numbers.digits[at])),
                MARKS[numbers.mark[at]],
                (low[row].as_py(), high[row].as_py()),
                whole=whole,
            )
            if decimals is not None:
                numbers.kind[at], numbers.mark[at], numbers.decimals[at] = NUMBER, 0, decimals


def _process(text: str) -> int | str:
    """A process by its number, however that is padded."""
    text = text.strip(" ")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else text
