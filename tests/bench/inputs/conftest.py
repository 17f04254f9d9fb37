import pytest
import samples

from bench.config import RunConfig


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

    from bench.inputs import open_batches

    still_open = []

    def open_(config, **values):
        batches = open_batches(RunConfig(**config), resolved(**values), torch.device("cpu"))
        still_open.append(batches)
        return batches

    yield open_
    for batches in still_open:
        batches.close()
