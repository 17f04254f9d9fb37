"""The kit for machines without a network: what it holds, and its set-up on a torch that is there.

A kit is this project with the packages that measuring needs, unpacked. `kit.json` at its root says
for which Python it was made; `python3 -m bootstrap` in a folder that has one comes here.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import re
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from bootstrap.installer import Place, Runner, SetupError

KIT = "kit.json"
PACKAGES = "packages"

#: What measuring needs; the versions are those of requirements.txt.
CARRIED = (
    "click",
    "filelock",
    "msgspec",
    "nvidia-ml-py",
    "packaging",
    "psutil",
    "pyarrow",
    "pydantic",
    "pyyaml",
    "rich",
    "simplejpeg",
    "tomli; python_version < '3.11'",
    "typing-extensions",
)
#: Where torch and torchvision are, so are what they need themselves.
THERE = ("torch", "torchvision", "numpy", "pillow")
#: What tracks, tunes, compares and reports, at home; it would make the kit four times as large.
LEFT_OUT = (
    "jinja2",
    "markdown-it-py",
    "markupsafe",
    "matplotlib",
    "mlflow",
    "pandas",
    "plotly",
    "requests",
    "scipy",
    "sqlalchemy",
    "uv",
)
OLDEST_TORCH = (2, 11)

#: Tried at the end: what a worker imports first.
_IMPORTS = "import click, psutil, pyarrow, pydantic, simplejpeg, torchvision, torch"
_FOUND = "print('cuda: ' + torch.cuda.get_device_name() if torch.cuda.is_available() else 'cpu')"


@dataclass(frozen=True)
class Kit:
    """The contents of `kit.json`."""

    python_version: str  # such as 3.12
    machine: str  # such as x86_64, as platform.machine() says it
    git_commit: str | None
    git_dirty: bool | None
    code_id: str  # of the folder `bench` as it was packed
    left_out: tuple[str, ...] = LEFT_OUT


def read_kit(root: Path) -> Kit | None:
    """The kit that is unpacked at `root`; None where it is a clone."""
    try:
        return Kit(**json.loads((root / KIT).read_text("utf-8")))
    except FileNotFoundError:
        return None


def set_up_kit(kit: Kit, place: Place, lock: int) -> str:
    """Make `.venv`, which has the kit's packages before those of this Python; its torch and device.

    Raises `SetupError` for another Python than the kit's, and for a torch that is absent or old.
    """
    _check_python(kit)
    torch = _check_torch()
    place.empty()
    runner = Runner(place, lock)
    runner.run(
        [sys.executable, "-m", "venv", "--without-pip", place.folder],
        f"{sys.executable} could not make an environment in {place.folder} (see above)",
    )
    python = place.script("python")
    paths = [place.root, place.root / PACKAGES, *_of_this_python()]
    lines = "".join(f"{path}\n" for path in paths)
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site_packages = runner.run([python, "-c", where], f"{python} does not start (see above)")
    Path(site_packages.strip(), "mlproject-kit.pth").write_text(lines, "utf-8")
    command = place.script("mlproject")
    # by its file: `-m` would put the folder that one stands in before the packages
    command.write_text(
        f'#!/bin/sh\nexec "$(dirname "$0")/python" "{place.root / "mlproject.py"}" "$@"\n', "utf-8"
    )
    command.chmod(0o755)
    folders = [place.root / name for name in (PACKAGES, "bench", "campaigns", "commands")]
    runner.run([python, "-m", "compileall", "-qq", "-j", "0", *folders], "", check=False)
    device = runner.run(
        [python, "-c", f"{_IMPORTS}; {_FOUND}"],
        "the kit's packages do not work with this Python's (see above)",
    )
    return f"torch {torch} of {sys.executable}, {device.strip()}"


def _check_python(kit: Kit) -> None:
    this = ".".join(map(str, sys.version_info[:2]))
    if (this, platform.machine()) != (kit.python_version, kit.machine):
        raise SetupError(
            f"this kit is for Python {kit.python_version} on {kit.machine}, and {sys.executable} "
            f"is Python {this} on {platform.machine()}: start it with python{kit.python_version}, "
            f"or pack another: make kit PYTHON_VERSION={this} MACHINE={platform.machine()}"
        )


def _check_torch() -> str:
    versions = {}
    for name in THERE:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            raise SetupError(
                f"{sys.executable} has no {name}: start the set-up with the Python that has torch "
                "and torchvision, such as that of an activated environment"
            ) from None
    torch = versions["torch"]
    found = re.match(r"(\d+)\.(\d+)", torch)
    if found is None or (int(found[1]), int(found[2])) < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        raise SetupError(f"torch {torch} of {sys.executable} is too old: {oldest} is the oldest")
    return torch


def _of_this_python() -> list[str]:
    """Where this Python finds packages, in its order: also those of an environment it belongs to.

    Its standard library is the new environment's own; this project is named before.
    """
    standard = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")]
    left_out = {*standard, *(path / "lib-dynload" for path in standard), Path.cwd()}
    return [path for path in sys.path if Path(path).is_dir() and Path(path) not in left_out]
