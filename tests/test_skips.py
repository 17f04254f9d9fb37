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


def outcome_of(folder, text, *options):
    """What pytest prints of one file of tests, under the hooks of this project's."""
    (folder / "test_skipping.py").write_text(text, encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "conftest", *options, str(folder)],
        env={**os.environ, "PYTHONPATH": str(TESTS), "PYTEST_ADDOPTS": ""},
        cwd=folder,
        check=False,
        capture_output=True,
        text=True,
    ).stdout


@pytest.mark.parametrize(
    ("options", "outcome"),
    [([], "3 skipped"), (["--nothing-missing"], "1 failed, 1 skipped, 1 error")],
)
def test_a_skip_for_want_of_a_program_can_be_a_failure(tmp_path, options, outcome):
    assert outcome in outcome_of(tmp_path, SKIPPING, *options)


def test_a_file_that_is_skipped_whole_is_one_too(tmp_path):
    text = "import pytest\npytest.importorskip('no_such_library')\n"
    assert "1 error" in outcome_of(tmp_path, text, "--nothing-missing")
