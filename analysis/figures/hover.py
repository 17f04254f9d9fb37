"""What hovering over a run shows."""

from __future__ import annotations

import html
from collections.abc import Mapping

from analysis.runs.points import RooflinePoint
from analysis.runs.quantities import flops_rate, interval, percent_interval, three_digits


def hover_text(point: RooflinePoint, names: Mapping[str, str]) -> str:
    """Return every number of a run; records are escaped, since Plotly reads tags."""
    times, counted = point.times, point.intensity_counted
    attainable = (point.attainable_min_flops_per_s / 1e9, point.attainable_max_flops_per_s / 1e9)
    intensity = f"{interval(point.intensity_min, point.intensity_max)} (eager to fused bytes)"
    if counted is not None:
        intensity = f"{three_digits(counted)} counted, {intensity}"
    lines = [
        f"{point.env} {point.arch} {point.precision} ({point.math_mode}) batch {point.batch_size}",
        f"run {names.get(point.record_id, point.record_id)}",
        f"attained {flops_rate(point.attained_flops_per_s)}",
        f"intensity {intensity} FLOP/byte",
        _counters_line(point),
        f"attainable {interval(*attainable)} GFLOP/s",
        f"{percent_interval(point.fraction_of_roof_min, point.fraction_of_roof_max)} of the roof, "
        f"{100 * point.fraction_of_peak:.0f} % of the compute peak",
        f"step {three_digits(1e3 * times.measured_s)} ms: arithmetic at the roof "
        f"{three_digits(1e3 * times.compute_s)} ms, traffic "
        f"{interval(1e3 * times.memory_min_s, 1e3 * times.memory_max_s)} ms, "
        f"data wait {100 * point.data_wait_share:.1f} %",
        f"bound: {point.bound}{'' if point.bound_sure else ' (unsure)'}; {point.bound_because}",
        f"roof: {point.device}, {point.ceiling.kind}, {point.ceiling.source}",
        *(f"{finding.level}: {finding.message}" for finding in point.findings),
    ]
    return "<br>".join(html.escape(line) for line in lines)


def _counters_line(point: RooflinePoint) -> str:
    if point.traffic_amplification is None:
        return f"bytes not counted: {point.intensity_counted_missing}"
    words = f"counted bytes are {three_digits(point.traffic_amplification)} times the fused ones"
    executed = point.executed_per_algorithmic
    if executed is None:
        return words
    return f"{words}, executed FLOP {three_digits(executed)} times the algorithmic ones"
