"""What several tests of the analysis share."""

import pytest


@pytest.fixture(scope="module")
def unpainted():
    """Files of figures are empty: painting takes most of a report's time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "matplotlib.figure.Figure.savefig", lambda _, path, **__: path.write_bytes(b"")
        )
        yield
