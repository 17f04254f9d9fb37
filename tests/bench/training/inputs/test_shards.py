"""Ranks read different images; one process alone, and synthetic batches, what they always did."""

from itertools import islice

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from opened_batches import sums, take
from small_models import resolved

from bench.config import RunConfig
from bench.errors import UserError
from bench.training.devices import open_device
from bench.training.inputs import Shard, ShuffledDraws, open_batches
from bench.training.step import Fp32
from bench.training.workloads import own_step
from bench.worker.step_setup import resolve


def draws(images, batch_size, shard, epochs=1, seed=3):
    sampler = ShuffledDraws(images, batch_size, seed, endless=False, shard=shard)
    return [draw for _ in range(epochs) for draw in sampler]


@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 60))
def test_an_epoch_reads_no_image_twice_and_gives_every_rank_as_many_whole_batches(
    ranks, batch_size, images
):
    parts = [draws(images, batch_size, Shard(rank, ranks)) for rank in range(ranks)]
    read = [draw.image for part in parts for draw in part]
    assert len(set(read)) == len(read) == images // (batch_size * ranks) * batch_size * ranks
    assert {len(part) for part in parts} == {len(read) // ranks}
    seeds = [draw.seed for part in parts for draw in part]
    assert len(set(seeds)) == len(seeds)


def test_ranks_share_the_order_of_one_process_and_have_a_new_one_each_epoch(opened):
    alone = draws(24, 4, Shard(), epochs=2)
    first, second = (draws(24, 2, Shard(rank, 2), epochs=2) for rank in (0, 1))
    assert [draw for pair in zip(first, second, strict=True) for draw in pair] == alone
    assert alone[:24] != alone[24:]
    endless = ShuffledDraws(4, 1, 0, endless=True, shard=Shard(1, 2))
    assert list(islice(endless, 4)) == draws(4, 1, Shard(1, 2), epochs=2, seed=0)
    seeds = {Shard(rank, 8).seed(seed) for rank in range(8) for seed in range(8)}
    assert (len(seeds), Shard(0, 8).seed(5)) == (64, 5)
    assert all(0 <= seed < 2**32 for seed in seeds)  # all that torch's CPU generator keeps
    alone, first, second = (
        opened(*shard, seed=1).next()[0] for shard in ((), (Shard(0, 2),), (Shard(1, 2),))
    )
    assert torch.equal(alone, first)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("loader", [{"workers": 0}, {"workers": 1}])
@pytest.mark.slow
def test_real_images_are_shared_out_without_overlap(opened, generated, loader):
    ranks = (
        opened(Shard(rank, 2), devices=2, data=str(generated), batch_size=3, **loader)
        for rank in (0, 1)
    )
    read = [set(sums(take(batches, 3))) for batches in ranks]
    assert [len(each) for each in read] == [9, 9]
    assert not read[0] & read[1]


def test_a_folder_must_fill_a_batch_of_every_device(opened, generated):
    opened(Shard(0, 2), devices=2, data=str(generated), batch_size=9)
    with pytest.raises(UserError, match=r"batch of 10 on each of 2 devices: give batch_size=9 or"):
        opened(Shard(0, 2), devices=2, data=str(generated), batch_size=10)


def test_processes_of_one_machine_share_its_cores(monkeypatch):
    monkeypatch.setattr("torch.get_num_threads", lambda: 12)
    cores = [32]
    monkeypatch.setattr("bench.worker.step_setup.usable_cores", lambda: cores[0])
    device = open_device("cpu")

    def found_on(**changes):
        found = resolved(RunConfig(data="fakedata", **changes), device, Fp32())
        return found.threads, found.workers

    assert found_on() == (12, 8)
    assert found_on(devices=4) == (3, 2)
    assert found_on(nodes=4) == (12, 8)
    assert found_on(devices=8) == (1, 1)
    assert found_on(devices=16) == (1, 0)
    assert found_on(devices=4, threads=5, workers=6) == (5, 6)
    monkeypatch.setattr(device, "backend", "cuda")  # beside it all cores but one load
    for cores[0], workers in ((1, 1), (2, 1), (16, 15), (64, 16)):
        assert found_on()[1] == workers


class Nested:
    """A step whose batch has more than tensors in it."""

    model = torch.nn.Identity()

    def batch(self, n):
        return {"parts": [torch.ones(n), None], "name": "a", "count": n}


def test_the_same_random_tensors_every_time(opened):
    batches = opened(batch_size=64)
    images, labels = batches.next()
    assert (images.shape, images.dtype) == ((64, 3, 32, 32), torch.float32)
    assert abs(images.mean().item()) < 0.02
    assert abs(images.std().item() - 1) < 0.02
    assert labels.dtype == torch.int64
    assert 0 <= labels.min() < labels.max() < 1000
    assert labels.unique().numel() > 40
    again, labels_again = batches.next()
    assert images is again
    assert labels is labels_again


def test_the_seed_decides_and_the_layout_does_not(opened):
    first, planes, other = (
        opened(seed=seed, channels_last=layout).next()
        for seed, layout in ((0, "true"), (0, "false"), (1, "true"))
    )
    assert torch.equal(first[0], planes[0])
    assert torch.equal(first[1], planes[1])
    assert not torch.equal(first[0], other[0])
    assert first[0].is_contiguous(memory_format=torch.channels_last)
    assert planes[0].is_contiguous()


def test_a_users_batch_may_hold_more_than_tensors():
    config, device, workload = (
        RunConfig(batch_size=3),
        open_device("cpu"),
        own_step("a:b", Nested()),
    )
    found = resolve(config, device, Fp32(), workload)
    batch = open_batches(config, found, workload, device.torch_device).next()
    assert torch.equal(batch.pop("parts")[0], torch.ones(3))
    assert batch == {"name": "a", "count": 3}
