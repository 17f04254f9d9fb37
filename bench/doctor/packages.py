"""The Python interpreter and the packages, against what the project asks for."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from bench.doctor.check import Check, ok
from bench.machine.repository import TREE

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_INSTALL = "install them: uv pip install -r requirements.txt (or run make setup)"


def package_checks(tree: Path = TREE) -> Iterator[Check]:
    """Compare Python and every direct dependency with `requires-python` and `dependencies`."""
    python_floor, requirements = _asked_for(tree)
    version = platform.python_version()
    if SpecifierSet(python_floor).contains(version, prereleases=True):
        yield ok("python", f"{version} ({sys.executable})")
    else:
        yield Check(
            "python",
            "missing",
            f"{version} does not meet {python_floor}",
            "make the environment with a newer one: make setup PYTHON=python3.12",
        )
    faults = [fault for requirement in requirements if (fault := _fault(requirement))]
    if faults:
        yield Check("packages", "missing", "; ".join(faults), _INSTALL)
    else:
        yield ok("packages", f"all {len(requirements)} meet the project's requirements")


def _asked_for(tree: Path) -> tuple[str, list[Requirement]]:
    """From pyproject.toml, which an editable install's metadata may lag behind, or metadata."""
    pyproject = tree / "pyproject.toml"
    if pyproject.is_file():
        project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
        python_floor, lines = project["requires-python"], project["dependencies"]
    else:
        distribution = importlib.metadata.distribution("mlproject")
        python_floor = distribution.metadata["Requires-Python"]
        lines = [line for line in distribution.requires or () if "extra ==" not in line]
    requirements = [Requirement(line) for line in lines]
    return python_floor, [one for one in requirements if not one.marker or one.marker.evaluate()]


def _fault(requirement: Requirement) -> str | None:
    try:
        version = importlib.metadata.version(requirement.name)
    except importlib.metadata.PackageNotFoundError:
        return f"{requirement.name} is not installed"
    if requirement.specifier.contains(version, prereleases=True):
        return None
    return f"{requirement.name} {version} does not meet {requirement.specifier}"
