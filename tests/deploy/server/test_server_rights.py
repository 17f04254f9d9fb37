"""Who may do what: every request of the framework, as everybody, over HTTP."""

import re
import threading

import psutil
import pytest
import samples
from mlflow.tracking import MlflowClient
from stored_runs import filed

from bench.records.folders import record_folders
from deploy.server.settings import SECRETS, read_file
from tracking import schema
from tracking.connection import tracking_state
from tracking.upload.upload import upload

pytestmark = pytest.mark.slow

API = "/api/2.0/mlflow"
FILES = "/api/2.0/mlflow-artifacts/artifacts"


@pytest.fixture(scope="module")
def run(server):
    """A run of the writer's, with one metric and one file."""
    made = server.ask("writer", "POST", f"{API}/runs/create", json={"experiment_id": "0"})
    info = made.json()["run"]["info"]
    where = info["artifact_uri"].removeprefix("mlflow-artifacts:/")
    server.ask("writer", "PUT", f"{FILES}/{where}/there.txt", data=b"words").raise_for_status()
    return {"id": info["run_id"], "files": where}


#: Answered to everyone, with what he may see.
SEARCHING = [
    ("POST", f"{API}/experiments/search", {"max_results": 9}),
    ("POST", f"{API}/runs/search", {"experiment_ids": ["0"]}),
    ("POST", f"{API}/logged-models/search", {"experiment_ids": ["0"]}),
]
LOOKING = [
    *SEARCHING,
    ("GET", f"{API}/experiments/get?experiment_id=0", None),
    ("GET", f"{API}/experiments/get-by-name?experiment_name=Default", None),
    ("GET", f"{API}/runs/get?run_id=RUN", None),
    ("GET", f"{API}/metrics/get-history?run_id=RUN&metric_key=a", None),
    ("GET", f"{API}/artifacts/list?run_id=RUN", None),
    ("GET", f"{FILES}?path=WHERE", None),
    ("GET", f"{FILES}/WHERE/there.txt", None),
    ("GET", "/get-artifact?run_id=RUN&path=there.txt", None),
]
EXPERIMENT_TAG = {"experiment_id": "0", "key": schema.EXPERIMENT_KIND[0], "value": "v"}
WRITING = [
    ("POST", f"{API}/experiments/create", {"name": "NEW"}),
    ("POST", f"{API}/runs/create", {"experiment_id": "0"}),
    # as the pages ask
    ("POST", f"{API}/runs/create".replace("/api/", "/ajax-api/"), {"experiment_id": "0"}),
    ("POST", f"{API}/runs/update", {"run_id": "RUN", "status": "FINISHED"}),
    ("POST", f"{API}/runs/log-batch", {"run_id": "RUN", "tags": [{"key": "k", "value": "v"}]}),
    ("POST", f"{API}/runs/log-inputs", {"run_id": "RUN"}),
    ("POST", f"{API}/experiments/set-experiment-tag", EXPERIMENT_TAG),
    ("POST", f"{API}/runs/log-metric", {"run_id": "RUN", "key": "a", "value": 1, "timestamp": 1}),
    ("POST", f"{API}/runs/log-parameter", {"run_id": "RUN", "key": "p", "value": "1"}),
    ("POST", f"{API}/runs/set-tag", {"run_id": "RUN", "key": "k", "value": "v"}),
    ("POST", f"{API}/runs/delete-tag", {"run_id": "RUN", "key": "k"}),
    ("PUT", f"{FILES}/WHERE/new.txt", "words"),
]
#: What no measuring machine needs, and the admin keeps to himself.
RULING = [
    ("POST", f"{API}/runs/delete", {"run_id": "RUN"}),
    ("POST", f"{API}/experiments/delete", {"experiment_id": "0"}),
    ("DELETE", f"{FILES}/WHERE/there.txt", None),
    ("POST", f"{API}/users/create", {"username": "new", "password": "k3u9f8w2n4v7x1z6"}),
    ("PATCH", f"{API}/users/update-admin", {"username": "reader", "is_admin": True}),
    ("GET", "/signup", None),
]


def ask(server, user, request, run):
    method, path, body = request
    path = path.replace("RUN", run["id"]).replace("WHERE", run["files"])
    if isinstance(body, str):
        return server.ask(user, method, path, data=body)
    if body is not None:
        changes = {"RUN": run["id"], "NEW": f"made by {user}"}
        body = {key: changes.get(str(value), value) for key, value in body.items()}
    return server.ask(user, method, path, json=body)


@pytest.mark.parametrize(
    ("user", "requests", "status"),
    [
        (None, LOOKING + WRITING + RULING, 401),
        (("writer", "a wrong password"), [*LOOKING[::5], *WRITING[::4], *RULING[::3]], 401),
        ("reader", LOOKING, 200),
        ("reader", WRITING + RULING, 403),
        ("writer", LOOKING + WRITING, 200),
        ("writer", RULING, 403),
        ("stranger", LOOKING[len(SEARCHING) :] + WRITING + RULING, 403),
    ],
)
def test_readers_look_writers_write_and_only_the_admin_deletes_and_rules(
    server, run, user, requests, status
):
    answers = {request[:2]: ask(server, user, request, run) for request in requests}
    answered = {request: answer.status_code for request, answer in answers.items()}
    assert answered == {request[:2]: status for request in requests}
    assert status == 200 or not [one for one in answers.values() if "words" in one.text]


def test_the_lists_above_hold_every_request_that_the_framework_makes(as_writer, run, tmp_path):
    """The server's own log says which: an upload, a second one, and what reading needs."""
    log = as_writer.settings.state / "mlflow.log"
    before = log.stat().st_size
    folder, record = filed(tmp_path, samples.run_record())
    run_id = upload(folder, record)
    upload(folder, record)
    client = MlflowClient()
    client.search_runs(["0"], f"tags.`{schema.RECORD_ID}` = '{record.record_id}'")
    client.get_metric_history(run_id, schema.ITERATION_TIME_MS)
    client.download_artifacts(run_id, schema.RECORD_ARTIFACT, str(tmp_path))
    lines = re.findall(r'"(\w+) (/\S*) HTTP', log.read_text()[before:])
    made = {general(*found) for found in lines}
    known = {general(method, path) for method, path, _ in LOOKING + WRITING}
    assert len(made) > 6
    assert made <= known | {("GET", f"{API}/server-info"), ("GET", "/version")}


def general(method, path):
    """A request without what differs from run to run."""
    path = path.partition("?")[0].replace("/ajax-api/", "/api/").replace("/api/3.0/", "/api/2.0/")
    return method, f"{FILES}/FILE" if path.startswith(f"{FILES}/") else path


#: How a user is refused, and what he may not do.
REFUSED = {
    "reader": "these credentials may not do that (403): ask for the right to write",
    "stranger": "these credentials may not do that (403): ask for the right to write",
    "nobody": "the server refuses the credentials (401): set MLFLOW_TRACKING_USERNAME",
}


@pytest.mark.parametrize("user", ["writer", *REFUSED])
def test_who_may_not_write_is_told_before_anything_is_measured(
    server, monkeypatch, mlproject_command, tmp_path, user
):
    server.log_in(monkeypatch, "reader" if user == "nobody" else user)
    if user == "nobody":
        monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "wrong")
    before = server.ask("admin", "GET", f"{API}/experiments/get?experiment_id=0").json()
    state = tracking_state()
    after = server.ask("admin", "GET", f"{API}/experiments/get?experiment_id=0").json()
    assert after == before or user == "writer"
    if user == "writer":
        assert "may be written to" in state
        assert len(after["experiment"]["tags"]) == 1
        return
    assert REFUSED[user] in state.what
    assert "MLFLOW_TRACKING_URI" not in state.remedy
    matrix = tmp_path / "one.yaml"
    matrix.write_text("name: one\nblocks: [{arch: resnet18, backend: cpu, batch_size: 1}]\n")
    code, _, err = mlproject_command("sweep", str(matrix))
    assert (code, REFUSED[user] in err, "nothing was measured" in err) == (2, True, True)
    assert not (tmp_path / "records").exists()
    filed(tmp_path / "left")
    code, _, err = mlproject_command("sync", "--records", str(tmp_path / "left"))
    assert (code, REFUSED[user] in err, "sync again then" in err) == (3, True, True)
    assert not {"away", "back"} & set(err.split())


# What comes in by other doors


def test_another_name_a_page_of_another_site_and_what_would_run_commands_are_refused(server):
    for host in ("evil.example.org", "127.0.0.1:1", "localhost.evil.org", "", server.settings.name):
        answer = server.ask(
            *("reader", "GET", f"{API}/experiments/get?experiment_id=0"), headers={"Host": host}
        )
        own = host == server.settings.name
        assert answer.status_code in ((200,) if own else (400, 403)), host
    for origin, status in (("https://evil.example.org", 403), ("https://localhost", 200)):
        answer = server.ask(
            *("writer", "POST", f"{API}/runs/create"),
            json={"experiment_id": "0"},
            headers={"Origin": origin},
        )
        assert answer.status_code == status, origin
    assert not server.ask("writer", "GET", "/ajax-api/3.0/mlflow/gateway/secrets/config").ok


def test_only_this_machine_reaches_it_and_its_command_lines_show_no_secret(server):
    started = psutil.Process(server.process.pid)
    processes = [started, *started.children(recursive=True)]
    listening = {
        connection.laddr.ip
        for process in processes
        for connection in process.net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN
    }
    assert listening == {"127.0.0.1"}
    words = " ".join(word for process in processes for word in process.cmdline())
    settings = read_file(server.settings.state / "server.env")
    assert not [name for name in SECRETS if settings[name] in words]


# A password is nowhere in what a run leaves behind


TINY = {"arch": "crashing_models:small", "batch-size": 2, "image-size": 32, "warmup-iters": 1}
TINY |= {"iters": 2, "workers": 0, "backend": "cpu"}


class CommandLines(threading.Thread):
    """Reads every process's command line again and again, as any user of the machine can."""

    def __init__(self):
        super().__init__(daemon=True)
        self.seen = set()
        self._ended = threading.Event()

    def run(self):
        while not self._ended.wait(timeout=0.2):
            for process in psutil.process_iter(["cmdline"]):
                self.seen.update(process.info["cmdline"] or ())

    def end(self):
        self._ended.set()
        self.join()


def files_below(folder):
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.long
def test_a_password_is_nowhere_in_what_a_run_leaves(as_writer, mlproject_command, tmp_path):
    password = as_writer.passwords["writer"]
    lines = CommandLines()
    lines.start()
    words = [f"--{name}={value}" for name, value in TINY.items()]
    command = mlproject_command.start("run", *words)  # a process, whose command line others see
    out, err = command.communicate(timeout=500)
    lines.end()
    assert command.returncode == 0, err
    assert "--arch=crashing_models:small" in lines.seen
    assert not [word for word in (*lines.seen, out, err) if password in word]
    # what the run left here
    [record] = record_folders(tmp_path / "records")
    assert record.record in files_below(tmp_path)
    # and on the server
    client = MlflowClient()
    [run] = client.search_runs(["0"], f"tags.`{schema.RECORD_ID}` = '{record.record_id}'")
    assert password not in str(run.to_dictionary())
    (tmp_path / "fetched").mkdir()
    client.download_artifacts(run.info.run_id, "", str(tmp_path / "fetched"))
    assert len(files_below(tmp_path / "fetched")) > 3
    for path in files_below(tmp_path):
        assert password.encode() not in path.read_bytes(), path
