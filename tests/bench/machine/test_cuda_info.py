"""Scripted hardware: what CUDA lists as device 0 is NVML's device 1."""

import uuid
from types import SimpleNamespace

import pytest
import torch
from scripted_smi import ScriptedSmi

from bench.machine import cuda_device_info
from bench.machine.probes import UnknownFactError, nvml_device
from bench.records import DeviceInfo

UUID = "12345678-aaaa-bbbb-cccc-0123456789ab"


class NVMLError(Exception):
    pass


class FakeNvml:
    """Two cards; the one asked for is the second."""

    NVMLError = NVMLError
    NVML_CLOCK_SM = 1

    def __init__(self, known):
        self.known = known

    def nvmlDeviceGetHandleByUUID(self, uuid):  # noqa: N802
        if uuid not in self.known:
            raise NVMLError("Not Found")
        return self.known[uuid]

    def nvmlSystemGetDriverVersion(self):  # noqa: N802
        return "580.95.05"

    def nvmlDeviceGetEnforcedPowerLimit(self, handle):  # noqa: N802
        if handle.limit_mw is None:
            raise NVMLError("Not Supported")
        return handle.limit_mw

    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle):  # noqa: N802
        return 5

    def nvmlDeviceGetMaxPcieLinkWidth(self, handle):  # noqa: N802
        return 16

    def nvmlDeviceGetMaxClockInfo(self, handle, clock):  # noqa: N802
        assert clock == self.NVML_CLOCK_SM
        return handle.clock_mhz


@pytest.fixture(autouse=True)
def _card(monkeypatch):
    properties = SimpleNamespace(
        name="NVIDIA H200",
        uuid=UUID,
        total_memory=150_754_820_096,
        L2_cache_size=62_914_560,
        major=9,
        minor=0,
        multi_processor_count=132,
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)


def test_the_card_is_found_by_uuid():
    nvml = FakeNvml(
        {
            "GPU-other": SimpleNamespace(limit_mw=300_000, clock_mhz=1),
            f"GPU-{UUID}": SimpleNamespace(limit_mw=700_000, clock_mhz=1980),
        }
    )
    info = cuda_device_info(0, lambda: nvml)
    assert info == DeviceInfo(
        backend="cuda",
        name="NVIDIA H200",
        uuid=f"GPU-{UUID}",
        power_limit_w=700.0,
        max_clock_mhz=1980.0,
        driver="580.95.05",
        pcie="gen 5 x16",
        compute_capability="9.0",
        cores=132,
        last_level_cache_bytes=62_914_560,
        memory_bytes=150_754_820_096,
        missing={},
    )


def test_a_slice_of_a_card_keeps_its_own_prefix_and_lacks_a_limit():
    nvml = FakeNvml({f"MIG-{UUID}": SimpleNamespace(limit_mw=None, clock_mhz=1980)})
    info = cuda_device_info(0, lambda: nvml)
    assert info.uuid == f"MIG-{UUID}"
    assert info.power_limit_w is None
    assert info.missing == {"power_limit_w": "NVMLError: Not Supported"}


def test_a_slice_that_cuda_calls_by_the_uuid_of_its_card_has_no_facts_of_the_card(monkeypatch):
    whole = torch.cuda.get_device_properties(0)
    cut = SimpleNamespace(**{**vars(whole), "name": "NVIDIA H200 MIG 1g.18gb"})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: cut)
    card = SimpleNamespace(limit_mw=700_000, clock_mhz=1980)
    info = cuda_device_info(0, lambda: FakeNvml({f"GPU-{UUID}": card}))
    assert (info.uuid, info.power_limit_w, info.max_clock_mhz) == (None, None, None)
    assert "whole GPU" in info.missing["uuid"]
    assert cuda_device_info(0, lambda: FakeNvml({f"MIG-{UUID}": card})).uuid == f"MIG-{UUID}"


def test_without_nvml_cudas_own_facts_remain():
    def absent():
        raise UnknownFactError("NVML: NVML Shared Library Not Found")

    info = cuda_device_info(0, absent)
    assert info.uuid == f"GPU-{UUID}"
    assert info.cores == 132
    assert info.missing["driver"] == "NVML: NVML Shared Library Not Found"


def test_a_full_uuid_is_taken_as_it_is_and_a_card_that_nvml_does_not_know_is_a_reason():
    assert nvml_device(FakeNvml({"GPU-x": "handle"}), "GPU-x") == ("GPU-x", "handle")
    with pytest.raises(UnknownFactError, match=f"no device {UUID}"):
        nvml_device(FakeNvml({}), UUID)
    info = cuda_device_info(0, lambda: FakeNvml({}))
    assert "knows no device" in info.missing["power_limit_w"]


SERIAL = "b1b8d7a35f2c9e04"


def test_an_amd_card_is_found_by_its_serial_number(monkeypatch):
    properties = SimpleNamespace(
        name="AMD Instinct MI300X",
        uuid=str(uuid.UUID(bytes=SERIAL.encode())),
        gcnArchName="gfx942:sramecc+:xnack-",
        total_memory=206_000_000_000,
        L2_cache_size=4_194_304,
        major=9,
        minor=4,
        multi_processor_count=304,
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr(torch.version, "hip", "6.4.1")
    smi = ScriptedSmi({"0x1": "first", f"0x{SERIAL}": "it"})
    found = cuda_device_info(0, smi_opener=lambda: smi)
    assert (found.backend, found.name, found.compute_capability) == (
        "cuda", "AMD Instinct MI300X", "gfx942",
    )  # fmt: skip
    assert found.uuid == f"AMD-{SERIAL}"
    assert (found.driver, found.power_limit_w, found.max_clock_mhz) == ("6.12.12", 750.0, 2100.0)
    assert found.missing.keys() == {"pcie"}

    def not_installed():
        raise UnknownFactError("the package amdsmi cannot be used: No module named 'amdsmi'")

    found = cuda_device_info(0, smi_opener=not_installed)
    assert found.uuid == f"AMD-{SERIAL}"
    assert "amdsmi" in found.missing["power_limit_w"]
