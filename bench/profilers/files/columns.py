"""Many regular rows at a time: pyarrow parses them, numpy adds them up.

A row is regular if it is one line of quoted cells that begins with its ID. Whatever needs more
care than that is left to `bench.profilers.files.rows`, which reads the same rows one by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyarrow import csv

from bench.profilers.files.layout import Layout, metric_in, telling_name
from bench.profilers.files.metrics import DURATION_LABEL
from bench.profilers.files.quotes import well_quoted
from bench.profilers.files.runs import codes_of, note_launches
from bench.profilers.files.sums import Adder, Label, Part

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

_CODES = pa.dictionary(pa.int32(), pa.string())


def read_columns(data: bytes, rows: int, layout: Layout) -> Part | None:
    """Add up `rows` lines of `data`, or return None if they are not as regular as they look."""
    if not well_quoted(data, rows, len(layout.columns)) or _holds_odd_integers(data):
        return None
    try:
        return _long(data, rows, layout) if layout.form == "long" else _raw(data, rows, layout)
    except (pa.ArrowException, ValueError):
        return None


def _parse(data: bytes, rows: int, layout: Layout, types: dict[int, pa.DataType]) -> Any:
    """The columns of `types` by their index, each as one array."""
    table = csv.read_csv(
        pa.BufferReader(data),
        read_options=csv.ReadOptions(
            column_names=[str(index) for index in range(len(layout.columns))],
            use_threads=False,
            block_size=len(data) + 1,
        ),
        parse_options=csv.ParseOptions(newlines_in_values=False, ignore_empty_lines=False),
        convert_options=csv.ConvertOptions(
            include_columns=[str(index) for index in types],
            column_types={str(index): kind for index, kind in types.items()},
            null_values=["", "n/a"],
            strings_can_be_null=False,
        ),
    )
    if table.num_rows != rows:
        raise ValueError("a row over several lines")
    return {index: table.column(str(index)).combine_chunks() for index in types}


def _identity(layout: Layout) -> dict[int, pa.DataType]:
    types: dict[int, pa.DataType] = {layout.first: pa.int64(), layout.kernel: _CODES}
    if layout.process is not None:
        types[layout.process] = pa.int64()
    if layout.capability is not None:
        types[layout.capability] = _CODES
    return types


def _long(data: bytes, rows: int, layout: Layout) -> Part:
    types = _identity(layout) | {
        layout.name: _CODES,
        layout.unit: _CODES,
        layout.value: pa.string(),
    }
    columns = _parse(data, rows, layout, types)
    names = columns[layout.name].dictionary.to_pylist()
    metrics = [metric_in(name) for name in names]
    if DURATION_LABEL in metrics:
        raise ValueError("its meaning depends on the section")
    part = Part(names=set(filter(None, map(telling_name, names))))
    run, kernels = note_launches(part, columns, layout)
    wanted = np.array([metric is not None for metric in metrics] or [False])
    name_of = codes_of(columns[layout.name])
    chosen = np.flatnonzero(wanted[name_of])
    unit_of = codes_of(columns[layout.unit])[chosen]
    units = columns[layout.unit].dictionary.to_pylist()
    kernel_of, name_of = codes_of(columns[layout.kernel])[chosen], name_of[chosen]
    if len(np.unique(run[chosen] * len(names) + name_of)) < len(chosen):
        raise ValueError("a metric twice for one launch")
    keys = (kernel_of * len(names) + name_of) * max(len(units), 1) + unit_of
    distinct, group = np.unique(keys, return_inverse=True)
    labels = []
    for key in distinct.tolist():
        rest, unit = divmod(key, len(units))
        kernel, name = divmod(rest, len(names))
        labels.append(Label(kernels[kernel], str(metrics[name]), units[unit]))
    texts = columns[layout.value]
    if len(chosen) < rows:
        texts = texts.take(pa.array(chosen))
    Adder(part, labels, group, chosen).add_texts(texts)
    return part


def _raw(data: bytes, rows: int, layout: Layout) -> Part:
    identity = _identity(layout)
    figures = [index for index, _ in layout.metrics]
    if len({metric for _, metric in layout.metrics}) < len(figures):
        raise ValueError("a metric in two columns")
    kind = pa.int64() if _all_digits(data, figures) else pa.string()
    try:
        columns = _parse(data, rows, layout, identity | dict.fromkeys(figures, kind))
    except pa.ArrowInvalid:
        columns = _parse(data, rows, layout, identity | dict.fromkeys(figures, pa.string()))
    part = Part()
    _, kernels = note_launches(part, columns, layout)
    group, row_of = codes_of(columns[layout.kernel]), np.arange(rows)
    for index, metric in layout.metrics:
        labels = [Label(kernel, metric, layout.units[index]) for kernel in kernels]
        adder = Adder(part, labels, group, row_of)
        if pa.types.is_string(columns[index].type):
            adder.add_texts(columns[index])
        else:
            adder.add_column(columns[index])
    return part


def _holds_odd_integers(data: bytes) -> bool:
    """Whether some cell begins with `0x` or has a tab at an end: to pyarrow both are integers."""
    text = np.frombuffer(data, np.uint8)
    after = np.flatnonzero((text[2:] | 0x20) == ord("x"))
    hexadecimal = bool(((text[after] == ord('"')) & (text[after + 1] == ord("0"))).any())
    return hexadecimal or b'"\t' in data or b'\t"' in data


def _all_digits(data: bytes, figures: list[int]) -> bool:
    """Whether the figures of the first row are plain, so that all are likely to be."""
    first = data[: data.index(b"\n")].rstrip(b"\r")[1:-1].split(b'","')
    return all(first[index].isdigit() for index in figures if index < len(first))
