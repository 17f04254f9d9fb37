"""Loader processes under every way of starting them, watched from outside."""

import multiprocessing
import os
import signal
import subprocess
import sys

import pytest

SCRIPT = """
import multiprocessing, sys
import torch

if __name__ == "__main__":
    multiprocessing.set_start_method(sys.argv[2])
    from bench.inputs.image_folder import open_image_folder
    from bench.inputs.loader import LoaderBatches, LoaderOptions

    images = open_image_folder(sys.argv[1], image_size=32, augment=True, batch_size=4)
    options = LoaderOptions(
        batch_size=4, seed=0, workers=2, prefetch_factor=2, persistent_workers=True,
        pin_memory=False, non_blocking=True, channels_last=True,
    )
    batches = LoaderBatches(images, torch.device("cpu"), options)
    try:
        print("started", flush=True)
        if sys.argv[3] == "early":
            while True:
                batches.next()
        print(batches.next()[0].sum().item(), flush=True)
        while True:
            batches.next()
    except KeyboardInterrupt:
        batches.close()
        print("closed", flush=True)
"""

pytestmark = pytest.mark.slow  # every process imports torch


@pytest.mark.skipif(os.name == "nt", reason="Windows has no Ctrl-C for one process group alone")
@pytest.mark.parametrize("when", ["early", "late"])
@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_ctrl_c_ends_in_silence(generated, tmp_path, method, when):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with subprocess.Popen(
        [sys.executable, str(script), str(generated), method, when],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    ) as running:
        assert running.stdout.readline() == "started\n"
        if when == "late":
            float(running.stdout.readline())
        os.killpg(running.pid, signal.SIGINT)  # a terminal's Ctrl-C reaches the whole group
        out, err = running.communicate(timeout=120)
    assert out == "closed\n"
    assert "Traceback" not in err
    assert running.returncode == 0


def test_same_batches_however_they_start(generated, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace("while True:", "while False:"))
    sums = set()
    for method in multiprocessing.get_all_start_methods():
        done = subprocess.run(
            [sys.executable, str(script), str(generated), method, "late"],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONPATH": os.getcwd()},
        )
        sums.add(done.stdout.split()[1])
    assert len(sums) == 1
