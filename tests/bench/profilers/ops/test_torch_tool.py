"""PyTorch's profiler as a tool of `mlproject profile`."""

import subprocess
import sys
from pathlib import Path

import pytest
import samples

from bench.errors import UserError
from bench.profilers.ops.torch_tool import TorchTool
from bench.records import OpProfile, ProfiledStep


def told(**facts):
    return samples.facts(ProfiledStep, tool="torch", outcome="ok", **facts)


def test_one_worker_without_anything_around_it():
    (attempt,) = TorchTool().attempts(Path())
    assert (attempt.name, attempt.prefix, attempt.environment) == ("torch", (), {})
    assert TorchTool().obstacle("mps") is None


def test_the_section_is_what_the_worker_timed():
    profile = samples.facts(OpProfile, method="m", iterations=1, step_time_s=1.0, ops=())
    assert TorchTool().read(Path(), [told(ops=profile)]) is profile


def test_a_worker_without_times_is_its_reason():
    with pytest.raises(UserError, match="torch: no op times: not in this sample"):
        TorchTool().read(Path("somewhere"), [told()])


def test_the_launcher_needs_no_torch():
    code = "import sys, bench.profilers.ops; print('torch' in sys.modules)"
    project = Path(__file__).resolve().parents[4]
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=project, capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "False"
