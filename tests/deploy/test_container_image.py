"""The container image as far as it can be looked at without building it."""

import re
from pathlib import Path

from programs import complaints

PROJECT = Path(__file__).resolve().parent.parent.parent
DOCKERFILE = (PROJECT / "deploy" / "Dockerfile").read_text("utf-8")


def instructions(name):
    whole = re.sub(r"\\\n", " ", DOCKERFILE)
    return re.findall(rf"^{name} +(.*)$", whole, re.MULTILINE)


def test_hadolint_is_content_and_would_find_something():
    assert complaints("hadolint", "--no-color", text=DOCKERFILE) == ""
    assert "DL3007" in complaints("hadolint", "--no-color", text="FROM python:latest\n")


def test_the_base_is_pinned_to_a_patch_version():
    [base] = instructions("FROM")
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-[a-z]+", base)


def test_it_measures_as_nobody_in_particular():
    assert instructions("USER") == ["1000"]
    assert instructions("ENTRYPOINT") == ['["mlproject"]']


def test_it_installs_what_set_up_installs():
    [packages, project] = [line for line in instructions("RUN") if "pip install" in line]
    assert "--requirement requirements.txt" in packages
    for option in ("--no-deps", "--no-build-isolation", "--editable ."):
        assert option in project


def dockers_form(pattern):
    """A line of .gitignore as .dockerignore has it: Docker matches from the root only."""
    anchored = pattern.startswith("/")
    return pattern.strip("/") if anchored else f"**/{pattern.strip('/')}"


def test_what_git_ignores_stays_out_and_everything_else_goes_in():
    """Else every record of the image would say that the project was changed."""
    lines = (PROJECT / "deploy" / "Dockerfile.dockerignore").read_text("utf-8").splitlines()
    ignored = {line for line in lines if not line.startswith("#")}
    assert ignored == {dockers_form(line) for line in (PROJECT / ".gitignore").read_text().split()}


def test_no_secret_and_no_address_is_in_it():
    assert not re.search(r"(?i)password|token|secret|://", DOCKERFILE)
