"""A password of the tracking server is nowhere in what a run leaves behind."""

import threading

import psutil
import pytest
from mlflow.tracking import MlflowClient

from bench.records.folders import record_folders
from tracking import schema

pytestmark = pytest.mark.long

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
