import ctypes

import pytest

from bench.machine.probes import UnknownFactError
from bench.profilers.ncu.ncu_choice import compute_capability


class Driver:
    """CUDA's driver with one device; `fails` names a function and its answer."""

    attributes = {75: 12, 76: 1}  # noqa: RUF012

    def __init__(self, **fails):
        self.fails = fails

    def cuInit(self, flags):  # noqa: N802
        return self.fails.get("cuInit", 0)

    def cuDeviceGet(self, device, ordinal):  # noqa: N802
        device._obj.value = 7
        return self.fails.get("cuDeviceGet", 0)

    def cuDeviceGetAttribute(self, value, attribute, device):  # noqa: N802
        assert isinstance(device, ctypes.c_int)
        assert device.value == 7
        value._obj.value = self.attributes[attribute]
        return 0


def test_the_first_devices_capability():
    assert compute_capability(Driver) == (12, 1)


def test_a_driver_without_a_device_says_which_call_failed():
    with pytest.raises(UnknownFactError, match="cuInit answers 100"):
        compute_capability(lambda: Driver(cuInit=100))


@pytest.mark.cuda
def test_torch_agrees_on_the_capability():
    import torch

    assert compute_capability() == torch.cuda.get_device_capability(0)
