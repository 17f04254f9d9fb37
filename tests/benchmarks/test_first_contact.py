"""The checks of a device that is met for the first time, on a processor as far as that can be."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parent.parent.parent
ANSWERED = ("loss scaling", "precisions", "warm-up", "switches of a model's file")
NEEDS_A_GPU = ("captured accumulation", "counters", "warm-up of a tuning", "clocks")


@pytest.mark.long
def test_a_processor_answers_what_it_can_and_the_folder_is_read(
    tmp_path, embedded, mlproject_command
):
    out = tmp_path / "contact"
    names = [f"--only={name}" for name in (*ANSWERED, *NEEDS_A_GPU)]
    program = [sys.executable, PROJECT / "benchmarks" / "first_contact.py", "--backend", "cpu"]
    done = subprocess.run(
        [*program, "--out", out, *names], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = {one["check"]: one for one in json.loads((out / "checks.json").read_text())}
    assert {name: one["passed"] for name, one in found.items()} == {
        **dict.fromkeys(ANSWERED, True),
        **dict.fromkeys(NEEDS_A_GPU),
    }
    assert all("NVIDIA" in found[name]["seen"] for name in NEEDS_A_GPU)
    assert "| loss scaling | fused losses are finite" in (out / "checks.md").read_text()
    assert sum(path.stat().st_size for path in out.rglob("*") if path.is_file()) < 8e6
    code, printed, _ = mlproject_command("report", "--records", out / "records", "--no-log")
    assert code == 0
    assert "resnet18" in printed
    assert mlproject_command("sync", "--records", out / "records")[0] == 0
