"""What may be shown of a tracking URI."""

import pytest

from tracking.store import public_uri


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("http://127.0.0.1:5000", "http://127.0.0.1:5000"),
        ("https://me:secret@server.example:8443/path", "https://server.example:8443/path"),
        ("postgresql://me:s@host/db?password=secret", "postgresql://host/db"),
        ("sqlite:////abs/mlflow.db", "sqlite:////abs/mlflow.db"),
    ],
)
def test_no_secret_is_shown_and_the_rest_stays(uri, shown):
    assert public_uri(uri) == shown
