"""The command line as a user meets it: subprocesses, exit codes, one line for every mistake."""

import errno
import os
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
from worker_processes import output_of

import mlproject
from bench.config import RunConfig
from commands import EXIT_CODES

TESTS = Path(__file__).resolve().parent.parent
PROJECT = TESTS.parent


def test_every_listed_command_has_its_help_without_anything_heavy():
    probe = (
        "import sys, mlproject\n"
        "for name in mlproject.COMMANDS: assert mlproject.main([name, '--help']) == 0, name\n"
        "heavy = {'torch', 'mlflow', 'pandas', 'matplotlib', 'plotly'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    assert output_of(probe).count("Usage: mlproject") == len(mlproject.COMMANDS)


def test_help_lists_every_command(capsys):
    assert mlproject.main([]) == 2  # no arguments show it too
    listed = " ".join(capsys.readouterr().out.split())
    for name, line in mlproject.COMMANDS.items():
        assert f"{name} {line}" in listed
        assert mlproject.cli.get_command(None, name).help.partition("\n\n")[0] == line
    for code, meaning in EXIT_CODES.items():
        assert f"{code} {meaning}" in listed


TRACES = TESTS / "data" / "traces"
TRACE, OTHER = (TRACES / f"v100_resnet50_b32_workers{n}.pt.trace.json.gz" for n in (0, 4))
TABLE = "arch,batch_size,images_per_s\ndinet,16,1.74\n"
MATRIX = "blocks: [{backend: cpu, image_size: 32}]\n"
#: Command lines, and words of the one line with which each is refused.
MISTAKES = [
    ("run --arch resnet5", "arch='resnet5'", "resnet50"),
    ("run --data /no/such/folder", "/no/such/folder"),
    ("run --data empty", "empty"),
    ("run --arch 'a b:c'", "module:callable"),
    ("run --arch '$(touch hacked)'", "$(touch hacked)"),
    ("run --records /dev/null/records", "/dev/null/records", "--records"),
    ("run --colour red", "--colour"),
    ("run --nodes 2", "nodes=2", "MASTER_ADDR", "NODE_RANK"),
    ("sweep", "matrix: give a YAML file"),
    (
        "sweep tiny.yaml --set colour=red",
        "set='colour=red': 'colour' is not known; give FIELD=VALUE",
    ),
    ("sweep tiny.yaml --set iters=0", "iters='0'"),
    ("sweep absent.yaml", "cannot be read", "smoke, vision"),
    ("watch --seconds 0 -- python train.py", "0.0 is not in the range x>0"),
    ("sweep tiny.yaml --campaign 'two words'", "two words"),
    ("sweep tiny.yaml --env a/b", "a/b"),
    ("sweep tiny.yaml --address host:1", "--executor ray"),
    ("sweep tiny.yaml --executor ray --profile torch", "profile=torch"),
    ("tune --max-batch 8 --batch-size 16", "max_batch=8"),
    ("tune --devices 2", "devices=2"),
    ("tune --fixed-batch --arch resnet5", "resnet5"),
    ("tune --data-only true --data synthetic", "data_only"),
    ("profile --nodes 2", "nodes=2", "use nodes=1"),
    ("profile --of 20200101T000000Z-00000000", "no measurement"),
    ("profile --of x --arch vgg16", "arch='vgg16'", "--of"),
    ("sweep tiny.yaml --executor ray --minutes 8", "minutes=8"),
    ("complexity --arch resnet5", "arch='resnet5': not a torchvision", "resnet50"),
    ("complexity --arch vgg16 --arch my:", "arch='my:': write your own model as module:call"),
    ("complexity --batch-size auto", "batch_size='auto': give a whole number"),
    ("complexity --batch-size 4 --batch-size -1", "batch_size='-1': give a whole number"),
    ("complexity --ops --by module --format csv", "leave out --ops or --by"),
    (f"trace {Path(__file__)}", "not readable as a trace"),
    ("trace absent.json", "cannot be read (No such file or directory)"),
    (f"trace {TRACE} --steps epoch", "no mark begins with 'epoch'; it has Optimizer.step"),
    (f"trace {TRACE} --steps epoch --whole", "--whole makes the trace one step"),
    (f"trace {TRACE} {OTHER} --format csv", "--format csv: a table of one FILE"),
    (f"trace {TRACE} --arch resnet50", "--batch-size is needed with it"),
    (f"trace {TRACE} --arch resnet5 --batch-size 2", "arch='resnet5'"),
    ("counters", "no FILE"),
    ("counters --print-metrics gh100 --attach 20261121T132955Z-6704ef7d", "no FILE"),
    ("counters none.csv --attach none", "attach='none': no measurement in"),
    (f"counters none.csv --attach {Path(__file__)}", "no measurement in"),
    ("counters none.csv", "cannot be read"),
    ("compare records=kept", "B is missing"),
    ("compare records=kept b --aa", "aa: takes one side"),
    ("compare a b --fail-on none,slower", "none stands alone"),
    ("compare a b --fail-on slow,missing", "fail-on='slow': give some of slower, crashed"),
    ("predict --arch vgg16 --batch-size 8", "has no mlflow.db, so no runs are tracked there"),
    ("import table.csv --set speed=9", "FACT=VALUE"),
    ("import table.csv --set batch_size=many", "whole number"),
    ("import table.csv --set devices=0", "above 0"),
    ("import table.csv --campaign ../../etc", "letters, digits"),
    ("import table.csv none.csv", "none.csv"),
    ("sync --records /no/such/folder", "/no/such/folder"),
    ("sync --older-than 1h", "give it with --reap"),
    ("sync --verify --reap", "verify"),
    ("dataset check empty", "empty"),
    ("watch --without speed -- true", "without='speed'"),
    ("watch --claims-mfu 0.4 -- sh", "--peak"),
    ("swim", "swim"),
]


@pytest.mark.parametrize(
    "mistake", MISTAKES, ids=lambda mistake: mistake[0].replace(str(TESTS), "")
)
def test_a_mistake_is_one_line_with_the_value_and_exit_code_2(mlproject_command, mistake):
    place = mlproject_command.folder
    (place / "empty").mkdir()
    (place / "kept" / "records" / "one").mkdir(parents=True)
    (place / "tiny.yaml").write_text(MATRIX)
    (place / "table.csv").write_text(TABLE)
    line, *words = mistake
    code, _, err = mlproject_command(*shlex.split(line))
    assert code == 2
    [said] = err.strip().splitlines()
    assert said.startswith("mlproject: ")
    assert [word for word in words if word not in said] == []
    assert not (place / "records").exists()
    assert not (place / "hacked").exists()


def options(name):
    """Every option of a command, and of those that it consists of, with the words before it."""
    left = [([name], mlproject.cli.get_command(None, name))]
    for words, command in left:
        left += [
            ([*words, part], inside) for part, inside in vars(command).get("commands", {}).items()
        ]
        yield from ((words, one) for one in command.params if isinstance(one, click.Option))


def wrong_values(name, option):
    """Values that an option cannot have, by its type."""
    match option.type:
        case click.Choice():
            return ["no-such-word"]
        case click.IntRange() | click.FloatRange() as numbers:
            return ["many", f"{numbers.min - (not numbers.min_open)}"]
        case click.types.IntParamType() | click.types.BoolParamType():
            return ["perhaps"]
        case click.Path() as path:
            return ["/"] if not path.dir_okay else [__file__] if not path.file_okay else []
    settings = RunConfig.model_fields if name in ("run", "profile", "tune", "complexity") else ()
    return ["no such value!"] * (option.name in settings)


@pytest.mark.parametrize("name", mlproject.COMMANDS)
def test_a_wrong_value_of_any_option_is_one_line_with_the_value_and_exit_code_2(
    mlproject_command, name
):
    for words, option in options(name):
        for value in [] if option.is_flag else wrong_values(name, option):
            code, _, err = mlproject_command(*words, f"{option.opts[0]}={value}")
            assert code == 2
            [said] = err.splitlines()
            assert said.startswith("mlproject: ")
            assert value in said
            assert option.name in said or option.opts[0] in said


def test_a_process_ends_with_the_exit_code_and_a_reader_that_left_is_no_error():
    done = subprocess.run(
        f"{sys.executable} mlproject.py swim; echo $?; {sys.executable} mlproject.py --help | true",
        shell=True,
        cwd=PROJECT,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "2\n"
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("error", "name", "code", "words"),
    [
        (errno.ENOSPC, "records/x/record.json", 2, "mlproject sync"),
        (errno.ENOENT, "records/x/config.json", 1, ""),
    ],
)
def test_a_full_disk_and_a_file_that_is_gone_are_one_line_with_the_name(
    monkeypatch, capsys, error, name, code, words
):
    def fails(**_):
        raise OSError(error, os.strerror(error), name)

    monkeypatch.setattr(mlproject.cli, "main", fails)
    assert mlproject.main(["run"]) == code
    [line] = capsys.readouterr().err.splitlines()
    assert name in line
    assert words in line
