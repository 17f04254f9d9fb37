"""Loader processes under every way of starting them, watched from outside."""

import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bench.training.inputs.image_folder import open_image_folder
from bench.training.inputs.loader import LoaderBatches, LoaderOptions

PROJECT = Path(__file__).resolve().parents[4]
SCRIPT = """
import multiprocessing, sys
from test_loader_processes import open_batches

if __name__ == "__main__":
    multiprocessing.set_start_method(sys.argv[2])
    batches = open_batches(sys.argv[1], workers=1)
    try:
        print("started", flush=True)
        print(batches.next()[0].sum().item(), flush=True)
        while True:
            batches.next()
    except KeyboardInterrupt:
        batches.close()
        print("closed", flush=True)
"""

pytestmark = [
    pytest.mark.slow,  # every process imports torch
    pytest.mark.skipif(os.name == "nt", reason="Windows has no Ctrl-C for one group alone"),
]


def open_batches(folder, workers):
    images = open_image_folder(folder, image_size=32, augment=True, batch_size=4)
    options = LoaderOptions(
        batch_size=4,
        seed=0,
        workers=workers,
        prefetch_factor=2,
        persistent_workers=True,
        pin_memory=False,
        non_blocking=True,
        channels_last=True,
    )
    return LoaderBatches(images, torch.device("cpu"), options)


def run_and_interrupt(folder, script, method, after_lines):
    """Run the script, press Ctrl-C after so many lines of it, and return all its lines."""
    script.write_text(SCRIPT)
    path = os.pathsep.join([str(PROJECT), str(Path(__file__).parent)])
    with subprocess.Popen(
        [sys.executable, str(script), str(folder), method],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": path},
    ) as running:
        lines = [running.stdout.readline() for _ in range(after_lines)]
        os.killpg(running.pid, signal.SIGINT)  # a terminal's Ctrl-C reaches the whole group
        out, err = running.communicate(timeout=120)
    assert "Traceback" not in err
    assert running.returncode == 0
    return [*(line.strip() for line in lines), *out.splitlines()]


# the system's default is the first of them
@pytest.mark.parametrize("method", sorted({multiprocessing.get_all_start_methods()[0], "spawn"}))
def test_same_batches_and_a_silent_end(generated, tmp_path, method):
    lines = run_and_interrupt(generated, tmp_path / "script.py", method, after_lines=2)
    batches = open_batches(generated, workers=0)
    assert lines == ["started", str(batches.next()[0].sum().item()), "closed"]


def test_ctrl_c_while_the_processes_still_start(generated, tmp_path):
    lines = run_and_interrupt(generated, tmp_path / "script.py", "spawn", after_lines=1)
    assert lines == ["started", "closed"]
