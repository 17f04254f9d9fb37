"""Measuring from Python: what comes back, what is raised, and what an import costs."""

import subprocess
import sys
from pathlib import Path

import pytest
import samples

import bench
from bench import RunConfig, UserError, measure, measure_roofs, read_records
from bench.errors import UnsupportedError
from bench.launcher import from_python

PROJECT = Path(__file__).resolve().parents[3]


@pytest.mark.slow
def test_a_measurement_from_python_leaves_the_record_that_it_returns(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(PROJECT / "tests" / "bench"))
    names = []
    record = measure(
        RunConfig(
            arch="crashing_models:small",
            backend="cpu",
            batch_size=2,
            image_size=32,
            warmup_iters=1,
            iters=3,
        ),
        records=tmp_path / "records",
        on_event=lambda event: names.append(event.name),
    )
    assert record.outcome == "ok", record.reason
    assert len(record.measurement.iteration_times_s) == 3
    assert read_records(tmp_path / "records") == [record]
    assert "window_ended" in names


@pytest.fixture
def ended(monkeypatch):
    """Let every launch end at once, as it is told."""

    def end(outcome, reason="said why"):
        def launch(asked, folder, on_event):
            return samples.run_record().model_copy(update={"outcome": outcome, "reason": reason})

        monkeypatch.setattr(from_python, "launch_measurement", launch)

    return end


@pytest.mark.parametrize("outcome", ["oom", "crashed"])
def test_a_run_that_failed_returns_its_record(tmp_path, ended, outcome):
    ended(outcome)
    assert measure(RunConfig(), records=tmp_path).outcome == outcome


@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        ("refused", UserError),
        ("unsupported", UnsupportedError),
        ("interrupted", KeyboardInterrupt),
    ],
)
def test_what_its_caller_must_act_on_is_raised(tmp_path, ended, outcome, error):
    ended(outcome)
    with pytest.raises(error, match="said why"):
        measure(RunConfig(), records=tmp_path)


def test_a_machine_that_keeps_no_record_measures_nothing(tmp_path, monkeypatch):
    for name, value in (("MASTER_ADDR", "here"), ("MASTER_PORT", "29500"), ("NODE_RANK", "1")):
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match="NODE_RANK is 0"):
        measure(RunConfig(nodes=2), records=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_roofs_that_are_there_are_not_measured_again(tmp_path, monkeypatch):
    known = samples.ceilings_record()
    monkeypatch.setattr(from_python, "find_ceilings", lambda records, backend: known)
    assert measure_roofs("cpu", records=tmp_path, if_missing=True) is known
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("statement", "unwanted"),
    [
        ("import bench.errors", {"pydantic", "psutil", "bench.launcher", "bench.config"}),
        ("from bench import measure, RunConfig", {"torch", "numpy", "mlflow", "pandas"}),
        ("import tracking", {"mlflow", "tracking.store"}),
    ],
)
def test_an_import_brings_no_more_than_it_needs(statement, unwanted):
    code = f"{statement}; import sys; print(sorted({unwanted!r} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_every_public_name_is_there():
    assert {name for name in bench.__all__ if getattr(bench, name) is not None} == set(
        bench.__all__
    )
    with pytest.raises(AttributeError, match="no attribute 'measurement'"):
        bench.measurement  # noqa: B018
