"""The container image and the shell scripts, as far as they can be looked at and not run."""

import re
import sys
from pathlib import Path

import pytest
import yaml
from programs import complaints

PROJECT = Path(__file__).resolve().parent.parent.parent
DEPLOY = PROJECT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text("utf-8")
FINDINGS = sorted((PROJECT / "findings").glob("*.sh"))
SCRIPTS = [*DEPLOY.glob("*.sh"), PROJECT / ".ci" / "run", *FINDINGS]


def instructions(name):
    whole = re.sub(r"\\\n", " ", DOCKERFILE)
    return re.findall(rf"^{name} +(.*)$", whole, re.MULTILINE)


def test_hadolint_is_content_and_would_find_something():
    assert complaints("hadolint", "--no-color", text=DOCKERFILE) == ""
    assert "DL3007" in complaints("hadolint", "--no-color", text="FROM python:latest\n")


def test_the_image_is_pinned_installs_what_set_up_installs_and_measures_as_nobody_in_particular():
    [base] = instructions("FROM")
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-[a-z]+", base)
    assert instructions("USER") == ["1000"]
    assert instructions("ENTRYPOINT") == ['["mlproject"]']
    [packages, project] = [line for line in instructions("RUN") if "pip install" in line]
    assert "--requirement requirements.txt" in packages
    for option in ("--no-deps", "--no-build-isolation", "--editable ."):
        assert option in project
    assert not re.search(r"(?i)password|token|secret|://", DOCKERFILE)


def dockers_form(pattern):
    """A line of .gitignore as .dockerignore has it: Docker matches from the root only."""
    anchored = pattern.startswith("/")
    return pattern.strip("/") if anchored else f"**/{pattern.strip('/')}"


def test_what_git_ignores_stays_out_and_everything_else_goes_in():
    """Else every record of the image would say that the project was changed."""
    lines = (DEPLOY / "Dockerfile.dockerignore").read_text("utf-8").splitlines()
    ignored = {line for line in lines if not line.startswith("#")}
    assert ignored == {dockers_form(line) for line in (PROJECT / ".gitignore").read_text().split()}


def opinion(text):
    # the variables of a SkyPilot task come from its `envs`, which shellcheck cannot see
    return complaints("shellcheck", "--shell=bash", "--exclude=SC2154", text=text)


def test_every_finding_has_the_form_that_their_page_shows():
    page = (PROJECT / "findings" / "README.md").read_text("utf-8")
    [form] = re.findall(r"^```bash\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert opinion(form) == ""
    for text in [form, *(path.read_text("utf-8") for path in FINDINGS)]:
        head = text.split("\nset -euo pipefail\n")[0]
        entries = re.findall(r"^# (package|version|expected|guess|seen): \S", head, re.MULTILINE)
        assert entries == ["package", "version", "expected", "guess", "seen"], head


def test_every_script_is_clean_where_shellcheck_would_find_something():
    assert "SC2086" in opinion("#!/bin/bash\nrm $1\n")
    task = yaml.safe_load((DEPLOY / "skypilot.yaml").read_text("utf-8"))
    inside = [f"#!/bin/bash\n{task[part]}" for part in ("setup", "run")]
    for text in [*inside, *(path.read_text("utf-8") for path in SCRIPTS)]:
        assert opinion(text) == "", text


@pytest.mark.skipif(sys.platform == "win32", reason="Windows keeps no such permission")
@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_every_script_can_be_started(path):
    assert path.stat().st_mode & 0o111
    assert path.read_text("utf-8").startswith("#!/usr/bin/env bash\n")
