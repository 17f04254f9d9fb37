"""The cells that sums are made of, each with its row, metric and unit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from bench.profilers.files.ncu_csv.arrays import mask

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]
    Flags = NDArray[np.bool_]


@dataclass
class Figures:
    """Cells of wanted metrics; `row`, `metric` (of `metrics`) and `unit` (of `units`) of each."""

    row: Integers
    metric: Integers
    unit: Integers
    texts: Any
    metrics: list[str]
    units: list[str]

    def kept(self, which: Flags) -> Figures:
        """Those of `which`."""
        if which.all():
            return self
        row, metric, unit = self.row[which], self.metric[which], self.unit[which]
        texts = self.texts.filter(mask(which))
        return replace(self, row=row, metric=metric, unit=unit, texts=texts)

    def name(self, position: int) -> str:
        """The metric at `position`."""
        return self.metrics[int(self.metric[position])]

    def unit_at(self, position: int) -> str:
        """The unit at `position`."""
        return self.units[int(self.unit[position])]
