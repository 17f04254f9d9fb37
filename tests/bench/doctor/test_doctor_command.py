import json
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from bench.doctor import Check, suite
from bench.doctor.check import ok
from commands.keep.doctor import command

LONG = Check(
    "perf", "warning", "perf_event_paranoid is 4: " + "users may not count " * 9, "sudo it"
)


@pytest.fixture
def machine(monkeypatch):
    """Return the list of checks that this machine will give; none come from a server."""
    checks = []
    monkeypatch.setattr(suite, "machine_groups", lambda records: {"host": lambda: checks})
    monkeypatch.setattr("commands.keep.doctor._tracking_checks", lambda: [ok("server", "answers")])
    return checks


def run(*arguments):
    return CliRunner().invoke(command, arguments, standalone_mode=False, env={"COLUMNS": "100"})


def test_the_exit_code_is_about_a_cpu_run(machine):
    machine += [ok("torch", "2.15"), Check("ncu", "warning", "not found", "install it")]
    assert run().return_value == 0
    machine.append(Check("torch", "missing", "not found", "install it"))
    assert run().return_value == 1


def test_json_is_a_list_of_checks(machine):
    machine.append(Check("ncu", "warning", "not found", "install it"))
    assert json.loads(run("--format", "json").stdout) == [
        {"name": "ncu", "status": "warning", "detail": "not found", "remedy": "install it"},
        {"name": "server", "status": "ok", "detail": "answers", "remedy": None},
    ]


def test_the_table_is_readable_at_100_columns(machine):
    machine.append(LONG)
    lines = run().stdout.splitlines()
    assert max(map(len, lines)) <= 100
    words = " ".join(" ".join(lines).split())
    for word in ("perf", "warning", "paranoid is 4", "-> sudo it", "server", "answers"):
        assert word in words


def test_markup_in_a_detail_is_shown_as_it_is(machine):
    machine.append(ok("cuda", "sees [/red] and [bold]"))
    assert "sees [/red] and [bold]" in run().stdout


@pytest.mark.slow
def test_this_machine_end_to_end(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "mlproject", "doctor", "--format", "json"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    checks = {check["name"]: check for check in json.loads(done.stdout)}
    assert checks.keys() >= {"python", "packages", "cpu", "cpu bf16", "records", "power"}
    assert done.returncode == int(any(check["status"] == "missing" for check in checks.values()))
