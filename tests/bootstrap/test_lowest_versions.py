"""The lowest versions that pyproject.toml allows are those that measure, track and report."""

import csv
import io
import subprocess
import sys
from pathlib import Path

import pytest
from uv import find_uv_bin

PROJECT = Path(__file__).resolve().parent.parent.parent
SMALL = ("--arch=squeezenet1_1", "--batch-size=2", "--image-size=64", "--warmup-iters=1")


@pytest.mark.long
@pytest.mark.timeout(1800)  # 5 GB may come first
def test_the_lowest_versions_measure_track_and_report(tmp_path):
    uv = [find_uv_bin(), "--quiet"]
    pins, python = tmp_path / "lowest.txt", tmp_path / "e" / "bin" / "python"
    compiled = [*uv, "pip", "compile", "--resolution", "lowest-direct", "--output-file", pins]
    subprocess.run([*compiled, "--python", sys.executable, PROJECT / "pyproject.toml"], check=True)
    subprocess.run([*uv, "venv", "--python", sys.executable, tmp_path / "e"], check=True)
    subprocess.run([*uv, "pip", "install", "--python", python, "-r", pins], check=True)

    def command(*words, codes=(0,)):
        line = [python, PROJECT / "mlproject.py", *words]
        done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode in codes, done.stderr
        return done.stdout

    assert "python           ok" in command("doctor")
    command("run", "--backend=cpu", *SMALL, "--iters=3")
    # 1: a busy machine's numbers may be impossible, which it says
    assert "squeezenet1_1" in command("report", "--no-log", codes=(0, 1))
    assert (tmp_path / "reports" / "latest" / "report.html").is_file()
    [run] = csv.DictReader(io.StringIO(command("pull", "--roofs")))
    assert (run["arch"], run["outcome"]) == ("squeezenet1_1", "ok")
    command("pull", "--out", "runs.parquet")
