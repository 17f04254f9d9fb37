"""Measuring from Python: what comes back, what is raised, and what an import costs."""

from importlib import metadata

import pytest
import samples
from worker_processes import output_of

import bench
from bench import RunConfig, UserError, measure, measure_roofs
from bench.errors import Unknown, UnsupportedError
from bench.launcher import measurement
from bench.launcher.measurement import find_ceilings
from bench.machine import UnknownFactError, value_or_none
from bench.machine.cpu import cpu_model, cpu_signature
from bench.records import Verdict
from bench.records.folders import RecordFolder


@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        *(("ok", None), ("oom", None), ("crashed", None)),
        ("refused", UserError),
        ("unsupported", UnsupportedError),
        ("interrupted", KeyboardInterrupt),
    ],
)
def test_a_record_is_returned_and_what_its_caller_must_act_on_raised(
    tmp_path, monkeypatch, outcome, error
):
    measured = samples.run_record().model_copy(update={"outcome": outcome, "reason": "said why"})
    monkeypatch.setattr(measurement, "launch_measurement", lambda *asked: measured)
    if error is None:
        assert measure(RunConfig(), records=tmp_path) is measured
    else:
        with pytest.raises(error, match="said why"):
            measure(RunConfig(), records=tmp_path)


def test_a_machine_that_keeps_no_record_measures_nothing(tmp_path, monkeypatch):
    for name, value in (("MASTER_ADDR", "here"), ("MASTER_PORT", "29500"), ("NODE_RANK", "1")):
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match="NODE_RANK is 0"):
        measure(RunConfig(nodes=2), records=tmp_path)
    assert list(tmp_path.iterdir()) == []


def file_roofs(records, all_reduces=(), **changes):
    """Clean roofs of this machine, or of one that differs from it."""
    here = samples.environment(
        **{
            "cpu_model": value_or_none(cpu_model),
            "cpu_signature": value_or_none(cpu_signature),
            "torch": metadata.version("torch"),
            **changes,
        }
    )
    clean = Verdict(level="clean", findings=())
    folder = RecordFolder.create(records)
    roofs = samples.ceilings_record(environment=here, verdict=clean, all_reduces=all_reduces)
    folder.close(roofs)
    return folder.read_record()


CARD = {"uuid": "GPU-1", "driver": "580.65", "power_limit_w": 700.0}


@pytest.fixture
def machine(monkeypatch):
    """Return a function that gives this machine a build of torch and a card, or none."""

    def of(torch, card):
        def uuid():
            if card is None:
                raise UnknownFactError("no CUDA driver here")
            return "1"

        monkeypatch.setattr("importlib.metadata.version", lambda name: torch)
        monkeypatch.setattr(measurement, "device_uuid", uuid)
        monkeypatch.setattr(measurement, "management_facts", lambda uuid: card)

    return of


@pytest.mark.parametrize(
    ("change", "asked", "known"),
    [
        ({}, "cuda", True),
        ({"power_limit_w": 699.99}, "cuda", True),  # as another driver reads it
        ({}, "auto", True),
        ({}, "cpu", False),
        ({"uuid": "GPU-2"}, "cuda", False),  # another card of this host, or a rented one
        ({"driver": "580.95"}, "auto", False),
        ({"driver": Unknown("NVML")}, "cuda", False),
        ({"power_limit_w": 500.0}, "cuda", False),
        (None, "cuda", False),  # no card is here any more
        (None, "auto", False),
    ],
)
def test_roofs_of_another_card_are_not_known(tmp_path, machine, change, asked, known):
    machine("2.15.0+cu132", None if change is None else {**CARD, **change})
    device = samples.device_info(backend="cuda", name="NVIDIA H100", **CARD)
    file_roofs(tmp_path, device=device)
    assert (find_ceilings(tmp_path, asked) is not None) == known


@pytest.mark.parametrize(("torch", "auto"), [("2.15.0+rocm7", False), ("2.15.0+cpu", True)])
def test_the_roofs_of_the_processor_are_known_and_are_those_of_auto_where_torch_takes_no_gpu(
    tmp_path, machine, monkeypatch, torch, auto
):
    for name in ("ATEN_CPU_CAPABILITY", "DNNL_MAX_CPU_ISA", "ONEDNN_MAX_CPU_ISA"):
        monkeypatch.delenv(name, raising=False)
    machine(torch, CARD)
    file_roofs(tmp_path, variables={"ONEDNN_MAX_CPU_ISA": "AVX2"})
    assert find_ceilings(tmp_path, "cpu") is None  # they are of other instructions
    filed = file_roofs(tmp_path)
    assert find_ceilings(tmp_path, "cpu") == filed
    assert measure_roofs("cpu", records=tmp_path, if_missing=True) == filed
    assert (find_ceilings(tmp_path, "auto") is not None) == auto
    assert find_ceilings(tmp_path, "cpu", devices=2) is None  # without what joins two
    joined = file_roofs(tmp_path, all_reduces=(samples.all_reduce(),))
    assert find_ceilings(tmp_path, "cpu", devices=2) == joined
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "avx2")
    assert find_ceilings(tmp_path, "cpu") != filed


@pytest.mark.parametrize(
    ("statement", "unwanted"),
    [
        ("import bench.errors", {"pydantic", "psutil", "bench.launcher", "bench.config"}),
        ("from bench import measure, RunConfig", {"torch", "numpy", "mlflow", "pandas"}),
        ("import tracking", {"mlflow", "tracking.connection"}),
    ],
)
def test_an_import_brings_no_more_than_it_needs(statement, unwanted):
    code = f"{statement}; import sys; print(sorted({unwanted!r} & set(sys.modules)))"
    assert output_of(code) == "[]\n"


def test_every_public_name_is_there():
    assert None not in [getattr(bench, name) for name in bench.__all__]
    with pytest.raises(AttributeError, match="no attribute 'measurement'"):
        bench.measurement  # noqa: B018


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--lr", "0.1", "--api-key", "abc"], "--lr 0.1 --api-key (left out)"),
        (["--password=p$ss!"], "--password=(left out)"),
        (["--password", "it's mine", "--lr=1"], "--password (left out) --lr=1"),
        (["+wandb.key=a&b"], "+wandb.key=(left out)"),
        (["--tracker", "https://me:a b@host/x"], "--tracker (left out)"),
        (["--id", "sk-proj-12345678"], "--id (left out)"),
        (["--auth", "3", "--name", "two words"], "--auth 3 --name 'two words'"),
    ],
)
def test_secrets_are_in_no_command_however_a_shell_quotes_them(words, shown):
    job = measurement.script_job(RunConfig(), ("train.py", words), 1, command=["python", *words])
    assert job.task["arguments"] == shown
    assert job.task["command"] == f"python {shown}"
