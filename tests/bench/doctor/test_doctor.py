import json

import pytest
from click.testing import CliRunner

from bench.doctor import Check, check, run_checks
from commands.doctor import Doctor

NO_NCU = Check("ncu", "warning", "not found", "install it")
NO_TORCH = Check("torch", "missing", "not found", "install it")


def test_a_group_that_fails_does_not_take_the_others_along():
    def broken():
        yield check("first", "fine")
        raise ImportError("No module named 'mlflow'")

    checks = run_checks({"tracking": broken, "host": lambda: [check("disk", "plenty")]})
    assert [one.name for one in checks] == ["tracking", "disk"]
    assert checks[0].status == "missing"
    assert checks[0].detail == "the check itself failed: ImportError: No module named 'mlflow'"


@pytest.fixture
def machine(monkeypatch):
    """Return the list of checks that this machine will give; none come from a server."""
    checks = []
    monkeypatch.setattr("bench.doctor.machine_groups", lambda _: {"host": lambda: checks})
    monkeypatch.setattr("commands.doctor._tracking_checks", lambda: [check("server", "answers")])
    return checks


def run(*arguments):
    return CliRunner().invoke(
        Doctor.command(), arguments, standalone_mode=False, env={"COLUMNS": "100"}
    )


def test_json_is_a_list_of_checks_and_the_exit_code_is_about_a_cpu_run(machine):
    machine.append(NO_NCU)
    done = run("--format", "json")
    assert done.return_value == 0
    assert json.loads(done.stdout) == [
        {"name": "ncu", "status": "warning", "detail": "not found", "remedy": "install it"},
        {"name": "server", "status": "ok", "detail": "answers", "remedy": None},
    ]
    machine.append(NO_TORCH)
    assert run().return_value == 1


@pytest.mark.slow
def test_this_machine_end_to_end(mlproject_command):
    code, out, _ = mlproject_command("doctor", "--format", "json")
    checks = {one["name"]: one for one in json.loads(out)}
    assert checks.keys() >= {"python", "packages", "cpu", "cpu bf16", "records", "power"}
    assert code == int(any(one["status"] == "missing" for one in checks.values()))
