"""The proxy, a real Caddy with the project's own Caddyfile: TLS, limits, closed doors."""

import os
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests
import samples
from servers import free_port, wait_until_it_answers
from stored_runs import filed

from tracking.connection import Server
from tracking.upload.upload import upload

CADDYFILE = Path(__file__).resolve().parents[3] / "deploy" / "server" / "Caddyfile"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("caddy") is None, reason="no caddy here: apt install caddy"),
]


@contextmanager
def caddy(folder, upstream, **settings):
    """Run the project's Caddyfile for localhost; yields its URL and the file of its authority."""
    port = free_port()
    text = CADDYFILE.read_text()
    # a test changes no trust store and takes neither port 80 nor Caddy's own
    own = "{\n\tadmin off\n\tskip_install_trust\n\tauto_https disable_redirects\n"
    assert "\n{\n" in text
    assert "\n:443 {" in text
    text = text.replace("\n{\n", f"\n{own}", 1).replace("\n:443 {", f"\n:{port} {{")
    (folder / "Caddyfile").write_text(text)
    log = (folder / "caddy.log").open("wb")
    process = subprocess.Popen(
        ["caddy", "run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"],
        env={
            **os.environ,
            "SERVER_NAME": f"localhost:{port}",
            "MLFLOW": upstream,
            "XDG_DATA_HOME": str(folder),
            "XDG_CONFIG_HOME": str(folder),
            **settings,
        },
        stdout=log,
        stderr=log,
    )
    url = f"https://localhost:{port}"
    authority = str(folder / "caddy" / "pki" / "authorities" / "local" / "root.crt")
    try:
        wait_until_it_answers(process, url, folder / "caddy.log", verify=authority)
        yield url, authority
    finally:
        process.terminate()
        process.wait(timeout=120)
        log.close()


@pytest.fixture(scope="module")
def proxy(server, tmp_path_factory):
    upstream = server.url.removeprefix("http://")
    with caddy(tmp_path_factory.mktemp("caddy"), upstream, MAX_UPLOAD="1MB") as running:
        yield running


@pytest.fixture
def ask(proxy, server):
    url, authority = proxy

    def asked(method, path, **kwargs):
        auth = ("writer", server.passwords["writer"])
        return requests.request(
            method, url + path, auth=auth, verify=authority, timeout=30, **kwargs
        )

    return asked


def test_a_record_goes_through_it_with_mlflows_own_variables(
    as_writer, proxy, monkeypatch, tmp_path
):
    url, authority = proxy
    monkeypatch.setenv("MLFLOW_TRACKING_URI", url)
    monkeypatch.setenv("MLFLOW_TRACKING_SERVER_CERT_PATH", authority)
    run_id = upload(*filed(tmp_path, samples.run_record()))
    client = Server().client
    assert client.get_run(run_id).info.status == "FINISHED"
    assert {file.path for file in client.list_artifacts(run_id)} >= {"record.json"}


def test_another_name_is_refused(ask):
    assert ask("GET", "/", headers={"Host": "evil.example.org"}).status_code == 421


def test_answers_carry_what_protects_a_browser(ask):
    answer = ask("GET", "/")
    assert answer.headers["Strict-Transport-Security"].startswith("max-age=")
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["X-Frame-Options"] == "SAMEORIGIN"
    assert "Server" not in answer.headers
    file = ask("GET", "/get-artifact?run_id=none&path=evil.html")
    assert file.headers["Content-Security-Policy"] == "sandbox allow-scripts"


@pytest.mark.parametrize("told", [True, False], ids=["length told", "in chunks"])
def test_a_request_beyond_the_limit_is_refused_and_leaves_nothing(ask, server, told):
    info = ask("POST", "/api/2.0/mlflow/runs/create", json={"experiment_id": "0"}).json()
    where = info["run"]["info"]["artifact_uri"].removeprefix("mlflow-artifacts:/")
    body = b"x" * 2_000_000
    try:
        answer = ask(
            *("PUT", f"/api/2.0/mlflow-artifacts/artifacts/{where}/big.bin"),
            data=body if told else iter([body[:1_000_000], body[1_000_000:]]),
        )
        assert answer.status_code >= 400
    except requests.ConnectionError:
        pass  # closed in the middle of the body
    whole = [f for f in server.settings.artifacts_folder.rglob("big.bin") if f.stat().st_size]
    assert not [file for file in whole if file.stat().st_size >= len(body)]


def test_what_would_run_commands_or_call_out_is_closed(ask):
    for path in (
        "/ajax-api/3.0/mlflow/assistant/message",
        "/gateway/some-endpoint/mlflow/invocations",
        "/ajax-api/2.0/mlflow/gateway-proxy",
        "/ajax-api/3.0/mlflow/demo/generate",
        "/ajax-api/3.0/mlflow/jobs/1",
    ):
        answer = ask("POST", path, json={})
        assert (answer.status_code, answer.text) == (403, ""), path
