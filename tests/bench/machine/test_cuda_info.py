"""GPUs as CUDA lists them, with what the makers' libraries know of them."""

import sys
import uuid
from types import SimpleNamespace
from unittest.mock import Mock

import pynvml
import pytest
import torch
from scripted_nvml import ScriptedNvml
from scripted_smi import ScriptedSmi

from bench.machine import UnknownFactError
from bench.machine.gpu_drivers import nvml_device, open_nvml
from bench.records import DeviceInfo
from bench.training.devices import cuda_device_info

UUID = "12345678-aaaa-bbbb-cccc-0123456789ab"
WHOLE, SLICE = f"GPU-{UUID}", f"MIG-{UUID}"


@pytest.fixture(autouse=True)
def properties(monkeypatch):
    card = SimpleNamespace(
        name="NVIDIA H200",
        uuid=UUID,
        total_memory=150_754_820_096,
        L2_cache_size=62_914_560,
        major=9,
        minor=0,
        multi_processor_count=132,
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: card)
    return card


def test_the_card_is_found_by_uuid(library):
    library("nvml", lambda: ScriptedNvml(WHOLE))
    assert cuda_device_info(0) == DeviceInfo(
        backend="cuda",
        name="NVIDIA H200",
        uuid=WHOLE,
        power_limit_w=700.0,
        max_clock_mhz=1980.0,
        application_clock_mhz=1980.0,
        driver="580.95.05",
        pcie="gen 5 x16",
        compute_capability="9.0",
        cores=132,
        last_level_cache_bytes=62_914_560,
        memory_bytes=150_754_820_096,
        missing={},
    )


def test_a_slice_of_a_card_keeps_its_own_prefix_and_lacks_a_limit(library, properties):
    nvml = ScriptedNvml(SLICE)
    library("nvml", lambda: nvml)
    nvml.unsupported = {"limit_mw"}
    info = cuda_device_info(0)
    assert info.uuid == SLICE
    assert info.missing == {"power_limit_w": "NVMLError: Not Supported"}
    properties.name = "NVIDIA H200 MIG 1g.18gb"
    assert cuda_device_info(0).uuid == SLICE
    # one that CUDA calls by the UUID of its card has no facts of the card
    library("nvml", lambda: ScriptedNvml(WHOLE))
    info = cuda_device_info(0)
    assert (info.uuid, info.power_limit_w, info.max_clock_mhz) == (None, None, None)
    assert "whole GPU" in info.missing["uuid"]


def test_without_nvml_cudas_own_facts_remain(library):
    library("nvml", Mock(side_effect=UnknownFactError("NVML: NVML Shared Library Not Found")))
    info = cuda_device_info(0)
    assert (info.uuid, info.cores) == (WHOLE, 132)
    assert info.missing["driver"] == "NVML: NVML Shared Library Not Found"
    library("nvml", ScriptedNvml)
    info = cuda_device_info(0)
    assert info.missing["power_limit_w"] == f"NVML knows no device {UUID}"
    assert nvml_device(ScriptedNvml("GPU-x"), "GPU-x") == ("GPU-x", "card")


def test_a_missing_management_library_is_a_reason(monkeypatch):
    def absent():
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", absent)
    with pytest.raises(UnknownFactError, match="NVML: NVML Shared Library Not Found"):
        open_nvml()
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(UnknownFactError, match="nvidia-ml-py is not installed"):
        open_nvml()


SERIAL = "b1b8d7a35f2c9e04"


def test_an_amd_card_is_found_by_its_serial_number(library, monkeypatch, properties):
    properties.name, properties.gcnArchName = "AMD Instinct MI300X", "gfx942:sramecc+:xnack-"
    properties.uuid = str(uuid.UUID(bytes=SERIAL.encode()))
    monkeypatch.setattr(torch.version, "hip", "6.4.1")
    smi = ScriptedSmi({"0x1": "first", f"0x{SERIAL}": "it"})
    library("amdsmi", lambda: smi)
    found = cuda_device_info(0)
    assert (found.backend, found.name, found.compute_capability, found.uuid) == (
        *("cuda", "AMD Instinct MI300X", "gfx942"),
        f"AMD-{SERIAL}",
    )
    assert (found.driver, found.power_limit_w, found.max_clock_mhz) == ("6.12.12", 750.0, 2100.0)
    assert found.missing.keys() == {"application_clock_mhz", "pcie"}

    library("amdsmi", Mock(side_effect=UnknownFactError("the package amdsmi cannot be used")))
    found = cuda_device_info(0)
    assert found.uuid == f"AMD-{SERIAL}"
    assert "amdsmi" in found.missing["power_limit_w"]
