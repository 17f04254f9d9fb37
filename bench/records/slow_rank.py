"""Which rank makes the others wait, and by what: judged from the steps of all."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from bench.records.environment import Telemetry
from bench.records.measurement import DistributedFigures, Measurement, RankFigures

if TYPE_CHECKING:
    from bench.statistics.ratios import LogError  # imports NumPy, which a launcher does without

Cause = Literal["loader", "compute", "clock", "host"]
#: Of the step: what a rank must be slower by, beyond the scatter of blocks. Ranks that share a
#: machine's cores differ by up to 1 % where all do the same. Where two of them share one core's
#: units, 5 % more work shows as 3.4 %: the rank is faster while the other waits.
FLOOR = 0.0125
#: The chance that a rank of an even job is named.
_ALPHA = 0.01
#: Parts of the window, each of several steps, whose means are compared: how far they scatter holds
#: whatever lasts for longer than a step.
_BLOCKS, _FEWEST_BLOCKS, _FEWEST_STEPS = 20, 6, 4


@dataclass(frozen=True)
class SlowRank:
    """A rank that makes the others wait: by how much of a step, with the ends of an interval."""

    rank: RankFigures
    cause: Cause
    wait_s: float
    low_s: float
    high_s: float


@dataclass(frozen=True)
class _Excess:
    """By how much a part of a rank's steps is longer than the others' in the same steps."""

    mean_s: float
    error: LogError

    @classmethod
    def of(cls, own_s: Sequence[float], others_s: Sequence[Sequence[float]]) -> _Excess:
        from bench.statistics.ratios import LogError

        usual_s = map(statistics.median, zip(*others_s, strict=True))
        excess_s = [own - usual for own, usual in zip(own_s, usual_s, strict=True)]
        count = min(_BLOCKS, len(excess_s) // _FEWEST_STEPS)
        edges = [len(excess_s) * block // count for block in range(count + 1)]
        blocks = [statistics.fmean(excess_s[a:b]) for a, b in pairwise(edges)]
        deviation = statistics.stdev(blocks) / math.sqrt(count)
        return cls(statistics.fmean(blocks), LogError(deviation, count - 1))

    @property
    def ends_s(self) -> tuple[float, float]:
        """The ends of the 95 % interval."""
        return self.mean_s - self.error.half_width, self.mean_s + self.error.half_width


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
    figures: DistributedFigures, *, on_card: bool, telemetry: Telemetry | None = None
) -> SlowRank | None:
    """Return the rank that makes the others wait, or None: none surely does.

    Each part of a rank's own work is compared with the median of the others' in the same steps. A
    rank is named where one is longer by more than `FLOOR` of the step in blocks of steps (Student's
    t of their means, corrected for all ranks and parts), and the whole is not surely shorter.
    """
    from bench.statistics.ratios import holm

    ranks = {rank.rank: rank for rank in figures.ranks}
    parts = {number: parts_of(rank, on_card=on_card) for number, rank in ranks.items()}
    parts = {number: own for number, own in parts.items() if own}
    steps_s = [ranks[number].iteration_times_s or () for number in parts]
    if len(parts) < 2 or len(steps_s[0]) < _FEWEST_BLOCKS * _FEWEST_STEPS:
        return None
    step_s = statistics.fmean(map(statistics.fmean, steps_s))
    found = [
        (rank, cause, _Excess.of(own_s, [parts[other][cause] for other in parts if other != rank]))
        for rank, own in parts.items()
        for cause, own_s in own.items()
    ]
    tests = [excess.error.p_value(excess.mean_s - FLOOR * step_s) for *_, excess in found]
    sure = [excess for excess, p in zip(found, holm(tests), strict=True) if p < _ALPHA]
    for rank, cause, excess in sorted(sure, key=lambda named: -named[2].mean_s):
        whole = {r: [*map(sum, zip(*own.values(), strict=True))] for r, own in parts.items()}
        _, longest_s = _Excess.of(whole.pop(rank), [*whole.values()]).ends_s
        if longest_s < excess.mean_s / 2:
            continue  # it waits there, and is faster elsewhere
        if cause == "compute" and _is_clock(rank, parts, telemetry, excess.mean_s / step_s):
            cause = "clock"
        return SlowRank(ranks[rank], cause, excess.mean_s, *excess.ends_s)
    return None


def _is_clock(slow: int, ranks: Collection[int], telemetry: Telemetry | None, share: float) -> bool:
    """Whether a GPU's lower clock explains half of what its rank computes longer."""
    names = {rank: "" if rank == min(ranks) else f"rank{rank}_" for rank in ranks}
    means = {r: telemetry and telemetry.mean(f"{n}gpu_sm_clock_mhz") for r, n in names.items()}
    own, others = means.pop(slow), [mean for mean in means.values() if mean]
    return bool(own and others) and statistics.median(others) / (own or 1.0) - 1 > share / 2


def rank_rows(window: Measurement) -> list[dict[str, int | float | str | None]]:
    """Return a row for each rank: what it is, and its mean step by what it spends it with, in ms.

    What is not known of a rank is None.
    """
    rows = []
    for rank in window.ranks.ranks if window.ranks else ():
        parts = parts_of(rank, on_card=window.iteration_clock == "cuda_events")
        known = {"step": rank.iteration_times_s, "loader": rank.data_wait_s,
                 **{name: parts.get(name) for name in ("compute", "host")},
                 "exchange_wait": rank.exchange_wait_s}  # fmt: skip
        peak_bytes = rank.peak_memory_allocated_bytes or rank.max_rss_bytes
        rows.append({name: getattr(rank, name) for name in ("rank", "host", "device")})
        rows[-1] |= {"samples": rank.samples_per_step}
        rows[-1] |= {f"{n}_ms": 1e3 * statistics.fmean(s) if s else None for n, s in known.items()}
        rows[-1] |= {"peak_memory_mb": peak_bytes and peak_bytes / 1e6}
        rows[-1] |= {"why": rank.missing.get("iteration_times_s")}
    return rows
