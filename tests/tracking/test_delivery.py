"""A sweep's records on their way to the server: one that is refused does not hold up the others."""

import pytest
from stored_runs import filed

from tracking.store import TrackingError
from tracking.upload.delivery import Delivery


@pytest.fixture
def sent(monkeypatch):
    """What reached the server; `refuse` and `away` name what it does to which record."""

    class Server:
        def __init__(self):
            self.held, self.refused, self.away = [], set(), False

        def upload(self, folder, record):
            if self.away:
                raise TrackingError("http://x: nothing answers there")
            if folder.record_id in self.refused:
                raise TrackingError("http://x: no", away=False)
            self.held.append(folder.record_id)

    server = Server()
    monkeypatch.setattr("tracking.upload.delivery.upload", server.upload)
    return server


def test_a_record_that_the_server_refuses_holds_up_no_other_and_is_told(sent, tmp_path):
    delivery = Delivery("none")
    first, second = filed(tmp_path), filed(tmp_path)
    sent.refused = {first[0].record_id}
    delivery.deliver(*first)
    delivery.deliver(*second)
    assert sent.held == [second[0].record_id]
    assert delivery.problem == "http://x: no"


def test_a_server_that_is_away_is_left_alone_for_a_while_and_gets_all_of_it_later(sent, tmp_path):
    now_s = [0.0]
    delivery = Delivery("none", clock=lambda: now_s[0])
    kept = [filed(tmp_path) for _ in range(3)]
    sent.away = True
    delivery.deliver(*kept[0])
    sent.away = False
    delivery.deliver(*kept[1])
    assert sent.held == []
    assert delivery.problem is not None
    now_s[0] = 61.0
    delivery.deliver(*kept[2])
    assert sent.held == [folder.record_id for folder, _ in kept]
    assert delivery.problem is None
