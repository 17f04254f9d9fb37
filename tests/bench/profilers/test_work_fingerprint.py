"""The fingerprint: names and counts of what one step launched."""

import threading
from dataclasses import replace

import pytest
import torch
from fakes import Card, QueueingDevice, ScriptedClock
from gpu_steps import TraceWriter, gpu_step

from bench.profilers import torch_profiler
from bench.profilers.torch_profiler import work_set
from bench.records import WorkSet
from bench.training.devices import open_device

CPU = open_device("cpu")


def step_of(layers=2):
    model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(layers)))
    images = torch.randn(3, 4)

    def once():
        model(images).sum().backward()

    return once


def test_the_same_step_is_the_same_work_and_another_is_not():
    two = work_set(step_of(), CPU)
    assert two == work_set(step_of(), CPU)
    assert two.unit == "ops"
    assert (two.counts["linear"], two.counts["addmm"]) == (2, 2)
    assert two.counts["sum"] >= 1  # and one per bias gradient
    assert not [name for name in two.counts if "autograd" in name]  # its own marks
    three = work_set(step_of(layers=3), CPU)
    assert "addmm: 2 against 3" in two.differences(three)


def test_the_step_runs_once_and_starts_no_thread_in_python():
    calls = []
    before = threading.active_count()
    work_set(lambda: calls.append(torch.ones(1) + 1), CPU)
    assert (len(calls), threading.active_count()) == (1, before)


def test_the_device_has_ended_before_the_trace_is_read():
    device = QueueingDevice(ScriptedClock())
    work_set(lambda: device.queue(2.0), device)
    assert device.synchronized_at_s == [102.0]


def test_nothing_seen_is_no_fingerprint():
    assert work_set(lambda: None, CPU) is None


def test_a_step_that_fails_fails_as_itself_and_leaves_the_profiler_free():
    def failing():
        raise MemoryError("out of memory")

    with pytest.raises(MemoryError):
        work_set(failing, CPU)
    assert work_set(step_of(), CPU) is not None


def kernelless():
    writer = TraceWriter()
    writer.host("aten::relu", 0, 5)
    return writer.trace


KERNELS = ("cudnn::conv<float>", "bn_fw<float,4>", "bn_bw<float>", "at::native::sgd<float>")


@pytest.mark.parametrize(
    ("trace", "found"),
    [
        (gpu_step(), WorkSet(unit="kernels", counts=dict.fromkeys(KERNELS, 1))),
        (kernelless(), None),
    ],
)
def test_on_a_gpu_it_is_the_kernels(monkeypatch, trace, found):
    monkeypatch.setattr(torch_profiler, "traced", lambda *args, **kwargs: trace)
    assert work_set(lambda: None, Card(ScriptedClock())) == found


def test_a_session_that_lost_kernels_is_not_the_fingerprint(monkeypatch):
    whole = gpu_step()
    lost = replace(whole, device=whole.device[1:])
    traces = iter([lost, kernelless(), whole])
    monkeypatch.setattr(torch_profiler, "traced", lambda *args, **kwargs: next(traces))
    found = work_set(lambda: None, Card(ScriptedClock()))
    assert found.counts == dict.fromkeys(KERNELS, 1)
