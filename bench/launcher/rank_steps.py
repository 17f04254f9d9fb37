"""Joins the steps that every rank has written into what rank 0 has measured."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from bench.config import RunConfig
from bench.errors import Unknown
from bench.records import DistributedFigures, Measurement, RankAccount, RankFigures
from bench.records.folders import RecordFolder
from bench.records.journal import STEP_OF_RANK, steps_of_rank

#: Times of more digits than clocks have.
_DIGITS = 7
_DDP = "DistributedDataParallel"
_NEVER = "no step of it was seen: it never stepped, ended, or runs where `mlproject watch` does not"
_ENDED = "it left {} of the window's {} steps: it ended, or was ended, before the others"


class RankSteps(NamedTuple):
    """One rank's file: what it says of itself, and its steps as `STEP_OF_RANK`.

    `is_closed` unless its process was killed.
    """

    facts: dict[str, Any]
    rows: Sequence[Sequence[float]]
    is_closed: bool


def read_steps(folder: Path, ranks: int) -> dict[int, RankSteps]:
    """Return what each of so many ranks has written, if it can be read."""
    files = {}
    for rank in range(ranks):
        with suppress(OSError, ValueError):
            head, _, body = steps_of_rank(folder, rank).read_bytes().partition(b"\n")
            whole = len(body) // STEP_OF_RANK.size * STEP_OF_RANK.size
            rows = [*STEP_OF_RANK.iter_unpack(body[:whole])]
            timed = [row for row in rows if row[0]]
            files[rank] = RankSteps(json.loads(head), timed, len(timed) < len(rows))
    return files


def say_who_was_killed(folder: RecordFolder) -> None:
    """Write an account of each rank that ended without its own, where rank 0 has ended by itself.

    The others end as they lose it, so it is what has ended the job.
    """
    found = read_steps(folder.path, folder.read_job(recorded=True).config.world_size)
    for rank, steps in found.items() if 0 in found and found[0].is_closed else ():
        if not steps.is_closed:
            reason = f"its process on {steps.facts['rank']['host']} was killed, or ended at once"
            folder.write(folder.rank(rank), RankAccount.of_killed(rank, "crashed", reason))


def with_ranks(measured: Measurement, config: RunConfig, folder: Path) -> Measurement:
    """Return what rank 0 of a script has measured, with the figures of all ranks.

    Steps of ranks are those of the same number: clocks of other machines have another zero. The
    first row of a file is the instant in which its first step began.
    """
    found = read_steps(folder, config.world_size)
    if config.world_size < 2 or 0 not in found:
        return measured
    start_s, rows = measured.window_start_clock_s + 1e-4, found[0].rows
    first = next((number for number, row in enumerate(rows) if number and row[0] > start_s), 0)
    asked = len(measured.iteration_times_s)
    left = {rank: len(steps.rows) - first for rank, steps in found.items()}
    # The last quarter of a second may not be written; who lacks half of the window has ended.
    count = min([asked, *(steps for steps in left.values() if 2 * steps >= min(asked, left[0]))])
    if not first or count < 1:
        return measured.replaced(ranks=Unknown("rank 0 noted no step within the window"))
    figures = []
    for rank in range(config.world_size):
        if rank not in found:
            figures.append(RankFigures.of(_NEVER, rank=rank, node=rank // config.devices))
        elif left[rank] < count:
            why = _ENDED.format(max(left[rank], 0), count)
            figures.append(RankFigures.of(why, **found[rank].facts["rank"]))
        else:
            figures.append(_figures(found[rank], first, count))
    joined = DistributedFigures.of(
        "a script's own steps are not run once more without the exchange",
        **{**found[0].facts["job"], "ranks": tuple(figures)},
    )
    return _of_all_samples(measured.replaced(ranks=joined), joined)


def _figures(steps: RankSteps, first: int, count: int) -> RankFigures:
    ends_s, *waits, processor_s, peaks = zip(*steps.rows[first - 1 : first + count], strict=True)
    data_wait_s, exchange_s, processor_s = (
        tuple(round(seconds, _DIGITS) for seconds in series[1:]) for series in (*waits, processor_s)
    )
    times_s = (round(end - begin, _DIGITS) for begin, end in pairwise(ends_s))
    rank, exchange = steps.facts["rank"], steps.facts["job"]["parallelism"]
    on_card = rank["device_uuid"] is not None
    why = f"of {exchange} a GPU waits where no hook is" if on_card and exchange != _DDP else ""
    return RankFigures.of(
        "not asked of a script's rank",
        iteration_times_s=tuple(max(time_s, 10**-_DIGITS) for time_s in times_s),
        data_wait_s=data_wait_s,
        exchange_wait_s=Unknown(why) if why else exchange_s,
        processor_s=processor_s,
        **{"peak_memory_allocated_bytes" if on_card else "max_rss_bytes": round(max(peaks))},
        **rank,
    )


def _of_all_samples(measured: Measurement, joined: DistributedFigures) -> Measurement:
    """Where each rank has a batch of its own, and all are known, a step's samples are their sum."""
    sizes = [rank.samples_per_step for rank in joined.ranks]
    shared = ("tensor parallel", "pipeline")
    if len({*sizes}) < 2 or None in sizes or measured.iteration_samples is not None:
        return measured
    if any(kind in (joined.parallelism or "") for kind in shared):
        return measured
    return measured.replaced(samples_per_iteration=sum(size or 0 for size in sizes))
