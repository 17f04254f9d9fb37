import pytest
import samples
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.config import RunConfig
from bench.machine.environment import environment_label
from bench.records import DeviceInfo


def device(backend, name):
    return samples.facts(DeviceInfo, backend=backend, name=name)


@pytest.mark.parametrize(
    ("backend", "name", "label"),
    [
        ("cuda", "NVIDIA H200", "nvidia-h200"),
        ("cuda", "NVIDIA GeForce RTX 4090 Laptop GPU", "nvidia-geforce-rtx-4090-laptop-gpu"),
        ("cuda", "Tesla T4", "tesla-t4"),
        ("mps", "Apple M3 Max", "apple-m3-max"),
        ("cpu", "Apple M3 Max", "apple-m3-max-cpu"),
        ("cpu", "AMD EPYC", "amd-epyc"),
        ("cpu", "AMD EPYC 7B12 64-Core Processor", "amd-epyc-7b12"),
        ("cpu", "AMD Ryzen 7 7840U with Radeon 780M Graphics", "amd-ryzen-7-7840u"),
        ("cpu", "Intel(R) Core(TM) i9-14900HX", "intel-core-i9-14900hx"),
        ("cpu", "Intel(R) Xeon(R) CPU @ 2.20GHz", "intel-xeon"),
        ("cpu", "CPU", "cpu"),
        ("cuda", "显卡", "cuda"),
        ("cuda", "x" * 63 + " y", "x" * 63),
    ],
)
def test_labels_of_devices(backend, name, label):
    assert environment_label(device(backend, name)) == label


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(["cpu", "cuda", "mps"]), st.text(max_size=200))
def test_every_name_gives_a_label_that_the_configuration_takes(backend, name):
    label = environment_label(device(backend, name))
    assert RunConfig(env=label).env == label
