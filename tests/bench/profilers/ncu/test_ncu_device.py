"""What ncu needs of the device: its capability, the range of one step, and the counters."""

import ctypes
import json
import os
import re
import subprocess
import sys

import pytest
import samples
import torch
from fakes import Card, QueueingDevice, ScriptedClock

from bench.errors import UnsupportedError
from bench.machine import UnknownFactError
from bench.machine.gpu_drivers import compute_capability, device_uuid
from bench.profilers.ncu.tool import NcuTool, RefusalError
from bench.records import Account
from bench.records.verdict import kernel_set
from bench.worker.attempt import profiled_range


class Driver:
    """CUDA's driver with one device; `cuInit` answers `started`."""

    attributes = {75: 12, 76: 1}  # noqa: RUF012

    def __init__(self, started=0):
        self.started = started

    def cuInit(self, flags):  # noqa: N802
        return self.started

    def cuDeviceGet(self, device, ordinal):  # noqa: N802
        device._obj.value = 7
        return 0

    def cuDeviceGetAttribute(self, value, attribute, device):  # noqa: N802
        assert isinstance(device, ctypes.c_int)
        assert device.value == 7
        value._obj.value = self.attributes[attribute]
        return 0

    def cuDeviceGetUuid_v2(self, uuid, device):  # noqa: N802
        assert device.value == 7
        uuid._obj[:] = range(16)
        return 0


def test_the_first_devices_capability_and_name(library):
    library("driver", Driver)
    assert compute_capability() == (12, 1)
    assert device_uuid() == "00010203-0405-0607-0809-0a0b0c0d0e0f"
    library("driver", lambda: Driver(started=100))
    with pytest.raises(UnknownFactError, match="cuInit answers 100"):
        compute_capability()


@pytest.fixture
def marks(monkeypatch):
    """A device and the calls of its profiler, each with the time when all work before was done."""
    clock, calls = ScriptedClock(0.0), []
    for name in ("start", "stop"):
        monkeypatch.setattr(
            f"torch.cuda.profiler.{name}", lambda name=name: calls.append((name, clock()))
        )
    return Card(clock), calls


def test_the_range_holds_the_step_and_nothing_queued_before(marks):
    device, calls = marks
    device.queue(1.0)
    with profiled_range(device):
        device.queue(2.0)
    assert calls == [("start", 1.0), ("stop", 3.0)]


def test_a_step_that_fails_ends_the_range_and_another_backend_is_refused(marks):
    device, calls = marks
    with pytest.raises(ZeroDivisionError), profiled_range(device):
        _ = 1 / 0
    assert [name for name, _ in calls] == ["start", "stop"]
    other = QueueingDevice(ScriptedClock())
    with pytest.raises(UnsupportedError, match="not on mps"), profiled_range(other):
        pass


@pytest.mark.cuda
def test_torch_agrees_on_the_capability():
    assert compute_capability() == torch.cuda.get_device_capability(0)


N = 1024
STEP = f"""
import json, sys
import torch
from bench.training.devices import open_device
from bench.profilers.torch_profiler import work_set
from bench.worker.attempt import profiled_range

device = open_device("cuda")
torch.manual_seed(0)
left, right = (torch.randn({N}, {N}, device="cuda") for _ in range(2))

def step():
    torch.softmax(left @ right + 1, dim=1)

step()
if sys.argv[1] == "kineto":
    print(work_set(step, device).model_dump_json())
else:
    with profiled_range(device):
        step()
"""


@pytest.mark.cuda
@pytest.mark.slow
def test_a_product_counted_by_ncu_itself(tmp_path):
    tool = NcuTool()
    if reason := tool.obstacle("cuda"):  # then it says so, with the remedy
        assert "; " in reason
        with pytest.raises(RefusalError, match=re.escape(reason)):
            tool.worker(tmp_path)
        return
    known = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", STEP]
    worker = tool.worker(tmp_path)
    inside = tmp_path / worker.name
    inside.mkdir()
    with (inside / "console.log").open("wb") as console:
        subprocess.run(
            [*worker.prefix, *command, "ncu"],
            stdout=console,
            stderr=subprocess.STDOUT,
            env={**known, **worker.environment},
            check=False,
        )
    counters = tool.read(tmp_path, samples.facts(Account, outcome="ok"))
    product = 2 * N**3
    assert product <= counters.flops <= 1.05 * product
    assert counters.dram_bytes >= 2 * 4 * N**2  # both factors are read once at least
    kineto = subprocess.run(
        [*command, "kineto"], capture_output=True, text=True, env=known, check=True
    )
    assert kernel_set(counters).counts == json.loads(kineto.stdout.splitlines()[-1])["counts"]
