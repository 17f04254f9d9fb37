import platform
import sys

import pytest


@pytest.fixture
def dali():
    """The test needs NVIDIA DALI."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        pytest.skip("NVIDIA DALI is not installed on this kind of machine")


@pytest.fixture
def opened(request):
    """`opened_batches`, closed at the test's end."""
    from opened_batches import opened_batches

    still_open = []

    def open_(*shard, **settings):
        if settings.get("decoder") == "dali":
            request.getfixturevalue("dali")
        still_open.append(opened_batches(*shard, **settings))
        return still_open[-1]

    yield open_
    for batches in still_open:
        batches.close()
