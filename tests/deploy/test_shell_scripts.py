"""shellcheck's opinion of every shell script, those inside YAML files too."""

import sys
from pathlib import Path

import pytest
import yaml
from programs import complaints

PROJECT = Path(__file__).resolve().parent.parent.parent
SCRIPTS = {
    path.relative_to(PROJECT).as_posix(): path.read_text("utf-8")
    for path in [
        *PROJECT.glob("deploy/*.sh"),
        PROJECT / ".ci/run",
    ]
}
TASK = yaml.safe_load((PROJECT / "deploy" / "skypilot.yaml").read_text("utf-8"))
SCRIPTS |= {f"skypilot {part}": f"#!/bin/bash\n{TASK[part]}" for part in ("setup", "run")}


def opinion(text):
    # the variables of a SkyPilot task come from its `envs`, which shellcheck cannot see
    return complaints("shellcheck", "--shell=bash", "--exclude=SC2154", text=text)


def test_every_script_is_clean_where_shellcheck_would_find_something():
    assert "SC2086" in opinion("#!/bin/bash\nrm $1\n")
    for name, text in SCRIPTS.items():
        assert opinion(text) == "", name


@pytest.mark.skipif(sys.platform == "win32", reason="Windows keeps no such permission")
def test_every_script_can_be_started():
    for name in filter(lambda name: "/" in name, SCRIPTS):
        assert (PROJECT / name).stat().st_mode & 0o111, name
        assert SCRIPTS[name].startswith("#!/usr/bin/env bash\n"), name
