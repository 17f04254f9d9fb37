"""A user's own training step in a real worker: the one of the documentation, and others."""

import re
import sys
from pathlib import Path

import pytest
from worker_processes import small_run

from bench.launcher.measurement import launch_measurement
from bench.records.folders import RecordFolder
from bench.records.metrics import summary

PROJECT = Path(__file__).resolve().parents[3]
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("mlproject_command")]


def measured(tmp_path, arch, **changes):
    config = small_run(
        **{"arch": arch, "image_size": "auto", "batch_size": 2, "iters": 4, **changes}
    )
    record = launch_measurement(config, RecordFolder.create(tmp_path), lambda event: None)
    assert record.outcome == "ok", record.reason
    return record


def test_the_step_of_the_documentation_is_measured(tmp_path, monkeypatch):
    text = (PROJECT / "docs/models-and-data.md").read_text("utf-8")
    [block] = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(block.splitlines()) <= 20
    (tmp_path / "mysteps.py").write_text(block)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    record = measured(tmp_path / "records", "mysteps:Echo")
    assert summary(record)["throughput_tokens_per_s"] > 0
    assert record.complexity.forward_macs == 2 * 32 * 64 * 1000
    assert record.environment.model_code.modules == ("mysteps",)
    assert record.environment.model_code.git_commit is None
