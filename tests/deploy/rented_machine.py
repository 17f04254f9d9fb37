"""Stand-ins for a rented machine's programs, for the shell scripts that set one up."""

import os
import shutil
import subprocess
from pathlib import Path

from programs import program

PROJECT = Path(__file__).resolve().parent.parent.parent

#: Notes what it is asked, with what it needs of the environment; answers from files in $FACTS.
MLPROJECT = """#!/bin/bash
echo "$*" >>"$FACTS/asked"
echo "uri=${MLFLOW_TRACKING_URI-none} user=${MLFLOW_TRACKING_USERNAME-none}" \\
    "password=${MLFLOW_TRACKING_PASSWORD-none}" >"$FACTS/credentials"
code="$(cat "$FACTS/$1-code" 2>/dev/null || echo 0)"
record() { mkdir -p "$MLPROJECT_RECORDS/r1"; echo "$1" >"$MLPROJECT_RECORDS/r1/record.json"; }
if [[ "$1" == sweep ]]; then
    if [[ -p "$FACTS/started" ]]; then
        trap 'record interrupted; exit 130' TERM
        echo started >"$FACTS/started"
        read -r _ <>"$FACTS/never"
    fi
    record measured
fi
exit "$code"
"""
#: PyTorch sees a GPU unless $FACTS says otherwise.
PYTHON = '#!/bin/bash\n[[ ! -e "$FACTS/no-gpu" ]]\n'


def make_project(folder):
    """A clone whose measuring script is the real one and whose set-up puts stand-ins in place."""
    for name, text in (("mlproject", MLPROJECT), ("python", PYTHON)):
        program(folder / "stand-ins", name, text)
    (folder / "deploy").mkdir()
    shutil.copy(PROJECT / "deploy" / "measure.sh", folder / "deploy")
    (folder / "Makefile").write_text(
        "setup:\n\t@test ! -e $$FACTS/no-set-up\n\t@mkdir -p .venv && cp -r stand-ins .venv/bin\n"
    )
    return folder


def commit(folder):
    """Commit everything in the folder to the branch `trunk` of its git repository."""
    author = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    for words in (
        ("init", "--quiet", "--initial-branch", "trunk"),
        ("add", "--force", "."),
        (*author, "commit", "--quiet", "-m", "all"),
    ):
        subprocess.run(["git", "-C", folder, *words], check=True)


def asked(facts):
    """What the command line was asked, one line per call."""
    path = facts / "asked"
    return path.read_text().splitlines() if path.exists() else []


def hang_in_sweep(facts):
    """Let the next sweep last until it is ended; the pipe tells when it has started."""
    os.mkfifo(facts / "started")
    os.mkfifo(facts / "never")
    return facts / "started"
