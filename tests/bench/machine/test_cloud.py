"""A real HTTP server on this machine stands in for the clouds' metadata servers."""

import json
import socket
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from bench.machine.environment import cloud_facts

pytestmark = pytest.mark.usefixtures("on_linux")

GCP = {"product_name": "Google Compute Engine", "sys_vendor": "Google"}
AWS = {"sys_vendor": "Amazon EC2", "product_name": "g5.xlarge"}
AZURE = {
    "sys_vendor": "Microsoft Corporation",
    "chassis_asset_tag": "7783-7084-3265-9085-8269-3286-77",
}
GCP_PATH, AWS_PATH = "/computeMetadata/v1/instance", "/latest/meta-data"
AZURE_PATH = "/metadata/instance/compute?api-version=2021-02-01"
NAMES = ("cloud_provider", "cloud_machine_type", "cloud_zone")


class Handler(BaseHTTPRequestHandler):
    """Answers (method, path) with a text if the named header came along; keeps what was asked."""

    def _answer(self):
        self.server.asked.append((self.command, self.path))
        text, header, value = self.server.answers.get((self.command, self.path), ("", "", ""))
        allowed = text and self.headers.get(header) == value
        self.send_response(200 if allowed else 403)
        self.end_headers()
        self.wfile.write(text.encode() if allowed else b"<h1>Forbidden</h1>")

    do_GET = do_PUT = _answer  # noqa: N815

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.answers, running.asked = {}, []
        Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
        yield running
        running.shutdown()


@pytest.fixture
def facts_of(tree, monkeypatch):
    """Return what a machine of this firmware finds out from a server."""

    def found(fields, address):
        tree({f"sys/class/dmi/id/{name}": f"{text}\n" for name, text in fields.items()})
        url = "http://{}:{}".format(*address)
        monkeypatch.setattr("bench.machine.environment.METADATA_URL", url)
        return cloud_facts()

    return found


def answers_of_azure(zone):
    compute = {"vmSize": "Standard_NC4as_T4_v3", "location": "westeurope", "zone": zone}
    return {("GET", AZURE_PATH): (json.dumps(compute), "Metadata", "true")}


FLAVOR = ("Metadata-Flavor", "Google")
TOKEN = ("X-aws-ec2-metadata-token", "secret")
TOKEN_AGE = ("X-aws-ec2-metadata-token-ttl-seconds", "60")


ANSWERS_OF_GCP = {
    ("GET", f"{GCP_PATH}/machine-type"): ("projects/1/types/g2-standard-8", *FLAVOR),
    ("GET", f"{GCP_PATH}/zone"): ("projects/12/zones/europe-west4-a", *FLAVOR),
}
ANSWERS_OF_AWS = {
    ("PUT", "/latest/api/token"): ("secret", *TOKEN_AGE),
    ("GET", f"{AWS_PATH}/instance-type"): ("g5.xlarge", *TOKEN),
    ("GET", f"{AWS_PATH}/placement/availability-zone"): ("eu-central-1b", *TOKEN),
}


@pytest.mark.parametrize(
    ("fields", "answers", "facts"),
    [
        (GCP, ANSWERS_OF_GCP, ("gcp", "g2-standard-8", "europe-west4-a")),
        (AWS, ANSWERS_OF_AWS, ("aws", "g5.xlarge", "eu-central-1b")),
        (AZURE, answers_of_azure("2"), ("azure", "Standard_NC4as_T4_v3", "westeurope-2")),
        (AZURE, answers_of_azure(""), ("azure", "Standard_NC4as_T4_v3", "westeurope")),
    ],
)
def test_a_cloud_is_known_by_its_firmware_and_its_metadata(
    facts_of, server, monkeypatch, fields, answers, facts
):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # a proxy is not asked
    server.answers = answers
    found = facts_of(fields, server.server_address)
    assert found == dict(zip(NAMES, facts, strict=True))


def test_a_server_that_does_not_tell_is_a_reason(facts_of, server, monkeypatch):
    monkeypatch.setattr("bench.machine.environment._TIMEOUT_S", 0.05)
    server.answers = {("GET", AZURE_PATH): ("<html>", "Metadata", "true")}
    with socket.socket() as unused, socket.create_server(("127.0.0.1", 0)) as silent:
        unused.bind(("127.0.0.1", 0))
        for maker, address, reason in (
            (AZURE, server.server_address, "JSONDecodeError"),
            (GCP, server.server_address, "403: Forbidden"),
            (GCP, unused.getsockname(), "Connection refused"),
            (AWS, silent.getsockname(), "timed out"),
        ):
            found = facts_of(maker, address)
            assert found["cloud_provider"] in ("azure", "gcp", "aws")
            assert reason in found["cloud_zone"].reason


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, "maker, not named, is no cloud"),
        ({"sys_vendor": "Hetzner", "product_name": "vServer"}, "Hetzner vServer"),
        ({"sys_vendor": "Google", "product_name": "Eve"}, "Google Eve"),  # a Chromebook
    ],
)
def test_machines_of_other_makers_ask_no_server_and_are_named(facts_of, server, fields, reason):
    found = facts_of(fields, server.server_address)
    assert server.asked == []
    assert reason in found["cloud_provider"].reason
    why = "no cloud provider is known"
    assert found["cloud_machine_type"].reason == found["cloud_zone"].reason == why
