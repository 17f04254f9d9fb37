"""What CI takes for a skip: a device that is not there, and never a program that could be."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
SKIPPING = """
import pytest

def test_of_a_device():
    pytest.skip("no cuda device here")

def test_of_a_program():
    pytest.skip("no browser here")

@pytest.mark.skipif(True, reason="needs lscpu")
def test_marked():
    pass
"""


@pytest.mark.parametrize(
    ("options", "outcome"),
    [([], "4 skipped"), (["--nothing-missing"], "1 failed, 1 skipped, 2 errors")],
)
@pytest.mark.slow
def test_a_skip_for_want_of_a_program_can_be_a_failure(tmp_path, options, outcome):
    (tmp_path / "test_skipping.py").write_text(SKIPPING)
    (tmp_path / "test_whole_file.py").write_text("import pytest\npytest.importorskip('no_such')\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-p", "conftest", "--continue-on-collection-errors"]
    done = subprocess.run(
        [*command, *options, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(TESTS), "PYTEST_ADDOPTS": ""},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert outcome in done.stdout
