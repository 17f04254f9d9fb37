"""The command line as a user meets it: subprocesses, exit codes, one line for every mistake."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import mlproject

PROJECT = Path(__file__).resolve().parent.parent


def call(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "mlproject.py", *arguments],
        cwd=PROJECT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


def refused(*arguments, **environment):
    done = call(*arguments, **environment)
    assert done.returncode == 2, done
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stderr.startswith("mlproject: ")
    return done.stderr


@pytest.mark.parametrize("name", mlproject.COMMANDS)
def test_every_listed_command_has_its_help_without_anything_heavy(name):
    probe = (
        "import sys, mlproject; code = mlproject.main([sys.argv[1], '--help']);"
        "heavy = {'torch', 'mlflow', 'pandas', 'matplotlib', 'plotly'} & set(sys.modules);"
        "sys.exit(code or repr(sorted(heavy)) * bool(heavy) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe, name], cwd=PROJECT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "Usage: mlproject" in done.stdout


def test_help_lists_every_command():
    listed = " ".join(call("--help").stdout.split())
    for commands in mlproject.PURPOSES.values():
        for name, line in commands.items():
            assert f"{name} {line}" in listed
    for name, purpose in mlproject.COMMANDS.items():
        assert (PROJECT / "commands" / purpose / f"{name}.py").is_file()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "--arch", "resnet5"], ["arch='resnet5'", "resnet50"]),
        (["run", "--batch-size", "0"], ["batch_size='0'"]),
        (["run", "--backend", "tpu"], ["backend='tpu'"]),
        (["run", "--data", "/no/such/folder"], ["/no/such/folder"]),
        (["run", "--arch", "a b:c"], ["module:callable"]),
        (["run", "--arch", "$(touch hacked)"], ["$(touch hacked)"]),
        (["run", "--records", "/dev/null/records"], ["/dev/null/records", "--records"]),
        (["run", "--colour", "red"], ["--colour"]),
        (["run", "--nodes", "2"], ["nodes=2", "MASTER_ADDR", "NODE_RANK"]),
        (["profile", "--devices", "2"], ["devices=2", "use devices=1"]),
        (["sync", "--records", "/no/such/folder"], ["/no/such/folder"]),
        (["complexity", "--arch", "resnet5"], ["resnet5", "resnet50"]),
        (["ceilings", "--backend", "tpu"], ["tpu"]),
        (["accept", "--arch", "resnet5"], ["resnet5"]),
        (["swim"], ["swim"]),
    ],
)
def test_a_mistake_is_one_line_with_the_value_and_exit_code_2(arguments, words):
    said = refused(*arguments)
    for word in words:
        assert word in said
    assert not (PROJECT / "hacked").exists()


def test_no_arguments_show_the_help():
    done = call()
    assert done.returncode == 2
    assert "Usage: mlproject" in done.stdout


def test_an_empty_folder_is_refused_before_anything_slow(tmp_path):
    assert str(tmp_path) in refused("run", "--data", str(tmp_path))


def test_a_full_pipe_reader_that_left_is_no_error():
    done = subprocess.run(
        f"{sys.executable} mlproject.py --help | head -n 1",
        shell=True,
        cwd=PROJECT,
        capture_output=True,
        text=True,
    )
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_run_whose_server_is_gone_is_safe_and_synced_later(tmp_path):
    from servers import free_port, mlflow_server

    port = free_port()
    environment = {"MLFLOW_TRACKING_URI": f"http://127.0.0.1:{port}"}
    records = str(tmp_path / "records")
    small = ["--image-size", "64", "--batch-size", "2", "--iters", "5", "--warmup-iters", "1"]
    done = call("run", *small, "--records", records, "--format", "json", **environment)
    assert done.returncode == 3, done.stderr
    assert "mlproject sync" in done.stderr
    told = json.loads(done.stdout)
    assert told["outcome"] == "ok"
    assert told["run_id"] is None
    with mlflow_server(tmp_path, port):
        first = call("sync", "--records", records, **environment)
        second = call("sync", "--records", records, **environment)
    assert first.returncode == second.returncode == 0
    assert "1 uploaded" in first.stdout
    assert "1 there already" in second.stdout
