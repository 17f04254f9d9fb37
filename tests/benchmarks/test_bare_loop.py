"""The loop that runs are compared with trains what it is told to."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BARE_LOOP = Path(__file__).resolve().parent.parent.parent / "benchmarks" / "bare_loop.py"


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["alexnet", "hf:gpt2"])
def test_the_bare_loop_trains_images_and_tokens(arch):
    options = ["--batch-size", "1", "--seq-len", "8", "--warmup-iters", "1", "--iters", "1"]
    command = [sys.executable, BARE_LOOP, "--arch", arch, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["samples_per_s"] > 0
