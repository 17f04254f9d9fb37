"""What many rows of a table add up to, column by column: launches, and sums of the wanted metrics.

Every check of a row is here. A check names the first row that fails it, and of several rows the
first in the file is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench.profilers.files.ncu_metrics import DURATION_LABEL
from bench.profilers.files.ncu_numbers import (
    DOUBTFUL,
    EXACT,
    MARKS,
    MISSING,
    NUMBER,
    REFUSED,
    Numbers,
    decimals_of_mean,
    flags,
    is_base,
    unit_power,
    whole_numbers,
)
from bench.profilers.files.ncu_rows import Fault, Layout, Rows, explaining_name, metric_in

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]
    Flags = NDArray[np.bool_]

#: Of so many groups a table is kept, whether they occur or not.
_MOST_CODES = 1 << 20
_SECTION = "Speed Of Light"


class LaunchRun(NamedTuple):
    """Launches of one process whose IDs go up by one, with the line of each.

    A summary's group of launches is its own process, with the ID 0, and of one `kernel`.
    """

    process: int | str
    first: int
    last: int
    lines: Integers
    kernel: str | None = None


class MetricSum(NamedTuple):
    """The sum of one metric in launches of one kernel, in the unit as printed.

    `mark` is empty, or the separator whose meaning is in doubt: then `total` is the digits, and
    `text` and `line` show the first such number.
    """

    kernel: str
    metric: str
    unit: str
    mark: str
    launches: int
    total: Decimal
    line: int
    text: str


@dataclass
class RowSums:
    """What rows add to a table, up to `fault`."""

    launches: Counter[str] = field(default_factory=Counter)
    runs: list[LaunchRun] = field(default_factory=list)
    sums: list[MetricSum] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    capabilities: set[str] = field(default_factory=set)
    marks: set[str] = field(default_factory=set)
    fault: Fault | None = None


@dataclass
class _Figures:
    """Cells of wanted metrics; `row`, `launch`, `metric` (of `metrics`) and so on for each."""

    row: Integers
    metric: Integers
    unit: Integers
    texts: Any
    metrics: Sequence[str]
    units: Sequence[str]

    def kept(self, which: Flags) -> _Figures:
        """Those of `which`."""
        row, metric, unit = self.row[which], self.metric[which], self.unit[which]
        texts = self.texts.filter(pa.array(which))
        return _Figures(row, metric, unit, texts, self.metrics, self.units)

    def name(self, position: int) -> str:
        """The metric at `position`."""
        return self.metrics[int(self.metric[position])]

    def unit_at(self, position: int) -> str:
        """The unit at `position`."""
        return self.units[int(self.unit[position])]

    def text(self, position: int) -> str:
        """The number at `position` as printed."""
        return str(self.texts[position])


def sum_rows(rows: Rows) -> RowSums:
    """Add up the rows of whole launches."""
    if not len(rows):
        return RowSums(fault=rows.fault)
    return _Summation(rows).run()


def marks_shown(rows: Rows) -> set[str]:
    """The decimal marks that any figure of the rows proves, whatever its metric.

    Only figures with a unit are spelled by the locale for certain.
    """
    shown: set[str] = set()
    for index, of_units in rows.source.layout.printed:
        texts = rows.cells[index]
        if rows.source.layout.form != "raw":
            known = pc.not_equal(pc.utf8_trim_whitespace(rows.cells[of_units]), "")
            texts = texts.filter(known)
        shown |= _marks(Numbers(texts))
    return shown


def _marks(numbers: Numbers) -> set[str]:
    if not numbers.mark.any():
        return set()
    counts = np.bincount(numbers.mark[numbers.kind == NUMBER], minlength=len(MARKS))
    return {mark for mark, count in zip(MARKS, counts, strict=True) if mark and count}


class _Summation:
    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._layout: Layout = rows.source.layout
        self._faults: list[tuple[int, int, str]] = []  # row, order within it, message
        self._kernel, self._kernels = _coded(rows.cells[self._layout.kernel])
        self._result = RowSums()

    def run(self) -> RowSums:
        """Add up everything, then look which row comes first of those that are refused."""
        column = "Invocations" if self._layout.form == "summary" else "ID"
        texts = self._rows.cells[self._layout.first]
        numbers, is_none = whole_numbers(texts)
        self._refuse(
            is_none, 0, lambda row: f"{column}: {_shown(texts, row)} is not a whole number"
        )
        if is_none.any():
            numbers[is_none] = -1 - np.flatnonzero(is_none)  # none of them is a launch seen before
        launch = self._note_launches(numbers)
        figures = self._raw() if self._layout.form == "raw" else self._long()
        weight = numbers if self._layout.form == "summary" else np.array([], np.int64)
        self._sum(self._without_repetitions(figures, launch), weight)
        if self._faults:
            row, _, message = min(self._faults)
            self._result.fault = Fault(int(self._rows.lines[row]), message)
        else:
            self._result.fault = self._rows.fault
        return self._result

    def _refuse(
        self, which: Flags, order: int, message: Callable[[int], str], row: Integers | None = None
    ) -> None:
        """Refuse the first of `which` rows, or of the figures that are in `row`."""
        if which.any():
            positions = np.flatnonzero(which)
            if row is not None:
                positions = positions[np.argsort(row[positions], kind="stable")]
            position = int(positions[0])
            at = position if row is None else int(row[position])
            self._faults.append((at, order, message(position)))

    # Launches

    def _note_launches(self, numbers: Integers) -> Integers:
        """Note the launches, or groups of them; return which of them each row is of."""
        layout, kernel = self._layout, self._kernel
        process, processes, ids = self._identities(numbers)
        begins = np.ones(len(ids), bool)
        begins[1:] = (ids[1:] != ids[:-1]) | (process[1:] != process[:-1])
        if layout.form == "summary":
            begins[1:] |= kernel[1:] != kernel[:-1]
        first = np.flatnonzero(begins)
        launch = np.cumsum(begins) - 1
        if layout.form == "raw":
            self._refuse(~begins, 1, lambda row: f"a second row for launch {ids[row]}")
        elif layout.form == "long":
            other = kernel != kernel[first][launch]
            self._refuse(other, 1, lambda row: f"a second row for launch {ids[row]}")
        if layout.form == "summary":
            for code, count in zip(kernel[first].tolist(), numbers[first].tolist(), strict=True):
                self._result.launches[self._kernels[code]] += count
        else:
            counts = np.bincount(kernel[first], minlength=len(self._kernels)).tolist()
            self._result.launches.update(dict(zip(self._kernels, counts, strict=True)))
        if layout.capability is not None:
            seen = self._rows.cells[layout.capability].take(pa.array(first))
            self._result.capabilities.update(pc.unique(seen).to_pylist())
        self._note_runs(first, ids[first], process[first], processes)
        return launch

    def _identities(self, numbers: Integers) -> tuple[Integers, list[int | str], Integers]:
        """Of each row the code of its process, and its ID; a group is a process with the ID 0."""
        layout, cells = self._layout, self._rows.cells
        if layout.form == "summary":
            group = pc.binary_join_element_wise(
                *(cells[index] for index in range(layout.first)), "\n\0"
            )
            code, names = _coded(group)
            return code, [*names], np.zeros_like(numbers)
        if layout.process is None:
            return np.zeros_like(numbers), [""], numbers
        code, names = _coded(cells[layout.process])
        known = {name: number for number, name in enumerate(dict.fromkeys(map(_process, names)))}
        of_name = np.array([known[_process(name)] for name in names], np.int64)
        return of_name[code], [*known], numbers

    def _note_runs(
        self, first: Integers, ids: Integers, process: Integers, processes: list[int | str]
    ) -> None:
        lines, of_groups = self._rows.lines[first], self._layout.form == "summary"
        breaks = np.flatnonzero((ids[1:] != ids[:-1] + 1) | (process[1:] != process[:-1])) + 1
        for begin, end in zip([0, *breaks.tolist()], [*breaks.tolist(), len(ids)], strict=True):
            kernel = self._kernels[self._kernel[first[begin]]] if of_groups else None
            name = processes[process[begin]]
            run = LaunchRun(name, int(ids[begin]), int(ids[end - 1]), lines[begin:end], kernel)
            self._result.runs.append(run)

    # Figures

    def _long(self) -> _Figures:
        """The cells of wanted metrics, where a row has one each."""
        layout, cells = self._layout, self._rows.cells
        name, names = _coded(cells[layout.name])
        self._result.names.update(filter(None, map(explaining_name, names)))
        of_name = [metric_in(text) for text in names]
        metrics = [metric for metric in dict.fromkeys(of_name) if metric]
        code = np.array([metrics.index(one) if one else -1 for one in of_name], np.int64)[name]
        wanted = code >= 0
        if DURATION_LABEL in metrics:
            counts = np.zeros(len(wanted), bool)
            if layout.section is not None:
                counts = flags(pc.match_substring(cells[layout.section], _SECTION))
            wanted &= (code != metrics.index(DURATION_LABEL)) | counts
        unit, units = _coded(cells[layout.unit])
        every = np.arange(len(wanted))
        return _Figures(every, code, unit, cells[layout.value], metrics, units).kept(wanted)

    def _raw(self) -> _Figures:
        """The cells of wanted metrics, where each has a column."""
        layout, count = self._layout, len(self._rows)
        metrics = list(dict.fromkeys(metric for _, metric in layout.metrics))
        units = [layout.units[index] for index, _ in layout.metrics]
        columns = [self._rows.cells[index] for index, _ in layout.metrics]
        codes = [metrics.index(metric) for _, metric in layout.metrics]
        return _Figures(
            row=np.tile(np.arange(count), len(columns)),
            metric=np.repeat(np.array(codes, np.int64), count),
            unit=np.repeat(np.arange(len(columns)), count),
            texts=pa.concat_arrays(columns) if columns else pa.array([], pa.string()),
            metrics=metrics,
            units=units,
        )

    def _without_repetitions(self, figures: _Figures, launch: Integers) -> _Figures:
        """The first figure of each metric in each launch; an unlike second one is refused."""
        if self._layout.form == "raw" and len(figures.metrics) == len(figures.units):
            return figures
        key = launch[figures.row] * len(figures.metrics) + figures.metric
        order = np.argsort(key, kind="stable")
        again, before = order[1:], order[:-1]
        same = key[again] == key[before]
        if not same.any():
            return figures
        again, before = again[same], before[same]
        texts, texts_before = (figures.texts.take(pa.array(at)) for at in (again, before))
        units = np.array(figures.units, object)
        unlike = flags(pc.not_equal(texts, texts_before))
        unlike |= units[figures.unit[again]] != units[figures.unit[before]]

        def message(position: int) -> str:
            pair = texts_before[position].as_py(), texts[position].as_py()
            name = figures.name(int(again[position]))
            return f"{name} is {pair[0]!r} and then {pair[1]!r} for the same launch"

        self._refuse(unlike, 3, message, figures.row[again])
        kept = np.ones(len(key), bool)
        kept[again] = False
        return figures.kept(kept)

    def _sum(self, figures: _Figures, weight: Integers) -> None:
        """Read the numbers and add them up, those of one kernel, metric and unit together.

        A number counts `weight` times by its row, or once where there are no weights.
        """
        numbers = Numbers(figures.texts)
        self._refuse(
            numbers.kind == REFUSED,
            4,
            lambda at: (
                f"{figures.name(at)}: {_shown(figures.texts, at)} is not a number that ncu prints"
            ),
            figures.row,
        )
        in_unknown = self._in_unknown_units(figures)
        if in_unknown.any():
            in_unknown &= (numbers.kind != MISSING) & ~numbers.is_plain_zero()
        self._refuse(
            in_unknown,
            4,
            lambda at: f"{figures.name(at)}: unknown unit {figures.unit_at(at)[:20]!r}",
            figures.row,
        )
        if self._layout.bounds:
            self._decide_means(figures, numbers, ~in_unknown)
        self._result.marks = _marks(numbers)
        if self._faults:
            return  # what would be summed is refused
        doubtful = numbers.kind == DOUBTFUL
        counted = np.flatnonzero(doubtful | (numbers.kind == NUMBER))
        at: Any = counted if len(counted) < len(doubtful) else slice(None)  # which is faster
        row = figures.row[at]
        label, first = _grouped(
            self._kernel[row],
            figures.metric[at],
            figures.unit[at],
            (numbers.mark * doubtful)[at].astype(np.int64),
            numbers.decimals[at].astype(np.int64),
            weight[row] if len(weight) else weight,
        )
        digits = numbers.digits[at]
        count = np.bincount(label, minlength=len(first)).tolist()
        # Half of the bits at a time: numpy adds up in doubles, which are exact up to 2**53.
        low = np.bincount(label, digits & 0xFFFFFF, len(first)).tolist()
        high = np.bincount(label, digits >> 24, len(first)).tolist()
        totals = [Decimal((int(a) << 24) + int(b)) for a, b in zip(high, low, strict=True)]
        decimals = numbers.decimals[at][first].tolist()
        totals = [total.scaleb(-n, EXACT) for total, n in zip(totals, decimals, strict=True)]
        for position, value in numbers.long.items():
            group = label[np.searchsorted(counted, position)]
            totals[group] = EXACT.add(totals[group], value)
        for group, position in enumerate(counted[first].tolist()):
            row = int(figures.row[position])
            times = int(weight[row]) if len(weight) else 1
            self._result.sums.append(
                MetricSum(
                    kernel=self._kernels[self._kernel[row]],
                    metric=figures.name(position),
                    unit=figures.unit_at(position),
                    mark=MARKS[numbers.mark[position]] if doubtful[position] else "",
                    launches=count[group] * times,
                    total=EXACT.multiply(totals[group], Decimal(times)),
                    line=int(self._rows.lines[row]),
                    text=figures.text(position) if doubtful[position] else "",
                )
            )

    @staticmethod
    def _in_unknown_units(figures: _Figures) -> Flags:
        """Where a metric is in a unit that it is not measured in."""
        pair = figures.metric * max(len(figures.units), 1) + figures.unit
        unknown = np.zeros(len(figures.metrics) * len(figures.units), bool)
        for code in np.flatnonzero(np.bincount(pair, minlength=len(unknown))).tolist():
            metric, unit = divmod(code, len(figures.units))
            try:
                unit_power(figures.metrics[metric], figures.units[unit])
            except ValueError:
                unknown[code] = True
        return np.asarray(unknown[pair])

    def _decide_means(self, figures: _Figures, numbers: Numbers, known: Flags) -> None:
        """Decide doubtful means that lie between the least and the largest value."""
        low, high = (self._rows.cells[index] for index in self._layout.bounds or ())
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


def _coded(texts: Any) -> tuple[Integers, list[str]]:
    """Texts as codes of the distinct ones."""
    encoded = texts.dictionary_encode()
    codes: Integers = encoded.indices.to_numpy().astype(np.int64)
    return codes, encoded.dictionary.to_pylist()


def _grouped(*keys: Integers) -> tuple[Integers, Integers]:
    """The group of each position, alike in all keys, and the first position of each group."""
    code, codes = np.zeros(len(keys[0]), np.int64), 1
    for key in keys:
        least, most = (int(key.min()), int(key.max())) if len(key) else (0, 0)
        if least < most:
            code, codes = code * (most - least + 1) + (key - least), codes * (most - least + 1)
        if codes > _MOST_CODES:
            code = pa.array(code).dictionary_encode().indices.to_numpy().astype(np.int64)
            codes = int(code.max()) + 1
    first = np.full(codes, -1)
    first[code[::-1]] = np.arange(len(code))[::-1]
    present = first >= 0
    return (code if present.all() else (np.cumsum(present) - 1)[code]), first[present]


def _process(text: str) -> int | str:
    """A process by its number, however that is padded."""
    text = text.strip(" ")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else text


def _shown(texts: Any, position: int) -> str:
    return repr(texts[position].as_py()[:40])
