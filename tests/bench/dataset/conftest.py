import os
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

NOBODY = 65534


@pytest.fixture
def without_rights():
    """A folder, and a context in which this process has no special rights there."""
    if not hasattr(os, "geteuid"):
        pytest.skip("Windows has no such permissions")

    @contextmanager
    def as_nobody():
        if os.geteuid() != 0:
            yield
            return
        os.seteuid(NOBODY)
        try:
            yield
        finally:
            os.seteuid(0)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder, as_nobody
