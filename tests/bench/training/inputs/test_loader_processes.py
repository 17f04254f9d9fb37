"""Loader processes under every way of starting them, watched from outside."""

import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from opened_batches import opened_batches

PROJECT = Path(__file__).resolve().parents[4]
SCRIPT = """
import multiprocessing, sys
from opened_batches import opened_batches

if __name__ == "__main__":
    multiprocessing.set_start_method(sys.argv[2])
    batches = opened_batches(data=sys.argv[1], augment=True, workers=1)
    try:
        print("started", flush=True)
        print(batches.next()[0].sum().item(), flush=True)
        while True:
            batches.next()
    except KeyboardInterrupt:
        batches.close()
        print("closed", flush=True)
"""


# the system's default is the first of them
@pytest.mark.slow  # every process imports torch
@pytest.mark.skipif(os.name == "nt", reason="Windows has no Ctrl-C for one group alone")
@pytest.mark.parametrize(
    ("method", "interrupted"),
    [
        (multiprocessing.get_all_start_methods()[0], "at work"),
        pytest.param("spawn", "at work", marks=pytest.mark.long),
        pytest.param("spawn", "while it starts", marks=pytest.mark.long),
    ],
)
def test_same_batches_and_a_silent_end(generated, tmp_path, method, interrupted):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    expected = [
        "started",
        str(opened_batches(data=str(generated), augment=True).next()[0].sum().item()),
    ]
    if interrupted == "while it starts":
        expected.pop()
    path = os.pathsep.join([str(PROJECT), str(Path(__file__).parent)])
    with subprocess.Popen(
        [sys.executable, str(script), str(generated), method],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": path},
    ) as running:
        lines = [running.stdout.readline().strip() for _ in expected]
        os.killpg(running.pid, signal.SIGINT)  # a terminal's Ctrl-C reaches the whole group
        out, err = running.communicate(timeout=120)
    assert "Traceback" not in err
    assert running.returncode == 0
    assert [*lines, *out.splitlines()] == [*expected, "closed"]
