"""A GPU that is not here: every operation on it is queued and takes a scripted time."""

import fakes
import samples
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bench.records import DeviceInfo
from bench.training.devices import CudaDevice

MIB = 2**20
aten = torch.ops.aten


class QueueingDevice(fakes.QueueingDevice):
    """A GPU, by default; facts that are None are missing."""

    torch_device = torch.device("meta")
    channels_last = CudaDevice.channels_last

    def __init__(self, *modes, backend="cuda", last_level_cache_bytes=60 * MIB, **facts):
        super().__init__(fakes.ScriptedClock())
        self.modes, self.backend = modes, backend
        self.facts = {**facts, "last_level_cache_bytes": last_level_cache_bytes}

    def info(self):
        known = {name: fact for name, fact in self.facts.items() if fact is not None}
        return samples.facts(
            DeviceInfo, "scripted", backend=self.backend, name="Scripted GPU", **known
        )


class ScriptedWork(TorchDispatchMode):
    """Queues the time of each product, convolution and array operation it sees.

    `flops_per_s(dtype, tf32)` gives the rate of arithmetic; FLOP are counted here from the
    operands' shapes, apart from the project's formulas.
    """

    def __init__(self, device, flops_per_s, bytes_per_s, fails=lambda op, elements: None):
        super().__init__()
        self.device, self.flops_per_s, self.bytes_per_s = device, flops_per_s, bytes_per_s
        self.fails = fails

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        switches = torch.backends
        if func is aten.mm.out:
            (m, k), n = args[0].shape, args[1].shape[1]
            tf32 = switches.cuda.matmul.fp32_precision == "tf32"
            self._spend("mm", m * n, 2 * m * n * k / self.flops_per_s(args[0].dtype, tf32))
        elif func is aten._scaled_mm.default:
            (m, k), n = args[0].shape, args[1].shape[1]
            self._spend("scaled_mm", m * n, 2 * m * n * k / self.flops_per_s(args[0].dtype, False))
        elif func is aten.conv2d.default:  # inference mode does not take it apart
            tf32 = switches.cudnn.conv.fp32_precision == "tf32"
            weights, outputs = args[1], args[0].shape[0] * args[1].shape[0]
            outputs *= args[0].shape[2] * args[0].shape[3]
            flops = 2 * outputs * weights[0].numel()
            rate = self.flops_per_s(weights.dtype, tf32)
            self._spend("conv", outputs, flops / (1.25 * rate))
        elif func in _ARRAYS:
            name, moved = _ARRAYS[func]
            elements = args[0].numel()
            self._spend(name, elements, moved * 4 * elements / self.bytes_per_s[name])
        return func(*args, **kwargs)

    def _spend(self, op, elements, seconds):
        message = self.fails(op, elements)
        if message:
            raise torch.OutOfMemoryError(message)
        self.device.queue(seconds)


_ARRAYS = {
    aten.copy_.default: ("copy", 2),
    aten.add.out: ("triad", 3),
    aten.add_.Tensor: ("update", 3),
    aten.amax.default: ("read", 1),
    aten.fill_.Scalar: ("write", 1),
}
