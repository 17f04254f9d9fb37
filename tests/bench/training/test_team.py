"""Two real processes with gloo: what they train is what one trains on all of their images."""

import multiprocessing

import gloo_ranks
import pytest
import torch
from gloo_ranks import ACCUMULATED, RANKS, STEPS, batch
from servers import free_port
from small_models import CLASSIFIER, ten_classes

from bench.config import RunConfig
from bench.errors import UnsupportedError
from bench.training.step import Fp32, TrainingStep, make_optimizer
from bench.training.team import Team
from bench.worker.removal import PREPARING


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    method = "spawn"
    if "forkserver" in multiprocessing.get_all_start_methods():  # imports torch once, not twice
        method = "forkserver"
        multiprocessing.set_forkserver_preload(["gloo_ranks"])
    torch.multiprocessing.start_processes(
        gloo_ranks.train, args=(free_port(), str(folder)), nprocs=RANKS, start_method=method
    )
    return [torch.load(folder / f"{rank}.pt") for rank in range(RANKS)]


def as_one():
    """One process on every rank's images of a step together."""
    model = ten_classes()
    step = TrainingStep(CLASSIFIER, model, make_optimizer(model, "sgd", fused=True), Fp32())
    for number in range(STEPS):
        parts = [batch(number, part, rank) for part in range(ACCUMULATED) for rank in range(RANKS)]
        images, labels = (torch.cat(each) for each in zip(*parts, strict=True))
        step(lambda images=images, labels=labels: (images, labels))
    return [parameter.detach() for parameter in model.parameters()]


@pytest.mark.slow
def test_gradients_are_averaged_over_all_ranks_once_a_step_and_not_of_a_step_apart(ranks):
    first, second = (rank["together"] for rank in ranks)
    for one, other, expected in zip(first, second, as_one(), strict=True):
        assert torch.equal(one, other)
        torch.testing.assert_close(one, expected)
    # However many batches a step has.
    assert [rank["exchanges"] for rank in ranks] == [STEPS, STEPS]
    first, second = (rank["apart"] for rank in ranks)
    assert not any(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    assert ranks[0]["seed"] == 7  # the configuration's
    assert ranks[1]["seed"] != 7
    assert [rank["ranks"] for rank in ranks] == [[0, 1], [0, 1]]


@pytest.mark.slow
def test_the_exchange_is_left_out_by_turns_and_replicas_are_put_right_afterwards(ranks):
    # all of the steps before the turns, and of these half
    assert [rank["exchanges in turns"] for rank in ranks] == [PREPARING + 2 * (1 + 3)] * 2
    assert [rank["pairs"] for rank in ranks] == [2, 2]
    first, second = (rank["put right"] for rank in ranks)
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


@pytest.mark.slow
def test_a_time_limit_becomes_the_same_number_of_iterations_by_the_slowest_ranks_pace(ranks):
    # 10 s at 1.5 s each, the first lap left out: 6.
    for rank in ranks:
        iterations, max_seconds, why = rank["plan"]
        assert (iterations, max_seconds) == (6, None)
        assert why == "max_seconds=10 at the warm-up's pace: 6 of 1000000"
        assert rank["few"] == (5, None, 0)
        assert rank["known"] == (5, 6)  # more of them until the pace is known
        assert rank["most"] == 4


def test_one_process_alone_refuses_to_be_several():
    with pytest.raises(UnsupportedError, match=r"devices=2, nodes=1: .*use devices=1"):
        Team().open_device(RunConfig(backend="cpu", devices=2))
