"""Every example runs as a user starts it, with a small model and few iterations."""

import json
import re
import runpy
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import samples
from click.testing import CliRunner
from stored_runs import filed, night

from bench import RunConfig, RunRecord, read_records
from bench.machine.environment import read_environment
from bench.records import Verdict
from tracking import log_record

PROJECT = Path(__file__).resolve().parent.parent.parent
pytestmark = pytest.mark.slow

SMALL = ["--arch=small_models:batch_normed", "--batch-size=2", "--image-size=32", "--iters=3"]


def run(name, *options):
    """Run an example as a user starts it, and return what it printed."""
    example = runpy.run_path(str(PROJECT / "examples" / f"{name}.py"))["main"]
    done = CliRunner().invoke(example, [str(option) for option in options], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def run_python(page, run_id=""):
    """Run a page's blocks of Python, `run_id` for the one it makes up; return what they define."""
    names = {}
    for block in blocks_of(page):
        exec(block.replace(2 * "0123456789abcdef", run_id), names)
    return names


def blocks_of(page):
    text = (PROJECT / page).read_text("utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def test_measure_and_place(tmp_path, mlproject_command):
    from bench.training.devices import open_device

    # Roofs of this very machine, which would take a minute to measure.
    environment = read_environment(open_device("auto").info(), tmp_path, "auto")
    device = environment.device
    roof = samples.ceiling(device=device.name, backend=device.backend)
    roofs = samples.ceilings_record(
        environment=environment, ceilings=(roof,), verdict=Verdict(level="clean", findings=())
    )
    filed(tmp_path / "records", roofs)
    printed = run(
        *("measure_and_place", *SMALL),
        *("--records", tmp_path / "records", "--out", tmp_path / "figures"),
    )
    assert "batch_normed fp32 batch 2: " in printed
    assert "of the roof, bound: " in printed
    assert str(tmp_path / "figures" / "roofline.png") in printed
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == [
        "roofline.png",
        "roofline.svg",
    ]
    assert len(read_records(tmp_path / "records")) == 2


def test_pull_and_plot(tmp_path, embedded):
    records = tmp_path / "records"
    config = RunConfig(campaign="example")
    for record in (samples.run_record(config), samples.ceilings_record()):
        log_record(filed(records, record)[1], records)
    printed = run("pull_and_plot", "--campaign", "example", "--out", tmp_path / "figures")
    assert "resnet18" in printed
    assert "not placed" not in printed
    assert "ok" in (tmp_path / "figures" / "example.csv").read_text()
    assert (tmp_path / "figures" / "example.png").stat().st_size > 1000


#: Pages whose Python is run below, and those that hold a fragment, with the reason why it is not.
RUN = {"README.md", "docs/report.md", "docs/python.md"}
NOT_RUN = {
    "docs/import.md": "a plug-in for another command: tests/tracking/importing",
    "docs/profile.md": "the loop of somebody's own training stands in it as `...`",
    "docs/models-and-data.md": "a worker runs its step: tests/bench/launcher/test_launch.py",
}


def test_every_page_with_python_is_run_or_has_a_reason_not_to_be():
    pages = (path.relative_to(PROJECT).as_posix() for path in PROJECT.glob("docs/**/*.md"))
    with_python = {page for page in (*pages, "README.md") if blocks_of(page)}
    assert with_python == RUN | NOT_RUN.keys()


def test_the_python_of_the_page_on_analysis(tmp_path, embedded, mlproject_command, capsys):
    records = tmp_path / "records"
    roofs, *runs = night("night-1")
    ids = [log_record(filed(records, record)[1], records) for record in (roofs, *runs)]
    names = run_python("docs/report.md", ids[-1])
    of_amp = {i for i, run in zip(ids[1:], runs, strict=True) if run.config.precision == "amp"}
    assert set(names["found"]["run_id"]) == of_amp
    assert set(names["points"]["run_id"]) == set(ids[1:])
    assert sorted(names["best"].index) == [
        ("sample-cpu", "resnet18", "amp-bf16"),
        ("sample-cpu", "resnet18", "fp32"),
    ]
    assert set(names["faster"]["verdict"]) == {"faster"}
    assert "amp-bf16 is 2 times as fast as fp32" in capsys.readouterr().out
    assert len(names["runs"]) == len(runs)
    assert (tmp_path / "roofline.png").stat().st_size > 1000


def test_the_python_of_the_readme_and_of_the_page_on_python(
    tmp_path, embedded, mlproject_command, monkeypatch
):
    record = samples.run_record(verdict=Verdict(level="clean", findings=()))
    roofs = filed(tmp_path / "records", samples.ceilings_record())[1]
    measured = filed(tmp_path / "records", record)[1]
    monkeypatch.setattr("bench.launcher.measurement.measure", lambda config: measured)
    monkeypatch.setattr("bench.launcher.measurement.measure_roofs", lambda if_missing: roofs)
    tracked = run_python("docs/python.md")["run_id"]
    assert (tmp_path / "figures" / "roofline.png").stat().st_size > 1000
    assert list(run_python("README.md")["table"]["run_id"]) == [tracked]
    assert (tmp_path / "roofline.png").stat().st_size > 1000


@pytest.mark.long
def test_compare_settings(tmp_path, mlproject_command):
    printed = run("compare_settings", *SMALL, "--repeats=2", "--records", tmp_path)
    sides = [line.split()[:2] for line in printed.splitlines() if "images/s" in line]
    a, b = ["A", "channels_last=false:"], ["B", "channels_last=true:"]
    assert sides == [a, b, b, a]
    assert "B over A: " in printed
    assert " to " in printed.splitlines()[-1]
    measured = [record for record in read_records(tmp_path) if isinstance(record, RunRecord)]
    assert [record.config.repeat for record in measured] == [1, 1, 2, 2]


def test_the_example_records_of_both_schemas_make_a_report(mlproject_command):
    report = ("report", "--records", PROJECT / "examples" / "records", "--no-log", "--out", "out")
    code, printed, _ = mlproject_command(*report)
    assert code == 0
    assert printed.count("images/s, bound") == 3
    assert "profile of amd-epyc (2) resnet18" in printed
    assert (mlproject_command.folder / "out" / "report.html").is_file()


def test_the_bare_loop_trains_images_and_has_a_loss_of_tokens(monkeypatch):
    options = ["--batch-size", "1", "--warmup-iters", "1", "--iters", "1"]
    program = PROJECT / "benchmarks" / "bare_loop.py"
    command = [sys.executable, program, "--arch", "squeezenet1_1", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["samples_per_s"] > 0

    import torch
    import transformers

    tiny = partial(transformers.GPT2Config, n_layer=1, n_embd=8, n_head=1, vocab_size=16)
    monkeypatch.setattr("transformers.CONFIG_MAPPING", {"tiny": tiny})
    model, loss_of = runpy.run_path(program)["tokens"]("tiny", 1, 8, torch.device("cpu"))
    loss_of().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
