"""The launches of many rows, from their columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bench.profilers.files.layout import Layout
from bench.profilers.files.sums import Part

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]


def codes_of(column: Any) -> Integers:
    """The codes of a column of texts, as its dictionary has them."""
    codes: Integers = column.indices.to_numpy().astype(np.int64)
    return codes


def note_launches(part: Part, columns: Any, layout: Layout) -> tuple[Integers, list[str]]:
    """Note the launches; return the launch of each row, and the kernels' names."""
    ids = columns[layout.first].to_numpy()
    kernel_of = codes_of(columns[layout.kernel])
    processes = (
        columns[layout.process].to_numpy()
        if layout.process is not None
        else np.zeros(len(ids), np.int64)
    )
    if ids.dtype != np.int64 or processes.dtype != np.int64 or (ids < 0).any():
        raise ValueError("an ID that is not a whole number")
    begins = np.ones(len(ids), bool)
    begins[1:] = (ids[1:] != ids[:-1]) | (processes[1:] != processes[:-1])
    first = np.flatnonzero(begins)
    run = np.cumsum(begins) - 1
    if (kernel_of != kernel_of[first][run]).any() or (
        len(first) < len(ids) and layout.form == "raw"
    ):
        raise ValueError("one launch of two kernels, or twice")
    kernels: list[str] = columns[layout.kernel].dictionary.to_pylist()
    counts = np.bincount(kernel_of[first], minlength=len(kernels)).tolist()
    part.launches = dict(zip(kernels, counts, strict=True))
    part.runs = _ascending(ids[first], processes[first], has_process=layout.process is not None)
    if layout.capability is not None:
        capability = columns[layout.capability]
        seen = np.unique(codes_of(capability)[first]).tolist()
        part.capabilities = {capability.dictionary[code].as_py() for code in seen}
    return run, kernels


def _ascending(
    ids: Integers, processes: Integers, *, has_process: bool
) -> list[tuple[int | str, int, int]]:
    """The launches as runs of IDs that go up by one within a process."""
    breaks = np.flatnonzero((ids[1:] != ids[:-1] + 1) | (processes[1:] != processes[:-1])) + 1
    starts = [0, *breaks.tolist()]
    ends = [*breaks.tolist(), len(ids)]
    return [
        (int(processes[start]) if has_process else "", int(ids[start]), int(ids[end - 1]))
        for start, end in zip(starts, ends, strict=True)
    ]
