"""Loader processes under every way of starting them."""

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest
from opened_batches import opened_batches

SCRIPT = """
import multiprocessing, sys
from opened_batches import opened_batches

if __name__ == "__main__":
    multiprocessing.set_start_method(sys.argv[2])
    batches = opened_batches(data=sys.argv[1], augment=True, workers=1)
    print(batches.next()[0].sum().item())
    batches.close()
"""


@pytest.mark.long  # every process imports torch
@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_a_process_that_is_started_in_any_way_loads_the_same(generated, tmp_path, method):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script), str(generated), method],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(Path(__file__).parent)])},
        capture_output=True,
        text=True,
        check=True,
    )
    expected = opened_batches(data=str(generated), augment=True).next()[0].sum().item()
    assert (float(done.stdout), done.stderr) == (expected, "")
