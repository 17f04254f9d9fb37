"""What ranks tell: figures that fit together, and accounts that say who was the cause."""

import pytest
import samples
from pydantic import ValidationError

from bench.config import RunConfig
from bench.launcher.measurement import failure_cause
from bench.records import RankAccount
from bench.records.folders import RecordFolder

TWO = RunConfig(devices=2)


def test_the_share_is_of_medians_and_may_fall_below_nothing():
    figures = samples.distributed_figures(
        synced_step_s=(0.5, 0.5, 9.0), local_step_s=(0.4, 0.4, 0.1)
    )
    assert figures.communication_share == pytest.approx(0.2)
    slower = samples.distributed_figures(local_step_s=(0.6,))
    assert slower.communication_share == pytest.approx(-0.2)


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ((samples.rank_figures(0), samples.rank_figures(2)), "ranks are not 0, 1"),
        ((samples.rank_figures(1), samples.rank_figures(0)), "ranks are not 0, 1"),
        ((samples.rank_figures(0), samples.rank_figures(1, (0.5,))), "number of iterations"),
        ((samples.rank_figures(0),), "at least 2"),
    ],
)
def test_figures_are_of_all_ranks_and_one_window(ranks, words):
    with pytest.raises(ValidationError, match=words):
        samples.distributed_figures(ranks=ranks)


def account(rank, outcome="crashed", reason="RuntimeError: no", cause="own", at=10.0):
    return samples.facts(
        RankAccount,
        rank=rank,
        outcome=outcome,
        cause=cause,
        ended_unix_s=at,
        **({} if outcome == "ok" else {"reason": reason}),
    )


LOST = account(0, reason="RuntimeError: Connection closed by peer", cause="lost")
KILLED = account(1, reason="ended by SIGKILL (signal 9)", cause="killed", at=99.0)
INTERRUPTED = account(0, "interrupted", "interrupted from outside", at=1.0)
BOTH = {"outcome": "unsupported", "reason": "devices=2: too few"}


@pytest.mark.parametrize(
    ("accounts", "expected"),
    [
        ((LOST, account(1, "oom", "no memory", at=11.0)), ("oom", "rank 1: no memory")),
        ((LOST, KILLED), ("crashed", "rank 1: ended by SIGKILL (signal 9)")),
        ((LOST, KILLED, account(2, reason="mine", at=100.0)), ("crashed", "rank 2: mine")),
        ((INTERRUPTED, account(1)), ("crashed", "rank 1: RuntimeError: no")),
        ((INTERRUPTED, account(1, cause="lost")), ("interrupted", f"rank 0: {INTERRUPTED.reason}")),
        ((account(0, at=2.0), account(1, reason="first", at=1.0)), ("crashed", "rank 1: first")),
        ((account(0, **BOTH), account(1, **BOTH)), ("unsupported", BOTH["reason"])),
        ((account(0, **BOTH), account(1, "ok")), ("unsupported", f"rank 0: {BOTH['reason']}")),
        ((), ("crashed", "RuntimeError: lost")),
    ],
)
def test_the_cause_is_who_failed_first_by_itself(tmp_path, accounts, expected):
    folder = RecordFolder.create(tmp_path)
    for each in accounts:
        folder.write(folder.rank(each.rank), each)
    assert failure_cause(folder, "crashed", "RuntimeError: lost", TWO.world_size) == expected
    assert failure_cause(folder, "ok", None, TWO.world_size)[0] == "ok"
