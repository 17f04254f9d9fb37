import pytest
from fakes import QueueingDevice, ScriptedClock

from bench.errors import UnsupportedError
from bench.profilers.ncu.profiled_range import profiled_range


class Cuda(QueueingDevice):
    backend = "cuda"


@pytest.fixture
def marks(monkeypatch):
    """What the profiler was told, each with the time at which the device had done its work."""
    clock, told = ScriptedClock(0.0), []
    for name in ("start", "stop"):
        monkeypatch.setattr(
            f"torch.cuda.profiler.{name}", lambda name=name: told.append((name, clock()))
        )
    return Cuda(clock), told


def test_the_range_holds_the_step_and_nothing_queued_before(marks):
    device, told = marks
    device.queue(1.0)
    with profiled_range(device):
        device.queue(2.0)
    assert told == [("start", 1.0), ("stop", 3.0)]


def test_a_step_that_fails_ends_the_range(marks):
    device, told = marks
    with pytest.raises(ZeroDivisionError), profiled_range(device):
        _ = 1 / 0
    assert [name for name, _ in told] == ["start", "stop"]


def test_another_backend_is_refused():
    with (
        pytest.raises(UnsupportedError, match="not on mps"),
        profiled_range(QueueingDevice(ScriptedClock())),
    ):
        pass
