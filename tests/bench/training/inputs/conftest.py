import platform
import sys

import pytest
import samples

from bench.config import RunConfig


@pytest.fixture
def dali():
    """The test needs NVIDIA DALI."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        pytest.skip("NVIDIA DALI is not installed on this kind of machine")


@pytest.fixture(params=["cpu", "dali"])
def decoder(request):
    """Each of `RunConfig.decoder`."""
    if request.param == "dali":
        request.getfixturevalue("dali")
    return request.param


@pytest.fixture
def resolved():
    """A `ResolvedConfig` on a CPU with the given values."""

    def make(**values):
        small = {"batch_size": 4, "image_size": 32, "max_seconds": 60.0, "threads": 1}
        return samples.resolved(**{**small, **values})

    return make


@pytest.fixture
def opened(resolved):
    """Opens batches on the CPU; the test's end closes them."""
    import torch

    from bench.training.inputs import open_batches

    still_open = []

    def open_(config, **values):
        batches = open_batches(RunConfig(**config), resolved(**values), torch.device("cpu"))
        still_open.append(batches)
        return batches

    yield open_
    for batches in still_open:
        batches.close()
