"""Datasheet peaks: whole names only, and nothing for what the table does not hold."""

import factories as make
import pytest

from analysis.roofs.ceilings import NoCeiling, datasheet_ceiling


def peaks(name, mode, **device):
    found = datasheet_ceiling(make.gpu(name=name, **device), mode)
    if isinstance(found, NoCeiling):
        return found.reason
    ceiling, roof = found
    assert ceiling.kind == "datasheet"
    assert ceiling.source
    assert ceiling.peak_flops_per_s == roof.peak_flops_per_s
    return roof.peak_flops_per_s / 1e12, roof.peak_bytes_per_s / 1e9


@pytest.mark.parametrize(
    ("name", "mode", "expected"),
    [
        ("Tesla T4", "fp16", (65, 320)),
        ("NVIDIA L4", "tf32", (60, 300)),
        ("Tesla V100-SXM2-32GB", "fp32", (15.7, 900)),
        ("NVIDIA A100-SXM4-40GB", "bf16", (312, 1555)),
        ("NVIDIA A100-SXM4-80GB", "bf16", (312, 2039)),
        ("NVIDIA H100 80GB HBM3", "tf32", (495, 3350)),
        ("NVIDIA H200", "bf16", (989, 4800)),
        ("NVIDIA GeForce RTX 4090", "fp16", (165.2, 1008)),
        ("  nvidia   geforce rtx 4090 ", "fp16", (165.2, 1008)),
        ("A100-SXM4-40GB", "fp32", (19.5, 1555)),  # as older drivers spell it
    ],
)
def test_known_devices(name, mode, expected):
    assert peaks(name, mode) == pytest.approx(expected)


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA L40S",
        "NVIDIA L40",
        "NVIDIA H200 NVL",
        "NVIDIA H100 PCIe",  # some of its figures are from memory: left out
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "NVIDIA GeForce RTX 4080 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D",
        "Apple M3 Max",
        "T4",
        "",
    ],
)
def test_unknown_devices_have_no_peak(name):
    assert "does not hold" in peaks(name, "fp32")


def test_a_laptop_part_depends_on_its_power_limit():
    name = "NVIDIA GeForce RTX 4090 Laptop GPU"
    assert peaks(name, "fp32", power_limit_w=150.0)[0] == pytest.approx(39.7)
    assert peaks(name, "fp32", power_limit_w=109.5)[0] == pytest.approx(29.3)
    assert "150 W and 110 W, this device's limit is 130 W" in peaks(
        name, "fp32", power_limit_w=130.0
    )
    assert "limit is unknown" in peaks(name, "fp32", power_limit_w=None)


@pytest.mark.parametrize(("name", "mode"), [("Tesla T4", "bf16"), ("Tesla T4", "tf32")])
def test_a_mode_the_device_lacks_has_no_peak(name, mode):
    assert peaks(name, mode) == f"the datasheet of '{name}' gives no {mode} peak"
