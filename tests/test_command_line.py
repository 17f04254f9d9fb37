"""The command line as a user meets it: subprocesses, exit codes, one line for every mistake."""

import errno
import re
import subprocess
import sys
from pathlib import Path

import pytest
from worker_processes import output_of

import mlproject
from bench.config import RunConfig

PROJECT = Path(__file__).resolve().parent.parent


@pytest.fixture
def refused(capsys, monkeypatch):
    """The one line with which a command line is refused."""
    monkeypatch.chdir(PROJECT)

    def line(*arguments):
        assert mlproject.main([*arguments]) == 2
        [line] = capsys.readouterr().err.strip().splitlines()
        assert line.startswith("mlproject: ")
        return line

    return line


def test_every_listed_command_has_its_help_without_anything_heavy():
    probe = (
        "import sys, mlproject\n"
        "for name in mlproject.COMMANDS: assert mlproject.main([name, '--help']) == 0, name\n"
        "heavy = {'torch', 'mlflow', 'pandas', 'matplotlib', 'plotly'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    assert output_of(probe).count("Usage: mlproject") == len(mlproject.COMMANDS)


@pytest.mark.slow
def test_no_module_of_analysis_imports_torch_mlflow_or_a_window_system():
    modules, heavy = output_of("""
import importlib, pkgutil, sys
import analysis
names = [module.name for module in pkgutil.walk_packages(analysis.__path__, "analysis.")]
for name in names:
    importlib.import_module(name)
print(len(names))
print({"torch", "torchvision", "mlflow", "matplotlib.pyplot"} & set(sys.modules))
""").splitlines()
    assert int(modules) > 20
    assert heavy == "set()"


def words_of(schema):
    """The words among the values of a field, by its JSON schema."""
    inside = [word for member in schema.get("anyOf", ()) for word in words_of(member)]
    boolean = ["true", "false"] if schema.get("type") == "boolean" else []
    return [*schema.get("enum", ()), *filter(None, [schema.get("const")]), *boolean, *inside]


def test_help_of_run_lists_the_values_of_every_choice(capsys):
    assert mlproject.main(["run", "--help"]) == 0
    shown = capsys.readouterr().out
    for name, schema in RunConfig.model_json_schema()["properties"].items():
        [values] = re.findall(rf"--{name.replace('_', '-')} (\S+)", shown)
        words = [word for word in values.strip("[]").split("|") if not word.isupper()]
        assert words == words_of(schema), name
        assert words or values in ("N", "TEXT"), name


def test_help_lists_every_command(capsys):
    assert mlproject.main(["--help"]) == 0
    listed = " ".join(capsys.readouterr().out.split())
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
        (["profile", "--nodes", "2"], ["nodes=2", "use nodes=1"]),
        (["sync", "--records", "/no/such/folder"], ["/no/such/folder"]),
        (["complexity", "--arch", "resnet5"], ["resnet5", "resnet50"]),
        (["ceilings", "--backend", "tpu"], ["tpu"]),
        (["accept", "--arch", "resnet5"], ["resnet5"]),
        (["swim"], ["swim"]),
    ],
)
def test_a_mistake_is_one_line_with_the_value_and_exit_code_2(refused, arguments, words):
    said = refused(*arguments)
    for word in words:
        assert word in said
    assert not (PROJECT / "hacked").exists()


def test_no_arguments_show_the_help(capsys):
    assert mlproject.main([]) == 2
    assert "Usage: mlproject" in capsys.readouterr().out


def test_a_process_ends_with_the_exit_code_and_a_reader_that_left_is_no_error():
    command = f"{sys.executable} mlproject.py"
    done = subprocess.run([*command.split(), "swim"], cwd=PROJECT, capture_output=True)
    assert done.returncode == 2
    done = subprocess.run(
        f"{command} --help | head -n 1", shell=True, cwd=PROJECT, capture_output=True, text=True
    )
    assert "Traceback" not in done.stderr


def test_an_empty_folder_is_refused_before_anything_slow(refused, tmp_path):
    assert str(tmp_path) in refused("run", "--data", str(tmp_path))


def test_a_full_disk_is_one_line_that_says_where_the_measurement_is(monkeypatch, capsys):
    def full(**_):
        raise OSError(errno.ENOSPC, "No space left on device", "records/x/record.json")

    monkeypatch.setattr(mlproject.cli, "main", full)
    assert mlproject.main(["run"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "records/x/record.json" in line
    assert "mlproject sync" in line
