"""What a rank notes of its steps, in this process."""

import time

import pytest
import torch
from torch import distributed
from torch.utils.data import DataLoader, Dataset

import mlproject
from bench.config import TimeLimits
from bench.launcher.rank_steps import read_steps
from bench.records.journal import STEP_OF_RANK
from bench.worker.rank_meter import RankMeter
from bench.worker.script import ScriptMeter

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("frozen_heap")]


class Slow(Dataset):
    def __len__(self):
        return 10_000

    def __getitem__(self, index):
        until_s = time.thread_time() + 0.002
        while time.thread_time() < until_s:
            pass
        return torch.ones(4, 8)


@pytest.fixture
def rank_of_two(monkeypatch):
    """A rank that takes itself for one of two; nothing that it wraps stays so."""
    from torch._C._distributed_c10d import Work
    from torch.distributed import _functional_collectives
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    ddp = torch.nn.parallel.DistributedDataParallel
    for holder, name in (
        (Work, "wait"),
        (_functional_collectives, "wait_tensor"),
        (ddp, "_sync_buffers"),
        (_BaseDataLoaderIter, "__next__"),
    ):
        monkeypatch.setattr(holder, name, getattr(holder, name))
    distributed.init_process_group("gloo", rank=0, world_size=1, store=distributed.HashStore())
    monkeypatch.setattr(distributed, "get_world_size", lambda *_: 2)
    yield
    distributed.destroy_process_group()


def trained(folder):
    """A meter, and what trains so many steps under it."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    meter, batches = RankMeter(folder, by_function=False), iter(DataLoader(Slow(), None))

    def steps(count):
        for _ in range(count):
            model(next(batches)).sum().backward()
            distributed.all_reduce(torch.ones(1))
            optimizer.step()
            optimizer.zero_grad()
            meter.after(optimizer)

    return meter, steps


def test_steps_are_noted_until_rank_0_has_ended_its_window(rank_of_two, tmp_path):
    meter, steps = trained(tmp_path)
    steps(22)  # it looks at the second, and the first row is a beginning
    meter.write()
    found = read_steps(tmp_path, 1)[0]
    assert (len(found.rows), found.is_closed) == (21, False)
    assert found.facts["rank"]["samples_per_step"] == 4
    assert found.facts["job"]["parallelism"] == "DistributedDataParallel"
    for (begin_s, *_), (end_s, data_wait_s, exchange_s, processor_s, peak_bytes) in zip(
        found.rows, found.rows[1:], strict=False
    ):
        assert 0.002 <= data_wait_s < end_s - begin_s
        assert 0 < exchange_s < end_s - begin_s
        assert 0 < processor_s < end_s - begin_s
        assert peak_bytes > 1e6
    (tmp_path / "worker.json").touch()
    meter._written_s = 0.0
    steps(10)
    meter.close()
    found = read_steps(tmp_path, 1)[0]
    assert (len(found.rows), found.is_closed) == (22, True)
    assert meter._waits == []


def test_rank_0_has_the_steps_of_a_rank_of_another_machine(rank_of_two, monkeypatch, tmp_path):
    there, here = tmp_path / "there", tmp_path / "here"
    there.mkdir()
    here.mkdir()
    with monkeypatch.context() as of_rank_1:
        of_rank_1.setenv("GROUP_RANK", "1")
        of_rank_1.setattr(distributed, "get_rank", lambda *_: 1)
        other, steps = trained(there)
        steps(12)
        other.write()
        steps(5)  # not yet written
    (there / "worker.json").touch()  # what that machine measures ends nothing here
    first, steps_of_first = trained(here)
    steps_of_first(3)
    first.close()
    found = read_steps(here, 2)
    assert (len(found[1].rows), found[1].is_closed) == (11, False)
    assert (found[1].facts["rank"]["rank"], found[1].facts["rank"]["node"]) == (1, 1)
    assert read_steps(there, 2) == {}
    other._written_s = 0.0
    steps(10)
    assert len(other._rows) == 0  # it notes nothing more, as rank 0 has ended


def test_a_rank_of_another_machine_goes_on_after_its_own_window(rank_of_two, monkeypatch, tmp_path):
    monkeypatch.setenv("GROUP_RANK", "1")
    monkeypatch.setattr(distributed, "get_rank", lambda *_: 1)
    monkeypatch.setattr(TimeLimits, "of", lambda *_: TimeLimits(3, 6, 500.0))
    meters, store = [], distributed.distributed_c10d._get_default_store()
    monkeypatch.setattr(
        "bench.worker.script.ScriptMeter",
        lambda folder: meters.append(ScriptMeter(folder)) or meters[0],
    )
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step():
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()

    def noted():
        return len(store.get("mlproject steps 1").partition(b"\n")[2]) // STEP_OF_RANK.size

    with mlproject.watch(600, records=tmp_path) as seen:
        [meter] = meters
        while meter._account is None:
            step()
        meter._rank.write()
        own = noted()
        for _ in range(10):
            step()
        meter._rank.write()
        assert noted() == own + 10
        # It does not end; nor does each step cost the look for modules that the script's are not.
        assert (meter.has_ended, meter.is_timing) == (False, True)
        store.set("mlproject ended", "")
        meter._rank._written_s = 0.0
        step()
        assert meter.has_ended
    assert seen.record.outcome == "ok"
