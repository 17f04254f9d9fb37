"""What the roofline of runs draws of a run: of its place, or of its row in a table of points."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from analysis.figures.style import MARKERS
from analysis.runs.points import RooflinePoint
from analysis.runs.quantities import (
    flops_rate,
    interval,
    percent,
    percent_interval,
    three_digits,
)
from bench.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

#: What a table must have for its rows to be drawn, of the columns of `pull_points`.
_COLUMNS = (
    *(
        "env",
        "device",
        "arch",
        "precision_ran",
        "math_mode_ran",
        "batch_size",
        "run_id",
        "bound",
        "imported",
    ),
    *("intensity_min", "intensity_max", "intensity_counted", "attained_gflops"),
    *("peak_gflops", "peak_gb_per_s", "ceiling_kind", "ceiling_source"),
    *("fraction_of_roof_min", "fraction_of_roof_max", "fraction_of_peak"),
)
#: Of a run that another program measured.
_IMPORTED = "imported, its work is modelled"


class Limit(NamedTuple):
    """A roof that a figure draws: a machine's two limits, measured or from a datasheet."""

    machine: str
    flops_per_s: float
    bytes_per_s: float
    kind: str


@dataclass(frozen=True, kw_only=True)
class DrawnPoint:
    """A run's place and what says which run it is. `limit` is the roof that it stands under.

    `intensities` are the two ends of an interval in FLOP/byte, or the counted one alone. The FLOP
    of an `imported` run are modelled as well.
    """

    arch: str
    math_mode: str
    batch_size: int
    device: str
    limit: Limit
    intensities: tuple[float, ...]
    attained_flops_per_s: float
    imported: bool
    hover: tuple[str, ...]

    @property
    def counted(self) -> bool:
        """Whether the device's counters gave the intensity."""
        return len(self.intensities) == 1


def drawn_point(point: RooflinePoint, names: Mapping[str, str]) -> DrawnPoint:
    """Return what is drawn of a placed run; `names` maps record ids to the names on hovering."""
    counted, roof = point.intensity_counted, point.roof
    return DrawnPoint(
        arch=point.arch,
        math_mode=point.math_mode,
        batch_size=point.batch_size,
        device=point.ceiling.device,
        limit=Limit(point.env, roof.peak_flops_per_s, roof.peak_bytes_per_s, point.ceiling.kind),
        intensities=(point.intensity_min, point.intensity_max) if counted is None else (counted,),
        attained_flops_per_s=point.attained_flops_per_s,
        imported=point.imported_from is not None,
        hover=_hover(point, names),
    )


def drawn_rows(table: pd.DataFrame) -> list[DrawnPoint]:
    """Return what is drawn of the rows of `pull_points`, or of `pull_runs(roofs=True)`.

    Rows without a place are left out. Raises `UserError` where a column is missing, and for an
    arithmetic that has no marker.
    """
    if missing := [name for name in _COLUMNS if name not in table]:
        raise UserError(
            f"points: the table has no column {missing[0]}; give one of pull_points(), or "
            "placed runs, such as pull_records().runs()"
        )
    placed = table[table["peak_gflops"].notna() & table["attained_gflops"].notna()]
    known = placed[list(_COLUMNS)].astype(object)
    known = known.where(known.notna(), None).fillna({"env": "unknown", "device": "unknown"})
    rows: list[dict[str, Any]] = known.to_dict("records")
    if unknown := {row["math_mode_ran"] for row in rows} - MARKERS.keys():
        raise UserError(
            f"points: math_mode_ran={unknown.pop()!r}: a marker has one of {', '.join(MARKERS)}"
        )
    return [_drawn_row(row) for row in rows]


def _drawn_row(row: Mapping[str, Any]) -> DrawnPoint:
    counted = row["intensity_counted"]
    ends = (row["intensity_min"], row["intensity_max"])
    attained = 1e9 * row["attained_gflops"]
    limit = (1e9 * row["peak_gflops"], 1e9 * row["peak_gb_per_s"], row["ceiling_kind"])
    return DrawnPoint(
        arch=row["arch"],
        math_mode=row["math_mode_ran"],
        batch_size=int(row["batch_size"]),
        device=row["device"],
        limit=Limit(row["env"], *limit),
        intensities=ends if counted is None else (counted,),
        attained_flops_per_s=attained,
        imported=bool(row["imported"]),
        hover=(
            f"{row['env']} {row['arch']} {row['precision_ran']} ({row['math_mode_ran']}) "
            f"batch {row['batch_size']}",
            f"run {row['run_id']}",
            *([_IMPORTED] if row["imported"] else []),
            f"attained {flops_rate(attained)}",
            f"intensity {'' if counted is None else three_digits(counted) + ' counted, '}"
            f"{interval(*ends)} (eager to fused bytes) FLOP/byte",
            f"{percent_interval(row['fraction_of_roof_min'], row['fraction_of_roof_max'])} of the "
            f"roof, {percent(row['fraction_of_peak'])} of the compute peak",
            f"bound: {row['bound']}",
            f"roof: {row['device']}, {row['ceiling_kind']}, {row['ceiling_source']}",
        ),
    )


def _hover(point: RooflinePoint, names: Mapping[str, str]) -> tuple[str, ...]:
    """Every number of a run."""
    times, counted = point.times, point.intensity_counted
    attainable = (point.attainable_min_flops_per_s / 1e9, point.attainable_max_flops_per_s / 1e9)
    intensity = f"{interval(point.intensity_min, point.intensity_max)} (eager to fused bytes)"
    if counted is not None:
        intensity = f"{three_digits(counted)} counted, {intensity}"
    return (
        f"{point.env} {point.arch} {point.precision} ({point.math_mode}) batch {point.batch_size}",
        f"run {names.get(point.record_id, point.record_id)}",
        *([] if point.imported_from is None else [f"{_IMPORTED}: {point.imported_from}"]),
        f"attained {flops_rate(point.attained_flops_per_s)}",
        f"intensity {intensity} FLOP/byte",
        _counters_line(point),
        f"attainable {interval(*attainable)} GFLOP/s",
        f"{percent_interval(point.fraction_of_roof_min, point.fraction_of_roof_max)} of the roof, "
        f"{100 * point.fraction_of_peak:.0f} % of the compute peak",
        f"step {three_digits(1e3 * times.measured_s)} ms: arithmetic at the roof "
        f"{three_digits(1e3 * times.compute_s)} ms, traffic "
        f"{interval(1e3 * times.memory_min_s, 1e3 * times.memory_max_s)} ms, "
        f"data wait {_share(point.data_wait_share)}",
        f"bound: {point.bound}{'' if point.bound_sure else ' (unsure)'}; {point.bound_because}",
        f"roof: {point.device}, {point.ceiling.kind}, {point.ceiling.source}",
        *(f"{finding.level}: {finding.message}" for finding in point.findings),
    )


def _share(share: float | None) -> str:
    return "not known" if share is None else f"{100 * share:.1f} %"


def _counters_line(point: RooflinePoint) -> str:
    if point.traffic_amplification is None:
        return f"bytes not counted: {point.intensity_counted_missing}"
    words = f"counted bytes are {three_digits(point.traffic_amplification)} times the fused ones"
    executed = point.executed_per_algorithmic
    if executed is None:
        return words
    return f"{words}, executed FLOP {three_digits(executed)} times the algorithmic ones"
