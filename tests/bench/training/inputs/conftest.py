import pytest


@pytest.fixture
def opened():
    """`opened_batches`, closed at the test's end."""
    from opened_batches import opened_batches

    still_open = []

    def open_(*shard, **settings):
        still_open.append(opened_batches(*shard, **settings))
        return still_open[-1]

    yield open_
    for batches in still_open:
        batches.close()
