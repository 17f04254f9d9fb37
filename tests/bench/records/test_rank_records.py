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


@pytest.fixture
def cause(tmp_path):
    """The outcome and reason of a record once the accounts have been read."""

    def cause(*accounts, record=None):
        folder = RecordFolder.create(tmp_path)
        for each in accounts:
            folder.write(folder.rank(each.rank), each)
        record = record or samples.failed_record(config=TWO, why="RuntimeError: lost")
        return failure_cause(folder, record.outcome, record.reason, record.config.world_size)

    return cause


LOST = {"reason": "RuntimeError: Connection closed by peer", "cause": "lost"}


def test_who_failed_by_itself_goes_before_who_lost_it(cause):
    first = account(1, "oom", "RuntimeError: can't allocate memory", at=11.0)
    assert cause(account(0, **LOST), first) == ("oom", f"rank 1: {first.reason}")


def test_who_was_killed_goes_before_who_lost_it_and_after_who_failed(cause):
    killed = account(1, reason="ended by SIGKILL (signal 9)", cause="killed", at=99.0)
    assert cause(account(0, **LOST), killed) == ("crashed", f"rank 1: {killed.reason}")
    failed = account(2, reason="ValueError: mine", at=100.0)
    assert cause(account(0, **LOST), killed, failed)[1] == "rank 2: ValueError: mine"


def test_an_interrupt_is_no_cause_while_there_is_another(cause):
    interrupted = account(0, "interrupted", "interrupted from outside", at=1.0)
    assert cause(interrupted, account(1))[0] == "crashed"
    assert cause(interrupted, account(1, **LOST)) == (
        "interrupted",
        "rank 0: interrupted from outside",
    )


def test_the_first_failure_is_the_cause_unless_all_ranks_say_the_same(cause):
    assert cause(account(0, at=2.0), account(1, reason="first", at=1.0))[1] == "rank 1: first"
    both = {"outcome": "unsupported", "reason": "devices=2: too few"}
    assert cause(account(0, **both), account(1, **both)) == ("unsupported", "devices=2: too few")
    assert cause(account(0, **both), account(1, "ok"))[1] == "rank 0: devices=2: too few"


def test_a_record_that_went_well_or_has_no_ranks_is_left_as_it_is(cause):
    assert cause(account(1), record=samples.run_record(config=TWO))[0] == "ok"
    assert cause() == ("crashed", "RuntimeError: lost")
