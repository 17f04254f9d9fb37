import shutil
from pathlib import Path

import pytest

from bench.config import RunConfig
from bench.dataset.generate import generate_image_folder
from bench.records import ResolvedConfig


@pytest.fixture(scope="session")
def generated(tmp_path_factory):
    """A generated folder of 3 classes x 6 images; not to be written to."""
    folder = tmp_path_factory.mktemp("inputs") / "photos"
    generate_image_folder(folder, classes=3, images_per_class=6)
    return folder


@pytest.fixture
def photos(generated, tmp_path):
    """A copy of the generated folder that a test may damage."""
    return Path(shutil.copytree(generated, tmp_path / "photos"))


@pytest.fixture
def resolved():
    """A `ResolvedConfig` on a CPU with the given values."""

    def make(**values):
        defaults = {
            "backend": "cpu",
            "math_mode": "fp32",
            "convolution_fp32": "ieee",
            "matmul_fp32": "ieee",
            "autocast_dtype": "none",
            "loss_scaling": False,
            "native_math": True,
            "batch_size": 4,
            "image_size": 32,
            "max_seconds": 60.0,
            "workers": 0,
            "pin_memory": False,
            "channels_last": True,
            "fused_optimizer": True,
            "threads": 1,
            "allocator": "system",
        }
        return ResolvedConfig(**{**defaults, **values})

    return make


@pytest.fixture
def opened(resolved):
    """Opens batches on the CPU; the test's end closes them."""
    import torch

    from bench.inputs import open_batches

    still_open = []

    def open_(config, **values):
        batches = open_batches(RunConfig(**config), resolved(**values), torch.device("cpu"))
        still_open.append(batches)
        return batches

    yield open_
    for batches in still_open:
        batches.close()
