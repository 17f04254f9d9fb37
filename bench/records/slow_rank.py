"""Which rank makes the others wait, and by what: judged from the steps of all."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from bench.records.base import Finding
from bench.records.environment import Telemetry
from bench.records.measurement import RankFigures

if TYPE_CHECKING:
    from bench.statistics.ratios import LogError

Cause = Literal["loader", "compute", "clock", "host"]
#: Of the step: the standard deviation of what ranks differ by over a whole window where all do the
#: same. They share caches and cores, and not always alike; rank 0 is measured, for some 60 us.
_UNEVEN, _UNEVEN_S = 0.005, 5e-5
#: The chance that a rank of an even job is named.
_ALPHA = 0.01
#: Parts of the window whose means are compared: how far they scatter holds whatever lasts longer
#: than a step. Others take a core for tens of milliseconds, and a loader makes wait at each eighth
#: step or so: a part is longer, where there are steps enough.
_BLOCKS, _FEWEST_BLOCKS = 30, 6
_USUAL_STEPS, _FEWEST_STEPS, _LEAST_S = 8, 4, 0.1


def _excess(
    series_s: Mapping[int, Sequence[float]], rank: int, count: int, uneven_s: float
) -> tuple[float, LogError]:
    """Return by how much a rank is slower than the usual ones among the others, with the error.

    These are the others without a quarter at each end, by their means over the window. The median
    in each step is below that mean wherever waits are rare and long.

    What interrupts a rank for long lies in few blocks: of ten the largest and the smallest are left
    out, and the error is that of such a mean (Tukey and McLaughlin, Sankhya A 25, 1963, page 331).
    """
    from bench.statistics.ratios import LogError  # imports NumPy, which a launcher does without

    others_s = [own_s for other, own_s in series_s.items() if other != rank]
    others_s.sort(key=statistics.fmean)
    ends = (len(others_s) + 1) // 4
    usual_s = map(statistics.fmean, zip(*others_s[ends : len(others_s) - ends], strict=True))
    longer_s = [own - usual for own, usual in zip(series_s[rank], usual_s, strict=True)]
    edges = [len(longer_s) * block // count for block in range(count + 1)]
    blocks = sorted(statistics.fmean(longer_s[a:b]) for a, b in pairwise(edges))
    cut = count // 10
    kept = blocks[cut : count - cut]
    drawn_in = [*kept, *[kept[0]] * cut, *[kept[-1]] * cut]
    within_s = statistics.stdev(drawn_in) * math.sqrt(count) / len(kept)
    error_s = math.hypot(within_s, uneven_s)
    degrees = (len(kept) - 1) * (error_s / max(within_s, 1e-3 * error_s)) ** 4
    return statistics.fmean(kept), LogError(error_s, degrees)


def parts_of(rank: RankFigures, *, on_card: bool) -> dict[Cause, list[float]]:
    """Return what a rank spends of each step itself, in seconds.

    On a processor its computing is what its thread ran, and its host's part the rest: others that
    ran in its place, and waits for what is neither loader nor exchange. On a GPU the step is the
    device's, and the rest of it computing.
    """
    series = rank.iteration_times_s, rank.exchange_wait_s, rank.data_wait_s, rank.processor_s
    if not all(series):
        return {}
    own_s = [step - wait for step, wait in zip(series[0] or (), series[1] or (), strict=True)]
    loads_s, ran_s = list(series[2] or ()), list(series[3] or ())
    rest_s = [own - load for own, load in zip(own_s, loads_s, strict=True)]
    if on_card:
        return {"loader": loads_s, "compute": rest_s}
    host_s = [rest - ran for rest, ran in zip(rest_s, ran_s, strict=True)]
    return {"loader": loads_s, "compute": ran_s, "host": host_s}


def slow_rank(
    ranks: Sequence[RankFigures], *, on_card: bool, telemetry: Telemetry | None = None
) -> Finding | None:
    """Return which rank makes the others wait, or by how much one may; None of too few steps.

    Each part of a rank's own work is compared with the others' in the same steps. A rank is named
    with the part that is surely longer (Student's t, corrected for all ranks and parts), unless its
    whole work is surely not. Where none is, the one is returned that may be slower by most.
    """
    from bench.statistics.ratios import holm

    figures = {rank.rank: rank for rank in ranks}
    parts = {number: parts_of(rank, on_card=on_card) for number, rank in figures.items()}
    parts = {number: own for number, own in parts.items() if own}
    steps_s = [figures[number].iteration_times_s or () for number in parts]
    if len(parts) < 2:
        return None
    step_s = statistics.fmean(map(statistics.fmean, steps_s))
    steps = len(steps_s[0])
    least = max(_FEWEST_STEPS, math.ceil(_LEAST_S / step_s))
    usual = max(_USUAL_STEPS, least)
    blocks = min(_BLOCKS, max(steps // usual, min(_FEWEST_BLOCKS, steps // least)))
    if blocks < _FEWEST_BLOCKS:
        return None
    judge = partial(_excess, count=blocks, uneven_s=max(_UNEVEN * step_s, _UNEVEN_S))
    whole_s = {rank: [*map(sum, zip(*own.values(), strict=True))] for rank, own in parts.items()}
    wholes = {rank: judge(whole_s, rank) for rank in parts}
    highest_s = {rank: mean_s + error.half_width for rank, (mean_s, error) in wholes.items()}
    tried: list[tuple[float, LogError, int, Cause | None]] = [
        (*judge({r: own[cause] for r, own in parts.items()}, rank), rank, cause)
        for rank, own in parts.items()
        for cause in own
    ]
    chances = holm([error.p_value(mean_s) for mean_s, error, *_ in tried])
    sure = [
        part
        for part, chance in zip(tried, chances, strict=True)
        # else it waits there, and is faster elsewhere
        if chance < _ALPHA and highest_s[part[2]] > part[0] / 2
    ]
    slowest = max(highest_s, key=lambda rank: highest_s[rank])
    mean_s, error, rank, cause = max(sure, default=(*wholes[slowest], slowest, None))
    if cause == "compute" and _is_clock(rank, parts, telemetry, mean_s / step_s):
        cause = "clock"
    return Finding.of(
        "slow-rank" if cause else "no-slow-rank",
        rank=rank,
        host=figures[rank].host,
        cause=cause,
        step_ms=1e3 * statistics.fmean(figures[rank].iteration_times_s or ()),
        wait_ms=1e3 * mean_s,
        low_ms=1e3 * (mean_s - error.half_width),
        high_ms=1e3 * (mean_s + error.half_width),
    )


def _is_clock(slow: int, ranks: Collection[int], telemetry: Telemetry | None, share: float) -> bool:
    """Whether a GPU's lower clock explains half of what its rank computes longer."""
    names = {rank: "" if rank == min(ranks) else f"rank{rank}_" for rank in ranks}
    means = {r: telemetry and telemetry.mean(f"{n}gpu_sm_clock_mhz") for r, n in names.items()}
    own, others = means.pop(slow), [mean for mean in means.values() if mean]
    return bool(own and others) and statistics.median(others) / (own or 1.0) - 1 > share / 2


def mean_parts_ms(rank: RankFigures, *, on_card: bool) -> dict[str, float | None]:
    """Return a rank's mean step and what it spends it with, in ms by the names of columns.

    What is not known is None.
    """
    parts = parts_of(rank, on_card=on_card)
    known = {"step": rank.iteration_times_s, "loader": rank.data_wait_s,
             **{name: parts.get(name) for name in ("compute", "host")},
             "exchange_wait": rank.exchange_wait_s}  # fmt: skip
    return {f"{n}_ms": 1e3 * statistics.fmean(s) if s else None for n, s in known.items()}


def rank_rows(ranks: Sequence[RankFigures], *, on_card: bool) -> list[dict[str, Any]]:
    """Return a row for each rank: what it is, and its mean step by what it spends it with."""
    rows = []
    for rank in ranks:
        peak_bytes = rank.peak_memory_allocated_bytes or rank.max_rss_bytes
        rows.append({
            **{name: getattr(rank, name) for name in ("rank", "host", "device")},
            "samples": rank.samples_per_step,
            **mean_parts_ms(rank, on_card=on_card),
            "peak_memory_mb": peak_bytes and peak_bytes / 1e6,
            "why": rank.missing.get("iteration_times_s"),
        })  # fmt: skip
    return rows
