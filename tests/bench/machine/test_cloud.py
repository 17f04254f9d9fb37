"""A real HTTP server on this machine stands in for the clouds' metadata servers."""

import json
import socket
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from bench.machine.cloud import cloud_facts

GCP = {"product_name": "Google Compute Engine", "sys_vendor": "Google"}
AWS = {"sys_vendor": "Amazon EC2", "product_name": "g5.xlarge"}
AZURE = {
    "sys_vendor": "Microsoft Corporation",
    "chassis_asset_tag": "7783-7084-3265-9085-8269-3286-77",
}


class MetadataServer(ThreadingHTTPServer):
    """Answers (method, path) with a text if the named header came along; keeps what was asked."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers = {}
        self.asked = []


class _Handler(BaseHTTPRequestHandler):
    def _answer(self):
        self.server.asked.append((self.command, self.path))
        text, header, value = self.server.answers.get((self.command, self.path), ("", "", ""))
        allowed = text and (not header or self.headers.get(header) == value)
        self.send_response(200 if allowed else 403)
        self.end_headers()
        self.wfile.write(text.encode() if allowed else b"<h1>Forbidden</h1>")

    do_GET = do_PUT = _answer  # noqa: N815

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with MetadataServer() as running:
        Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
        yield running
        running.shutdown()


@pytest.fixture(autouse=True)
def _on_linux(monkeypatch):
    monkeypatch.setattr("platform.system", lambda: "Linux")


@pytest.fixture
def firmware(tree):
    return lambda fields: tree({f"sys/class/dmi/id/{k}": f"{v}\n" for k, v in fields.items()})


def test_google(firmware, server):
    flavor = ("Metadata-Flavor", "Google")
    base = "/computeMetadata/v1/instance"
    server.answers = {
        ("GET", f"{base}/machine-type"): ("projects/12/machineTypes/g2-standard-8", *flavor),
        ("GET", f"{base}/zone"): ("projects/12/zones/europe-west4-a", *flavor),
    }
    found = cloud_facts(firmware(GCP), server.server_address)
    assert found.values == {
        "cloud_provider": "gcp",
        "cloud_machine_type": "g2-standard-8",
        "cloud_zone": "europe-west4-a",
    }
    assert found.missing == {}


def test_amazon_by_a_session_token(firmware, server):
    token = ("X-aws-ec2-metadata-token", "secret")
    server.answers = {
        ("PUT", "/latest/api/token"): ("secret", "X-aws-ec2-metadata-token-ttl-seconds", "60"),
        ("GET", "/latest/meta-data/instance-type"): ("g5.xlarge", *token),
        ("GET", "/latest/meta-data/placement/availability-zone"): ("eu-central-1b", *token),
    }
    values = cloud_facts(firmware(AWS), server.server_address).values
    assert values["cloud_provider"] == "aws"
    assert values["cloud_machine_type"] == "g5.xlarge"
    assert values["cloud_zone"] == "eu-central-1b"


def test_amazons_older_machines_sign_on_xen(tree, server):
    root = tree({"sys/hypervisor/uuid": "ec2e1916-9099-7caf-fd21-012345abcdef\n"})
    assert cloud_facts(root, server.server_address).values["cloud_provider"] == "aws"


@pytest.mark.parametrize(("zone", "expected"), [("2", "westeurope-2"), ("", "westeurope")])
def test_microsoft(firmware, server, zone, expected):
    compute = {"vmSize": "Standard_NC4as_T4_v3", "location": "westeurope", "zone": zone}
    path = "/metadata/instance/compute?api-version=2021-02-01"
    server.answers = {("GET", path): (json.dumps(compute), "Metadata", "true")}
    values = cloud_facts(firmware(AZURE), server.server_address).values
    assert values == {
        "cloud_provider": "azure",
        "cloud_machine_type": "Standard_NC4as_T4_v3",
        "cloud_zone": expected,
    }


def test_an_answer_that_makes_no_sense_is_a_reason(firmware, server):
    path = "/metadata/instance/compute?api-version=2021-02-01"
    server.answers = {("GET", path): ("<html>", "Metadata", "true")}
    found = cloud_facts(firmware(AZURE), server.server_address)
    assert found.values["cloud_zone"] is None
    assert "not understood" in found.missing["cloud_zone"]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"sys_vendor": "Dell Inc.", "product_name": "XPS 15"},
        {"sys_vendor": "Google", "product_name": "Eve"},  # a Chromebook
        {"sys_vendor": "Hetzner", "product_name": "vServer"},
    ],
)
def test_nobody_else_is_asked(firmware, server, fields):
    found = cloud_facts(firmware(fields), server.server_address)
    assert server.asked == []
    assert set(found.missing) >= {"cloud_machine_type", "cloud_zone"}


def test_other_providers_are_known_by_name_only(firmware):
    found = cloud_facts(firmware({"sys_vendor": "Hetzner"}), ("127.0.0.1", 1))
    assert found.values["cloud_provider"] == "hetzner"
    assert found.missing["cloud_zone"] == "not asked for on hetzner"


def test_an_unknown_maker_is_named_in_the_reason(firmware):
    found = cloud_facts(firmware({"sys_vendor": "Dell Inc.", "product_name": "XPS 15"}))
    assert found.values["cloud_provider"] is None
    assert "Dell Inc. XPS 15" in found.missing["cloud_provider"]


def test_a_refusal_is_a_reason(firmware, server):
    found = cloud_facts(firmware(GCP), server.server_address)
    assert found.values["cloud_provider"] == "gcp"
    assert found.values["cloud_zone"] is None
    assert "answers 403" in found.missing["cloud_zone"]


def test_a_server_that_is_not_there_is_a_reason(firmware):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        found = cloud_facts(firmware(GCP), unused.getsockname())
    assert "does not answer" in found.missing["cloud_machine_type"]


def test_a_server_that_never_answers_is_left_after_a_second(firmware, monkeypatch):
    monkeypatch.setattr("bench.machine.cloud._TIMEOUT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        found = cloud_facts(firmware(AWS), silent.getsockname())
    assert "timed out" in found.missing["cloud_zone"]


def test_a_proxy_is_not_asked(firmware, server, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    cloud_facts(firmware(GCP), server.server_address)
    assert server.asked
