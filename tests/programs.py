"""Programs for tests: of wheels, and scripts in the place of others; and a copy of the project."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def installed_tool(name):
    """The program's path, beside this Python or on PATH; skips where its wheel has none."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    found = shutil.which(name, path=path)
    if found is None:
        pytest.skip(f"no {name} on this kind of machine")
    return found


def complaints(linter, *options, text):
    """What hadolint or shellcheck says of a text."""
    command = [installed_tool(linter), *options, "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True).stdout


def program(folder, name, text):
    """Write an executable, a bash script unless its first line says otherwise."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(text if text.startswith("#!") else f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)
    return path


def copy_project(folder):
    """Copy this checkout as it is now, committed or not, to `folder`, and return that."""
    project = Path(__file__).resolve().parent.parent
    git = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(git, cwd=project, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (project / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(project / name, folder / name)
    return folder
