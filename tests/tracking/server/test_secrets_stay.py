"""A password of the tracking server is nowhere in what a run leaves behind."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest
from mlflow.tracking import MlflowClient

from bench.records.folders import record_folders
from tracking import schema

pytestmark = pytest.mark.slow

PROJECT = Path(__file__).resolve().parents[3]
TINY = [
    *("--arch", "crashing_models:small", "--batch-size", "2", "--image-size", "32"),
    *("--warmup-iters", "1", "--iters", "5", "--workers", "0", "--backend", "cpu"),
]


class CommandLines(threading.Thread):
    """Reads every process's command line again and again, as any user of the machine can."""

    def __init__(self):
        super().__init__(daemon=True)
        self.seen = set()
        self._ended = threading.Event()

    def run(self):
        while not self._ended.wait(timeout=0.05):
            for process in psutil.process_iter(["cmdline"]):
                self.seen.update(process.info["cmdline"] or ())

    def end(self):
        self._ended.set()
        self.join()


@pytest.fixture(scope="module")
def measured(server, tmp_path_factory):
    """One run on the server: its folder, what it said, and the command lines of the time."""
    folder = tmp_path_factory.mktemp("run")
    lines = CommandLines()
    lines.start()
    done = subprocess.run(
        [sys.executable, str(PROJECT / "mlproject.py"), "run", *TINY],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(PROJECT / "tests" / "bench"),
            "MLPROJECT_RECORDS": str(folder / "records"),
            "MLFLOW_TRACKING_URI": server.url,
            "MLFLOW_TRACKING_USERNAME": "writer",
            "MLFLOW_TRACKING_PASSWORD": server.passwords["writer"],
        },
        capture_output=True,
        text=True,
        timeout=300,
    )
    lines.end()
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, done.stdout + done.stderr, lines.seen


def test_not_in_the_record_folder(server, measured):
    folder, _, _ = measured
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert any(path.name == "record.json" for path in files)
    for path in files:
        assert server.passwords["writer"].encode() not in path.read_bytes(), path


def test_not_in_what_it_says_and_in_no_command_line(server, measured):
    _, said, seen = measured
    assert "crashing_models:small" in seen
    assert server.passwords["writer"] not in said
    assert not [words for words in seen if server.passwords["writer"] in words]


def test_not_on_the_server(server, measured, as_writer, tmp_path):
    folder, _, _ = measured
    [record] = [found.record_id for found in record_folders(folder / "records")]
    client = MlflowClient()
    [run] = client.search_runs(["0"], f"tags.`{schema.RECORD_ID}` = '{record}'")
    assert server.passwords["writer"] not in str(run.to_dictionary())
    client.download_artifacts(run.info.run_id, "", str(tmp_path))
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 3
    for path in files:
        assert server.passwords["writer"].encode() not in path.read_bytes(), path


def test_not_in_the_servers_logs(server, measured):
    logs = "".join(path.read_text() for path in server.settings.state.glob("*.log"))
    assert "POST /api/2.0/mlflow/runs/log-batch" in logs
    for secret in server.passwords.values():
        assert secret not in logs


def test_not_in_the_project(server, measured):
    """Nothing that git would take up holds it."""
    listed = subprocess.run(
        ["git", "ls-files", "--others", "--exclude-standard", "-z"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        assert server.passwords["writer"].encode() not in (PROJECT / name).read_bytes(), name
