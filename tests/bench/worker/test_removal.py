"""What is taken out of steps by turns: on a scripted clock the gain is known to the last digit."""

import gc
import time
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
from bench.worker.removal import Collector, Exchange, Loaders, OwnInput, Suspect, ahead
from bench.worker.turns import Follower, Removals, Turns, named_by_account, taken_out
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


def taken(loaders, turns, clock, step):
    """Take the input out of steps of a loop, as a script's meter does."""

    driven(taken_out(loaders, turns, CpuDevice(), clock), step)
    return turns.removal()


def measured(clock, *sources, use=lambda batch: None, pairs=3, extra=lambda: None, device="cpu"):
    """The removal of a loop that takes a batch of each source, and 2 s besides."""
    batches = [epochs(source) for source in sources]

    def step():
        for batch in map(next, batches):
            use(batch)
        clock.pass_s(2.0)
        extra()

    loaders = Loaders(torch.device(device))
    return taken(loaders, Turns("input", 10, pairs), clock, step)


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

    found = measured(clock, DataLoader(Samples(clock, shapes=(1,))), use=use)
    assert "writes into its batches" in found.note
    first, later = (seen[begin : begin + 10] for begin in (12, 24))
    assert first == [2.0 * index for index in range(12, 22)]
    # its own write, and the one of the served batch, which is a copy from the second one on
    assert later[1:] == [2 * value for value in first[1:]]


def test_batches_that_differ_in_shape_are_served_as_they_came(clock):
    sizes = []
    loader = DataLoader(Samples(clock, shapes=(1, 2, 5)))
    found = measured(clock, loader, use=lambda batch: sizes.append(batch["x"].shape[1]))
    assert "differ in shape" in found.note
    assert sizes[12:22] == sizes[24:34]


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

    loaders, turns = Loaders(torch.device("cpu")), Turns("input", 10, 9)
    with pytest.raises(EndedError):
        taken(loaders, turns, clock, step)
    assert under_test._LoaderIterator.__next__ is untouched
    assert len(turns.removal().with_s) == 2
    del turns.without_s[1:]
    assert "before two pairs" in turns.removal().missing["with_s"]


def test_turns_take_the_time_that_is_left_and_whole_rounds_of_the_loaders_processes():
    quick, slow = (Turns.within("input", 60.0, *how) for how in ((0.01, 0), (0.3, 4)))
    assert (quick.steps, quick.pairs) == (20, 30)
    assert slow.steps == 12
    assert 2 * slow.pairs * slow.steps * 0.3 < 60
    with pytest.raises(UserError, match="larger --seconds"):
        Turns.within("input", 60.0, 5.0, 0)


class Numbers(Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        return index


@pytest.mark.slow
def test_processes_of_a_loader_stop_when_they_are_ahead_and_what_they_made_is_passed_over():
    loader = DataLoader(Numbers(), batch_size=None, num_workers=2, prefetch_factor=3)
    loaders, seen = Loaders(torch.device("cpu")), []
    batches = iter(loader)
    with loaders.watched():
        driven(loaders.preparing(), lambda: seen.append(next(batches)))
        loaders.switch(out=False)
        while ahead(batches)[0] < 4:
            time.sleep(0.001)
        seen.append(next(batches))
        loaders._levels[batches] = 0
        while ahead(batches)[1]:
            time.sleep(0.001)
        assert ahead(batches) == (6, False)
        loaders._drain()
        assert next(batches) >= 10 + 1 + 6


def test_where_nobody_says_how_far_processes_are_ahead_nothing_is_claimed():
    class Uncounted:
        def qsize(self):
            raise NotImplementedError

    with pytest.raises(UserError, match="num_workers=0"):
        ahead(SimpleNamespace(_data_queue=Uncounted()))


def test_batches_that_a_thread_of_the_script_holds_are_used_up_before_the_loader_is_timed(clock):
    loaders = Loaders(torch.device("cpu"))
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

    taken(loaders, Turns("input", 8, 2), clock, step)
    assert steps[20:] == [True] * 10 + [False] * (9 + 8) + [True] * 10


def test_no_turn_of_any_suspect_holds_a_validation(clock):
    batches, validation = epochs(DataLoader(Samples(clock))), DataLoader(Samples(clock, 50.0))
    steps, turns = iter(range(10**6)), Turns("host", 10, 3)

    def step():
        next(batches)
        if next(steps) % 7 == 6:
            next(iter(validation))

    driven(taken_out(Suspect(), turns, CpuDevice(), clock), step)
    assert turns.removal().with_s == pytest.approx((1.0,) * 3)


def test_a_suspect_takes_nothing_out_by_itself(clock):
    turns, loaders = Turns("host", 10, 2), Loaders(torch.device("cpu"))
    driven(turns.taken(Suspect(), loaders, CpuDevice(), clock), lambda: clock.pass_s(2.0))
    assert gain_of(turns.removal()).ratio == 1.0


def test_of_our_own_loop_the_last_batch_is_given_again_on_the_device(clock, monkeypatch):
    class Normalised:
        def __init__(self):
            self.host = epochs(DataLoader(Samples(clock, shapes=(1,))))

        def next(self):
            batch = next(self.host)["x"]
            clock.pass_s(3.0)
            return batch

    monkeypatch.setattr(under_test, "LoaderBatches", Normalised)
    batches, seen = Normalised(), []

    def step():
        seen.append(batches.next().item())
        clock.pass_s(2.0)

    found = taken(OwnInput(torch.device("cpu")), Turns("input", 10, 3), clock, step)
    assert (found.with_s[0], found.without_s[0]) == pytest.approx((6.0, 2.0))
    assert seen[22:34] == [seen[21]] * 12


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

    def __init__(self, ranks, clock, removals, suspects):
        self.ranks, self.clock, self.steps = ranks, clock, [0, 0]
        self.optimizers = [torch.optim.SGD([torch.zeros(1)]) for _ in range(2)]
        self.follower = Follower(by_function=False)
        removals.place = lambda: (2 * self.steps[0], 1)
        self.turns, self.removals = removals.taking_out(suspects), removals

    def first(self):
        self.ranks.now, self.steps[0] = 0, self.steps[0] + 1
        self.clock.pass_s(1.0)
        return self.steps[0] < 30 or next(self.turns, "ended") is None

    def second(self):
        self.ranks.now, self.steps[1] = 1, self.steps[1] + 1
        for optimizer in self.optimizers:
            self.follower.after(optimizer)


def removals_on(clock):
    return Removals(*(CpuDevice(), clock() + 1000.0, 1.0, 0), lambda text: None, None, clock)


@pytest.mark.parametrize("ahead_by", [0, 1])
def test_another_rank_takes_the_same_turns_at_the_same_steps(ranks, clock, monkeypatch, ahead_by):
    switches = {0: [], 1: []}

    class Seen(Suspect):
        def __init__(self, *_):
            pass

        def switch(self, *, out):
            switches[ranks.now].append((out, loop.steps[ranks.now]))

    def not_here():
        raise UserError("not here")

    monkeypatch.setattr(turns_module, "Exchange", Seen)
    monkeypatch.setattr(turns_module.Training, "open_device", lambda _: CpuDevice())
    removals = removals_on(clock)
    loop = Loop(ranks, clock, removals, {"sync": Seen, "input": not_here})
    for _ in range(ahead_by):
        loop.second()
    while loop.first():
        loop.second()
    pairs = len(removals.found["sync"]().with_s)
    assert (len(switches[0]), switches[0]) == (2 * pairs + 1, switches[1])
    assert "not here" in removals.found["input"]().missing["with_s"]


def test_a_rank_that_runs_under_no_watch_is_found_out(ranks, clock):
    removals = removals_on(clock)
    removals.place = lambda: (9, 0)
    driven(removals.taking_out({"host": Suspect}), lambda: None)
    assert "not all ranks" in removals.found["host"]().missing["with_s"]


def test_the_collector_is_off_by_turns_and_on_afterwards(clock):
    seen = []

    def step():
        seen.append(gc.isenabled())
        clock.pass_s(1.0)

    collector = Collector(torch.device("cpu"))
    driven(taken_out(collector, Turns("host", 2, 1, settle=1), CpuDevice(), clock), step)
    assert seen[10:] == [True] * 3 + [False] * 3
    assert gc.isenabled()
    with pytest.raises(UserError, match="not captured"):
        Collector(torch.device("cuda"))


def test_auto_takes_out_what_the_account_gives_5_percent_of_the_step():
    window = samples.measurement(data_wait_s=(0.03,) * 6)  # of 0.5 s
    assert named_by_account(window, None) == ["input"]
    assert named_by_account(samples.measurement(data_wait_s=(0.02,) * 6), None) == []

    def ops(communication_s, other_s):
        both = (("communication", communication_s), ("mm", other_s))
        made = [samples.op_time(label=label, exclusive_s=seconds) for label, seconds in both]
        return samples.op_profile(ops=made, step_time_s=1.0, data_wait_s=0.1)

    assert named_by_account(None, ops(0.06, 0.8)) == ["input", "sync"]
    assert named_by_account(window, ops(0.04, 0.7)) == ["input", "host"]
