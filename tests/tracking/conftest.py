"""One real MLflow server for all tests of this folder, and a proxy before it that can fail."""

import pytest
from faulty_proxy import faulty_proxy
from servers import mlflow_server
from stored_runs import Store

from tracking.connection import Server


@pytest.fixture(scope="session")
def server_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("server")


@pytest.fixture(scope="session")
def server(server_folder):
    with mlflow_server(server_folder) as uri:
        Server(uri).mark("0")  # so that no test's upload is the first, which does it
        yield uri


@pytest.fixture
def store(server_folder, server):
    """What the server really holds."""
    return Store(server_folder)


@pytest.fixture(scope="session")
def proxied(server):
    with faulty_proxy(server) as (proxy, uri):
        yield proxy, uri


@pytest.fixture
def proxy(proxied, monkeypatch):
    """The proxy, healthy, as MLflow's server."""
    proxy, uri = proxied
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    proxy.fail(0, None)
    yield proxy
    proxy.heal()
    proxy.delay_s = 0.0
