"""One way to read a file in tests."""

import pytest
from readings import reading


@pytest.fixture
def read(tmp_path):
    """Return a function that writes a file and reads it as a table."""
    return reading(tmp_path)
