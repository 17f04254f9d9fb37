"""Examples, pages with code, the tour and the workflow run as a user starts them, but smaller."""

import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import samples
import yaml
from click.testing import CliRunner
from programs import program
from servers import mlflow_server
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


# docs/tour.md, typed as it stands: its commands work in their order and print what it shows


TOUR = (PROJECT / "docs" / "tour.md").read_text("utf-8")
STEPS = re.findall(r"```console\n\$ mlproject (.*)\n((?:.*\n)*?)```", TOUR)
#: So that it takes no ten minutes.
QUICK = ("--image-size", "32", "--max-seconds", "1")


@pytest.mark.long
@pytest.mark.usefixtures("embedded")
def test_the_tour_works_as_it_is_written(mlproject_command):
    assert [command.split()[0] for command, _ in STEPS].count("run") == 2
    for command, shown in STEPS:
        words = shlex.split(command.replace("--repeats 3", "--repeats 2"))
        small = QUICK if words[0] in ("run", "profile") else ()
        code, printed, errors = mlproject_command(*words, *small)
        # with so few iterations the second may be the slower one
        assert code in ((0, 1) if words[0] in ("compare", "report") else (0,)), (command, errors)
        facts = {line.split()[0] for line in f"{printed}{errors}".splitlines() if line.strip()}
        named = set(re.findall(r"^  ([a-z_]+) ", shown, re.MULTILINE)) - {"ended_early"}
        assert named <= facts, command


# The workflow for GitHub Actions that users copy: its steps, as a runner runs them


EXAMPLES = PROJECT / "examples" / "ci"
WORKFLOW = yaml.safe_load((EXAMPLES / "training_speed.yml").read_text("utf-8"))
[JOB] = WORKFLOW["jobs"].values()
MATRIX = """
name: gate
defaults: {backend: cpu, image_size: 32, warmup_iters: 1, iters: 4}
blocks:
  - {arch: "their_model:make_model", batch_size: 4}
"""
MODEL = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(3, 1000)

    def forward(self, images):
        if len(images) > MOST:
            raise RuntimeError("the model had enough")
        return self.head(images.mean((2, 3)))

def make_model():
    return Model()
"""


class Runner:
    """GitHub's runner in a folder of its own, on a real tracking server."""

    def __init__(self, folder, server):
        self.folder = folder
        # The comment goes to GitHub; what is kept here is what it was given.
        program(folder / "bin", "gh", 'echo "$@" >> gh.log')
        command = f'exec {sys.executable} {PROJECT / "mlproject.py"} "$@"'
        program(folder / "bin", "mlproject", command)
        (folder / "gate.yaml").write_text(MATRIX)
        self.environment = {
            **os.environ,
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
            "MLFLOW_TRACKING_URI": server,
            "GITHUB_STEP_SUMMARY": str(folder / "summary.md"),
            "GH_TOKEN": "none",
            "REQUEST": "7",
        }

    def run(self, event, commit, most_images=100):
        """The exit code of each step of the job by its name, as far as it ran, and their output."""
        (self.folder / "their_model.py").write_text(MODEL.replace("MOST", str(most_images)))
        codes, printed, failed = {}, "", False
        for step in JOB["steps"]:
            condition = step.get("if", "")
            here = "run" not in step or step["name"] == "Install"  # the project is here
            other = "event_name" in condition and f"'{event}'" not in condition
            if here or other or (failed and "always()" not in condition):
                continue
            done = subprocess.run(
                ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
                cwd=self.folder,
                env={**self.environment, "CAMPAIGN": f"gate-{commit}-1"},
                capture_output=True,
                text=True,
            )
            codes[step["name"]] = done.returncode
            printed += done.stdout + done.stderr
            failed = failed or done.returncode != 0
        return codes, printed


@pytest.mark.long
def test_a_pull_request_passes_and_one_that_crashes_fails(tmp_path):
    """One repeat decides nothing about speed, so this does not depend on this machine's pace."""
    with mlflow_server(tmp_path) as server:
        runner = Runner(tmp_path, server)
        codes, printed = runner.run("push", "main")
        assert codes == {"Measure": 0, "Move the baseline": 0}, printed
        codes, printed = runner.run("pull_request", "same")
        assert codes == {"Measure": 0, "Compare with the baseline": 0, "Comment": 0}, printed
        comment = (tmp_path / "comparison.md").read_text()
        assert comment.startswith("**The gate passes: of 1 configuration 1 undecided**")
        codes, printed = runner.run("pull_request", "crash", most_images=3)
        assert codes == {"Measure": 0, "Compare with the baseline": 1, "Comment": 0}, printed
    comment = (tmp_path / "comparison.md").read_text()
    assert comment.startswith("**The gate fails: 1 crashed**")
    assert "crashed | B has no result: crashed, " in comment
    assert "the model had enough" in comment
    assert (tmp_path / "summary.md").read_text().endswith(comment)
    wanted = "pr comment 7 --edit-last --create-if-none --body-file comparison.md"
    assert (tmp_path / "gh.log").read_text().splitlines() == [wanted, wanted]


@pytest.mark.slow
def test_the_matrix_of_the_gate_is_one(mlproject_command):
    code, out, err = mlproject_command("sweep", EXAMPLES / "gate.yaml", "--dry-run")
    assert (code, err) == (0, "")
    assert "10 runs" in out
