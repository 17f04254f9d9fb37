"""Hardware that is not here: a device whose work takes scripted time on a scripted clock."""

import torch

from bench.records import DeviceInfo
from bench.training.devices import Device


class ScriptedClock:
    """A clock that moves only when told to."""

    def __init__(self, now_s=100.0):
        self.now_s = now_s

    def __call__(self):
        return self.now_s

    def pass_s(self, seconds):
        self.now_s += seconds


class QueueingDevice(Device):
    """Work is queued at no cost to the host and done only when somebody synchronises."""

    backend = "mps"
    torch_device = torch.device("cpu")
    default_batch_size = 4
    modes = ("fp32",)

    def __init__(self, clock):
        self.clock = clock
        self.queued_s = 0.0
        self.synchronized_at_s = []
        self.obtained = 0

    def memory_obtained(self):
        return self.obtained

    def queue(self, seconds):
        self.queued_s += seconds

    def synchronize(self):
        self.clock.pass_s(self.queued_s)
        self.queued_s = 0.0
        self.synchronized_at_s.append(self.clock())

    def info(self):
        names = set(DeviceInfo.model_fields) - {"backend", "name", "missing"}
        return DeviceInfo(
            backend="mps",
            name="scripted",
            missing=dict.fromkeys(names, "scripted"),
            **dict.fromkeys(names),
        )

    def native_math(self, mode):
        return mode in self.modes


class Card(QueueingDevice):
    """The same, as CUDA."""

    backend = "cuda"
