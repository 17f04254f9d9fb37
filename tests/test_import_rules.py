"""The import rules of pyproject.toml: each is broken once, in a copy, and must be reported."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT = Path(__file__).resolve().parent.parent
LINT = Path(sys.executable).with_name("lint-imports")
PACKAGES = ("analysis", "bench", "campaigns", "commands", "tracking")

#: An import that each contract forbids: the module that gets it, and the line.
OFFENCES = {
    "the data goes one way": ("bench.config", "import campaigns"),
    "bench is built in floors": ("bench.launcher", "import bench.worker.attempt"),
    "a report is made of comparisons, findings and figures": (
        "analysis.comparison",
        "import analysis.report",
    ),
    "no circles": ("analysis.roofs", "import analysis.runs"),
    "the core does without contrib and the server": ("tracking", "import contrib"),
    "the command line is the top": ("commands", "import mlproject"),
    "mlflow only in tracking": ("analysis", "import mlflow"),
    "torch only where steps are made and run": ("bench.records", "import torch"),
    "only a launcher starts a worker": ("campaigns", "import bench.worker.attempt"),
}


def contracts():
    settings = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))
    return settings["tool"]["importlinter"]["contracts"]


@pytest.fixture
def copy(tmp_path):
    """The packages with their rules, for a test to break."""
    for name in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__", "*.html", "*.json")
        shutil.copytree(PROJECT / name, tmp_path / name, ignore=ignored)
    for name in ("pyproject.toml", "mlproject.py"):
        shutil.copy(PROJECT / name, tmp_path)
    return tmp_path


def offend(folder, module, line):
    place = folder / module.replace(".", "/")
    path = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    with path.open("a", encoding="utf-8") as file:
        file.write(f"\n{line}\n")


@pytest.mark.slow
def test_every_rule_and_every_package_without_torch_is_reported_where_it_is_broken(copy):
    assert {contract["name"] for contract in contracts()} == OFFENCES.keys()
    for module, line in OFFENCES.values():
        offend(copy, module, line)
    [without_torch] = [c for c in contracts() if "torch" in c.get("forbidden_modules", ())]
    modules = without_torch["source_modules"]
    for module in modules:
        offend(copy, module, "import torch")
    output = subprocess.run(
        [LINT, "--no-cache"], cwd=copy, capture_output=True, text=True, env={"PYTHONPATH": "."}
    ).stdout
    assert (
        set(re.findall(r"^(.+?) BROKEN(?: \(.+\))?$", output, re.MULTILINE)) == OFFENCES.keys()
    ), output
    assert [m for m in modules if f"{m} is not allowed to import torch:" not in output] == []
