"""The workflow for GitHub Actions that users copy: its steps, as a runner runs them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from programs import program
from servers import mlflow_server

PROJECT = Path(__file__).resolve().parent.parent.parent
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
