"""What is taken out of steps by turns: on a scripted clock the gain is known to the last digit."""

import gc
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from bench.errors import UserError
from bench.records.metrics import gain_of
from bench.training.devices import CpuDevice
from bench.training.window import driven
from bench.worker import removal as under_test
from bench.worker import turns as turns_module
from bench.worker.removal import Collector, Exchange, Loaders, Suspect, ahead
from bench.worker.turns import Follower, Turns, planned, taking_out, to_take_out
from tests import samples
from tests.bench.fakes import ScriptedClock


class Samples(Dataset):
    """Each sample takes its time; of `shapes` by turns."""

    def __init__(self, clock, sample_s=1.0, shapes=(3,), length=10**6):
        self.clock, self.sample_s, self.shapes, self.length = clock, sample_s, shapes, length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        self.clock.pass_s(self.sample_s)
        return {"x": torch.full((self.shapes[index % len(self.shapes)],), float(index))}


class Endless(IterableDataset):
    def __init__(self, samples):
        self.samples = samples

    def __iter__(self):
        return map(self.samples.__getitem__, range(10**6))


class Nested(IterableDataset):
    def __init__(self, samples):
        self.samples = samples

    def __iter__(self):
        return iter(DataLoader(self.samples, batch_size=None))


def epochs(loader):
    while True:
        yield from loader


@pytest.fixture
def clock():
    return ScriptedClock()


CPU = torch.device("cpu")


def taken(suspect, turns, clock, step):
    """Take something out of the steps of a loop, as a script's meter does."""
    driven(turns.taken(suspect, CpuDevice(), clock), step)
    return turns.removal()


def measured(clock, *sources, use=lambda batch: None, pairs=3, extra=lambda: None, device="cpu"):
    """The removal of a loop that takes a batch of each source, and 2 s besides."""
    batches = [epochs(source) for source in sources]

    def step():
        for batch in map(next, batches):
            use(batch)
        clock.pass_s(2.0)
        extra()

    return taken(Loaders(torch.device(device)), Turns("input", 10, pairs), clock, step)


def test_a_wait_that_is_planted_is_found(clock):
    found = measured(clock, DataLoader(Samples(clock), batch_size=1))
    assert found.with_s == pytest.approx((3.0,) * 3)
    assert found.without_s == pytest.approx((2.0,) * 3)
    assert gain_of(found).ratio == pytest.approx(1.5)
    assert gain_of(found).ends == pytest.approx((1.5, 1.5))
    assert found.missing == {"note": "nothing to add"}


@pytest.mark.parametrize("kind", [Endless, Nested])
def test_an_iterable_data_set_is_replayed_and_one_with_a_loader_inside_too(clock, kind):
    found = measured(clock, DataLoader(kind(Samples(clock)), batch_size=2))
    assert (found.with_s[0], found.without_s[0]) == pytest.approx((4.0, 2.0))


def test_of_several_loaders_those_that_feed_steps_are_taken_out_and_a_validation_is_not_timed(
    clock,
):
    validation, steps = DataLoader(Samples(clock, 50.0)), iter(range(10**6))

    def sometimes():
        if next(steps) % 7 == 6:
            next(iter(validation))

    sources = [DataLoader(Samples(clock, seconds)) for seconds in (1.0, 3.0)]
    found = measured(clock, *sources, extra=sometimes)
    assert (found.with_s[0], found.without_s[0]) == pytest.approx((6.0, 2.0))


def test_a_validation_on_the_same_data_ends_while_steps_are_served_from_memory(clock):
    data, steps, validated = Samples(clock, length=20), iter(range(10**6)), []

    def sometimes():
        if next(steps) % 6 == 5:
            validated.append(sum(1 for _ in DataLoader(data)))

    found = measured(clock, DataLoader(data, batch_size=1), extra=sometimes)
    assert min(validated) >= 20 - 4
    assert (found.with_s[0], found.without_s[0]) == pytest.approx((3.0, 2.0))


def test_the_start_of_an_epoch_is_left_out_unless_epochs_are_short(clock):
    class Slow(Samples):
        def __getitem__(self, index):
            self.clock.pass_s(10.0 if index == 0 else 0.0)
            return super().__getitem__(index)

    found = measured(clock, DataLoader(Slow(clock, length=15)))
    assert found.with_s == pytest.approx((3.0,) * 3)
    found = measured(clock, DataLoader(Slow(clock, length=2)))
    assert found.with_s == pytest.approx((8.0,) * 3)


def test_what_a_script_does_to_its_batches_does_not_reach_those_served_later(clock):
    seen = []

    def use(batch):
        seen.append(batch.pop("x").mul_(2).item())

    measured(clock, DataLoader(Samples(clock, shapes=(1,))), use=use)
    first, later = (seen[begin : begin + 10] for begin in (12, 24))
    assert first == [2.0 * index for index in range(12, 22)]
    # what is kept has the script's first write; each later one is into a copy, also of the two
    # batches that were served before the turn was timed
    assert sorted(later) == [2 * value for value in first]


def test_of_batches_that_differ_in_shape_the_same_ones_are_served(clock):
    sizes = []
    loader = DataLoader(Samples(clock, shapes=(1, 2, 5)))
    found = measured(clock, loader, use=lambda batch: sizes.append(batch["x"].shape[1]))
    assert "differ in shape" in found.note
    assert sorted(sizes[12:22]) == sorted(sizes[24:34])


def test_batches_that_differ_in_shape_and_fill_the_memory_are_refused(clock, monkeypatch):
    free = SimpleNamespace(available=4 * 20)
    monkeypatch.setattr(under_test.psutil, "virtual_memory", lambda: free)
    with pytest.raises(UserError, match="differ in shape"):
        measured(clock, DataLoader(Samples(clock, shapes=(1, 2))))
    found = measured(clock, DataLoader(Samples(clock, shapes=(1,))))
    assert found.without_s == pytest.approx((2.0,) * 3)


def test_what_the_script_moves_to_its_device_is_served_there(clock):
    devices = []

    def use(batch):
        devices.append(batch["x"].device.type)
        batch["x"].to("meta")

    measured(clock, DataLoader(Samples(clock)), use=use, device="meta")
    assert devices[13:23] == ["cpu"] * 10
    assert devices[25:35] == ["meta"] * 10


def test_without_a_loader_there_is_no_input_to_take_out(clock):
    with pytest.raises(UserError, match="no DataLoader"):
        measured(clock)


def test_torchs_function_is_its_own_again_and_a_cut_measurement_keeps_whole_pairs(clock):
    untouched = under_test._LoaderIterator.__next__
    batches = epochs(DataLoader(Samples(clock)))
    steps = iter(range(10 + 2 * 24 + 15))

    class EndedError(Exception):
        pass

    def step():
        if next(steps, None) is None:
            raise EndedError
        next(batches)
        clock.pass_s(2.0)

    loaders, turns = Loaders(CPU), Turns("input", 10, 9)
    with pytest.raises(EndedError):
        taken(loaders, turns, clock, step)
    assert under_test._LoaderIterator.__next__ is untouched
    assert len(turns.removal().with_s) == 2
    del turns.without_s[1:]
    assert "before two pairs" in turns.removal().missing["with_s"]


def test_turns_take_the_time_that_is_left_and_whole_rounds_of_the_loaders_processes():
    [quick], [slow] = (planned(["input"], 60.0, *how) for how in ((0.01, 0), (0.3, 4)))
    assert (quick.steps, quick.pairs, quick.settle) == (10, 30, 2)
    # 200 steps but for the preparing ones; a pair has twice 12 and 2 + 4 to settle
    assert (slow.steps, slow.pairs, slow.settle) == (12, (200 - 20) // 36, 6)
    plan = planned(["sync", "input"], 60.0, 5.0, 0, begin_s=100.0)
    assert ["larger --seconds" in turns.removal().missing["with_s"] for turns in plan] == [True] * 2
    assert [turns.until_s for turns in plan] == [160.0, 220.0]


class Numbers(Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        return index


@pytest.mark.slow
def test_processes_of_a_loader_stop_when_they_are_ahead_and_what_they_made_is_passed_over():
    loader = DataLoader(Numbers(), batch_size=None, num_workers=2, prefetch_factor=3)
    loaders, seen = Loaders(CPU), []
    batches = iter(loader)
    with under_test.asked_for_batches(loaders.give):
        driven(loaders.preparing(keeps=True), lambda: seen.append(next(batches)))
        seen.append(next(batches))
        loaders.switch(out=True)
        assert ahead(batches) == (6, False)  # it has waited until then
        ready = loaders._ready[batches]
        loaders.switch(out=False)
        assert next(batches) == 10 + 1 + 6 - ready


def test_where_nobody_says_how_far_processes_are_ahead_nothing_is_claimed():
    class Uncounted:
        def qsize(self):
            raise NotImplementedError

    with pytest.raises(UserError, match="num_workers=0"):
        ahead(SimpleNamespace(_data_queue=Uncounted()))


def test_batches_that_a_thread_of_the_script_holds_are_used_up_before_the_loader_is_timed(clock):
    loaders = Loaders(CPU)
    batches, steps, held, due = epochs(DataLoader(Samples(clock))), [], [0], [0.0]

    def step():
        held.append(held[-1] + 1 if loaders._is_out else max(held[-1] - 0.5, 0))
        asked = 1 + held[-1] - held[-2] if held[-1] <= 5 else 1
        held[-1], due[0] = min(held[-1], 5), due[0] + asked
        for _ in range(int(due[0])):
            next(batches)
        due[0] -= int(due[0])
        steps.append(loaders._is_out)
        clock.pass_s(1.0)

    taken(loaders, Turns("input", 8, 2, until_s=10**6), clock, step)
    assert steps[20:] == [True] * 10 + [False] * (9 + 8) + [True] * 10


def test_no_turn_of_any_suspect_holds_a_validation(clock):
    batches, validation = epochs(DataLoader(Samples(clock))), DataLoader(Samples(clock, 50.0))
    steps, turns = iter(range(10**6)), Turns("host", 10, 3)

    def step():
        next(batches)
        if next(steps) % 7 == 6:
            next(iter(validation))

    found = taken(Suspect(), turns, clock, step)
    assert found.with_s == found.without_s == pytest.approx((1.0,) * 3)


@pytest.mark.parametrize(
    ("replicas", "optimizer", "why"),
    [
        ([], "SGD", "no DistributedDataParallel"),
        ([True], "SGD", "static_graph"),
        ([False], "ZeroRedundancyOptimizer", "exchanges weights"),
    ],
)
def test_an_exchange_that_cannot_be_left_out_says_why(monkeypatch, replicas, optimizer, why):
    class Replica:
        def __init__(self, static):
            self.static_graph = static

    monkeypatch.setattr(torch.nn.parallel, "DistributedDataParallel", Replica)
    alive = [Replica(static) for static in replicas]
    with pytest.raises(UserError, match=why):
        Exchange([type(optimizer, (), {})()])
    assert len(alive) == len(replicas)


class Store:
    """What torch's store of a process group is to its ranks."""

    def __init__(self):
        self.held = {}

    def set(self, key, value):
        self.held[key] = value

    def get(self, key):
        return self.held[key].encode()

    def check(self, keys):
        return all(key in self.held for key in keys)


@pytest.fixture
def ranks(monkeypatch):
    """One store and two ranks; `ranks.now` is the one that runs."""
    store = Store()
    found = SimpleNamespace(now=0, store=store)
    monkeypatch.setattr(turns_module, "_store", lambda: store)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: found.now)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    return found


class Loop:
    """Two ranks' loops of two optimizers, of which the second ends a step."""

    def __init__(self, ranks, clock, plan):
        self.ranks, self.clock, self.steps = ranks, clock, [0, 0]
        self.optimizers = [torch.optim.SGD([torch.zeros(1)]) for _ in range(2)]
        self.follower = Follower(Path(), by_function=False)
        about = CpuDevice(), self.optimizers, clock
        self.turns = taking_out(plan, *about, lambda: (2 * self.steps[0], 1))

    def first(self):
        self.ranks.now, self.steps[0] = 0, self.steps[0] + 1
        self.clock.pass_s(1.0)
        return self.steps[0] < 30 or next(self.turns, "ended") is None

    def second(self):
        self.ranks.now, self.steps[1] = 1, self.steps[1] + 1
        for optimizer in self.optimizers:
            if not self.follower.has_ended:
                self.follower.after(optimizer)


@pytest.mark.parametrize("ahead_by", [0, 1])
def test_another_rank_takes_the_same_turns_at_the_same_steps(ranks, clock, monkeypatch, ahead_by):
    switches = {0: [], 1: []}

    class Seen(Suspect):
        def switch(self, *, out):
            switches[ranks.now].append((out, loop.steps[ranks.now]))

    def made(what, *about):
        if what == "input":
            raise UserError("not here")
        return Seen()

    monkeypatch.setattr(turns_module, "_suspect", made)
    monkeypatch.setattr(turns_module.Training, "open_device", lambda _: CpuDevice())
    plan = planned(["sync", "input", "host"], 150.0, 1.0, 0)
    loop = Loop(ranks, clock, plan)
    for _ in range(ahead_by):
        loop.second()
    while loop.first():
        loop.second()
    assert [len(turns.with_s) for turns in plan] == [5, 0, 5]
    loop.second()
    assert (len(switches[0]), switches[0]) == (2 * (2 * 5 + 1), switches[1])
    assert "not here" in plan[1].removal().missing["with_s"]
    assert loop.follower.has_ended


def test_a_rank_that_runs_under_no_watch_is_found_out(ranks, clock):
    plan = planned(["sync", "host"], 1000.0, 1.0, 0)
    around = taking_out(plan, CpuDevice(), (), clock, lambda: (9, 0))
    driven(around, lambda: pytest.fail("a step was taken"))
    assert all("not all ranks" in turns.removal().missing["with_s"] for turns in plan)


def test_the_collector_is_off_by_turns_and_on_afterwards(clock):
    seen = []

    def step():
        seen.append(gc.isenabled())
        clock.pass_s(1.0)

    taken(Collector(CPU), Turns("host", 2, 1, settle=1), clock, step)
    assert seen[10:] == [True] * 3 + [False] * 3
    assert gc.isenabled()
    with pytest.raises(UserError, match="not captured"):
        Collector(torch.device("cuda"))


def test_auto_takes_out_what_the_account_gives_5_percent_of_the_step():
    window = samples.measurement(data_wait_s=(0.03,) * 6)  # of 0.5 s
    assert to_take_out("auto", window, None) == ["input"]
    assert to_take_out("host,auto", window, None) == ["input", "host"]
    assert to_take_out("auto", samples.measurement(data_wait_s=(0.02,) * 6), None) == []
    several = samples.measurement(ranks=samples.distributed_figures())
    assert several.ranks.communication_share >= 0.05
    assert "sync" in to_take_out("auto", several, None)

    def ops(communication_s, other_s):
        both = (("communication", communication_s), ("mm", other_s))
        made = [samples.op_time(label=label, exclusive_s=seconds) for label, seconds in both]
        return samples.op_profile(ops=made, step_time_s=1.0, data_wait_s=0.1)

    assert to_take_out("auto", None, ops(0.06, 0.8)) == ["sync", "input"]
    assert to_take_out("auto", window, ops(0.04, 0.7)) == ["input", "host"]
