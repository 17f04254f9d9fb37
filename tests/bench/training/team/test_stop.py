"""However signals and steps fall, all ranks end after the same step and none waits for ever."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.training.team.ddp import CommonStop


class Store(dict):
    """torch's store without the network."""

    def set(self, key, value):
        self[key] = value.encode()

    def check(self, keys):
        return all(key in self for key in keys)


class Ranks:
    """Ranks whose steps end only once all have begun them, in an order that the test chooses.

    With `ahead`, a host may begin that many steps before its device has ended the first, and waits
    for the device only when asked to: CUDA. Without, it is a CPU.
    """

    def __init__(self, count, ahead):
        self.store = Store()
        self.ahead = ahead
        self.begun = [0] * count
        self.ended = [False] * count
        self.stops = [
            CommonStop(rank, count, self.store, lambda rank=rank: self.wait(rank))
            for rank in range(count)
        ]

    def wait(self, rank):
        """What a blocking synchronisation would wait for has come, or the rank does not move."""
        if self.begun[rank] > min(self.begun):
            raise BlockingIOError

    def move(self, rank):
        """Let a rank begin its next step, if it is not blocked; return whether it moved."""
        if self.ended[rank] or self.begun[rank] - min(self.begun) > self.ahead:
            return False
        try:
            self.stops[rank].before_step()
        except BlockingIOError:
            return False
        except KeyboardInterrupt:
            self.ended[rank] = True
            return True
        self.begun[rank] += 1
        return True


@given(
    st.integers(2, 4),
    st.integers(0, 5),
    st.integers(0, 2**32),
    st.lists(st.integers(0, 3), max_size=40),
)
def test_all_ranks_end_after_the_same_step(count, ahead, seed, before):
    random = Random(seed)
    ranks = Ranks(count, ahead)
    for rank in before:
        ranks.move(rank % count)
    unasked = list(range(count))
    for _ in range(2000):
        if unasked and random.random() < 0.2:
            ranks.stops[unasked.pop(random.randrange(len(unasked)))].request()
        ranks.move(random.randrange(count))
        if all(ranks.ended):
            break
    assert all(ranks.ended)
    assert len(set(ranks.begun)) == 1


def test_nobody_ends_before_all_were_asked():
    ranks = Ranks(2, ahead=0)
    ranks.stops[0].request()
    for _ in range(50):
        ranks.move(0)
        ranks.move(1)
    assert not any(ranks.ended)
    assert ranks.begun[0] >= 50


def test_an_unasked_rank_never_looks_into_the_store():
    class Untouchable:
        def __getattr__(self, name):
            pytest.fail("looked")

    stop = CommonStop(1, 2, Untouchable(), Untouchable().__getattr__)
    for _ in range(10):
        stop.before_step()
