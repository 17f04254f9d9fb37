"""The order of a side stream and the current one, on streams that run only as far as they must."""

from contextlib import contextmanager

import pytest
import torch

from bench.training.inputs import DeviceSlot, Normalise, PrefetchedTransfer
from bench.training.workloads import ImageInput


class FakeStream:
    """Queued work; a wait is on all that the other stream has queued by then."""

    def __init__(self):
        self.queue = []
        self.done = 0

    def wait_stream(self, other):
        upto = len(other.queue)
        self.queue.append(lambda: other.run(upto))

    def run(self, upto):
        while self.done < upto:
            work = self.queue[self.done]
            self.done += 1
            work()

    def synchronize(self):
        self.run(len(self.queue))


class FakeCuda:
    """As much of torch.cuda as the prefetch uses."""

    def __init__(self):
        self.main, self.side = FakeStream(), None
        self._inside = [self.main]

    def Stream(self, device):  # noqa: N802
        self.side = FakeStream()
        return self.side

    def current_stream(self, device=None):
        return self._inside[-1]

    @contextmanager
    def stream(self, stream):
        self._inside.append(stream)
        yield
        self._inside.pop()


class FakeSlot:
    """Holds a number once the stream that was told to fill it has come there."""

    def __init__(self, cuda, host):
        self._cuda = cuda
        self.held = None
        self.batch = self, None

    def fill(self, host):
        self._cuda.current_stream().queue.append(lambda: setattr(self, "held", host))


@pytest.fixture
def cuda():
    return FakeCuda()


@pytest.fixture
def made():
    return []


@pytest.fixture
def transfer(cuda, made):
    numbers = iter(range(1000))

    def make_slot(host):
        made.append(FakeSlot(cuda, host))
        return made[-1]

    return PrefetchedTransfer(lambda: next(numbers), make_slot, None, cuda)


def train(cuda, transfer, steps, after_queueing=lambda: None):
    """Queue steps that read their batch when the device comes to them; return what they read."""
    seen = []
    for _ in range(steps):
        slot, _labels = transfer.next()
        cuda.main.queue.append(lambda slot=slot: seen.append(slot.held))
        after_queueing()
    return seen


@pytest.mark.parametrize("eager", ["none", "side", "main", "both"])
def test_every_step_reads_its_own_batch_whichever_stream_is_fast(cuda, transfer, eager):
    def run():
        if eager in ("side", "both"):
            cuda.side.synchronize()
        if eager in ("main", "both"):
            cuda.main.synchronize()

    seen = train(cuda, transfer, 7, run)
    cuda.side.synchronize()  # as fast as it may
    cuda.main.synchronize()
    assert seen == list(range(7))


def test_the_next_batch_is_on_its_way_in_one_of_two_slots_however_far_the_host_is_ahead(
    cuda, transfer, made
):
    train(cuda, transfer, 1)
    cuda.side.synchronize()  # without the step on the current stream
    assert sorted(slot.held for slot in made) == [0, 1]
    assert cuda.main.done < len(cuda.main.queue)
    train(cuda, transfer, 50)
    assert len(made) == 2
    transfer.close()
    assert cuda.side.done == len(cuda.side.queue)


@pytest.mark.parametrize("channels_last", [True, False])
def test_each_batch_overwrites_the_slot(channels_last):
    cpu = torch.device("cpu")
    normalise = Normalise(ImageInput(0, 0), cpu, channels_last=channels_last)
    drawn = torch.Generator().manual_seed(0)
    batches = [
        (torch.randint(256, (2, 5, 5, 3), dtype=torch.uint8, generator=drawn), torch.tensor([n, 7]))
        for n in range(2)
    ]
    slot = DeviceSlot(batches[0], normalise, cpu, non_blocking=True)
    first = slot.batch
    for images, labels in batches:
        slot.fill((images, labels))
        mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
        expected = ((images / 255 - mean) / std).permute(0, 3, 1, 2)
        torch.testing.assert_close(slot.batch[0], expected)
        assert torch.equal(slot.batch[1], labels)
    assert slot.batch[0] is first[0]
    assert slot.batch[0].is_contiguous(memory_format=torch.channels_last) == channels_last


@pytest.mark.cuda
@pytest.mark.parametrize("channels_last", [True, False])
def test_on_a_gpu_every_batch_is_the_one_that_was_sent(channels_last):
    device = torch.device("cuda")
    hosts = [
        (torch.full((64, 96, 96, 3), n, dtype=torch.uint8).pin_memory(), torch.full((64,), n))
        for n in range(40)
    ]
    normalise = Normalise(ImageInput(0, 0), device, channels_last=channels_last)
    numbers = iter(hosts)
    transfer = PrefetchedTransfer(
        lambda: next(numbers),
        lambda host: DeviceSlot(host, normalise, device, non_blocking=True),
        device,
    )
    heavy = torch.randn(2048, 2048, device=device)
    levels = []
    for _ in range(38):
        images, labels = transfer.next()
        heavy = heavy @ heavy  # the step takes its time before it reads
        heavy = heavy / heavy.norm()
        red = (images[:, 0] * 0.229 + 0.485) * 255
        levels.append((red.min(), red.max(), labels.min(), labels.max()))
    for n, found in enumerate(levels):
        assert [round(value.item()) for value in found] == [n] * 4
