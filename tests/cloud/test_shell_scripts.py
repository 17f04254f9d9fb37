"""shellcheck's opinion of every shell script, those inside YAML files too."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tools_of_wheels import installed_tool

PROJECT = Path(__file__).resolve().parent.parent.parent
SCRIPTS = {
    path.relative_to(PROJECT).as_posix(): path.read_text("utf-8")
    for path in [
        *PROJECT.glob("cloud/*.sh"),
        *PROJECT.glob("tracking/**/*.sh"),
        PROJECT / ".ci/run",
    ]
}
TASK = yaml.safe_load((PROJECT / "cloud" / "skypilot.yaml").read_text("utf-8"))
SCRIPTS |= {f"skypilot {part}": f"#!/bin/bash\n{TASK[part]}" for part in ("setup", "run")}


@pytest.fixture(scope="module")
def shellcheck():
    return installed_tool("shellcheck")


def opinion(shellcheck, text):
    # the variables of a SkyPilot task come from its `envs`, which shellcheck cannot see
    command = [shellcheck, "--shell=bash", "--exclude=SC2154", "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True).stdout


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_is_clean(shellcheck, name):
    assert opinion(shellcheck, SCRIPTS[name]) == ""


def test_shellcheck_does_find_something(shellcheck):
    assert "SC2086" in opinion(shellcheck, "#!/bin/bash\nrm $1\n")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows keeps no such permission")
@pytest.mark.parametrize("name", [name for name in SCRIPTS if "/" in name])
def test_script_can_be_started(name):
    assert (PROJECT / name).stat().st_mode & 0o111
    assert SCRIPTS[name].startswith("#!/usr/bin/env bash\n")
