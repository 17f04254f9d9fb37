"""A user's own training step in a real worker: the example, and the one of the documentation."""

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


def test_the_example_is_measured_in_sequences_and_tokens(tmp_path, monkeypatch):
    monkeypatch.chdir(PROJECT)
    record = measured(tmp_path, "examples.tiny_gpt:step", optimizer="adamw", precision="amp-bf16")
    found = summary(record)
    assert found["throughput_tokens_per_s"] == 128 * found["throughput_samples_per_s"]
    assert "throughput_images_per_s" not in found
    assert record.measurement.samples == 8
    model = record.complexity
    assert (model.sample, model.tokens_per_sample, model.image_size) == ("sequence", 128, None)
    weights = 8192 * 256 + 128 * 256 + 4 * (12 * 256**2 + 13 * 256) + 2 * 256
    assert model.parameters == weights  # the embedding's serve the logits too
    # A token passes all weights but the positions' and the norms', and sees 128 others in 4 layers.
    macs = 8192 * 256 + 4 * (12 * 256**2 + 2 * 128 * 256)
    assert model.forward_macs == 2 * 128 * macs
    assert model.step_flops == 3 * 2 * model.forward_macs
    assert model.memory.optimizer_bytes >= 2 * model.memory.gradients_bytes


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
