"""Which environment variables a record keeps."""

import samples

from bench.machine import cpu_device_info, read_environment
from bench.machine.environment import speed_variables
from bench.records import RunRecord


def test_what_libraries_compute_by_is_kept_and_nothing_else():
    environ = {
        "OMP_PROC_BIND": "true",
        "KMP_AFFINITY": "granularity=fine,compact",
        "NVIDIA_TF32_OVERRIDE": "1",
        "TORCHINDUCTOR_CACHE_DIR": "/home/somebody/cache",
        "MKL_HOME": "/home/somebody/mkl",
        "MLFLOW_TRACKING_PASSWORD": "secret",
        "PATH": "/usr/bin",
    }
    assert speed_variables(environ) == {
        "KMP_AFFINITY": "granularity=fine,compact",
        "NVIDIA_TF32_OVERRIDE": "1",
        "OMP_PROC_BIND": "true",
    }


def test_they_are_facts_of_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_PROC_BIND", "close")
    found = read_environment(cpu_device_info(), tmp_path, "auto")
    assert found.variables["OMP_PROC_BIND"] == "close"
    assert "OMP_PROC_BIND=close" in found.variables_set


def test_a_record_from_before_does_not_say_that_none_were_set():
    record = samples.run_record(environment=samples.environment())
    kept = record.model_dump(mode="json")
    del kept["environment"]["variables"]
    read = RunRecord.model_validate(kept).environment
    assert read.variables is read.variables_set is None
    assert read.missing["variables"]
