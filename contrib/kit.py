"""The kit for machines without a network: `python -m contrib.kit` packs one, in a clone.

A kit is this project with the packages that measuring needs, unpacked. `kit.json` at its root says
for which Python it was made; `python3 -m bootstrap` in a folder that has one sets it up on the
torch that is there.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from bootstrap.setup import ROOT, Place, SetupError, say

KIT = "kit.json"
PACKAGES = "packages"
NAME = "mlproject-kit"

#: Where torch and torchvision are, so are what they need themselves.
THERE = ("torch", "torchvision", "numpy", "pillow")
OLDEST_TORCH = (2, 11)
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
)

#: Asked in the clone: what `kit.json` keeps of it, and the packages that are carried.
_FACTS = """
import importlib.metadata, json, sys
from packaging.requirements import Requirement
from bench.machine.repository import code_id, repository_facts
asked = map(Requirement, importlib.metadata.requires("mlproject"))
carried = [r.name for r in asked if "extra" not in str(r.marker) and r.name not in sys.argv]
facts = {**repository_facts(), "code_id": code_id()}
print(json.dumps([facts, carried], default=lambda unknown: None))
"""
#: Tried at the end of a set-up: what a worker imports first.
_WORKS = (
    "import click, psutil, pyarrow, pydantic, simplejpeg, torchvision, torch; "
    "print('cuda: ' + torch.cuda.get_device_name() if torch.cuda.is_available() else 'cpu')"
)


def set_up(place: Place, dev: bool) -> None:
    """Make `.venv`, which has the kit's packages before those of this Python; `dev` is not there.

    Raises `SetupError` for another Python than the kit's, and for a torch that is absent or old.
    """
    torch = _check(json.loads((place.root / KIT).read_text("utf-8")))
    place.empty()
    place.run(
        *(sys.executable, "-m", "venv", "--without-pip", place.venv),
        failure=f"{sys.executable} could not make an environment in {place.venv}",
    )
    python = place.script("python")
    where = (python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))")
    site_packages = place.run(*where, failure=f"{python} does not start").strip()
    # this Python's own packages come last: also those of an environment that it belongs to
    standard = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")]
    passed = {*standard, *(path / "lib-dynload" for path in standard), Path.cwd()}
    there = [path for path in map(Path, sys.path) if path.is_dir() and path not in passed]
    lines = "".join(f"{path}\n" for path in (place.root, place.root / PACKAGES, *there))
    Path(site_packages, "mlproject-kit.pth").write_text(lines, "utf-8")
    command = place.script("mlproject")
    # by its file: `-m` would put the folder that one stands in before the packages
    command.write_text(
        f'#!/bin/sh\nexec "$(dirname "$0")/python" "{place.root / "mlproject.py"}" "$@"\n', "utf-8"
    )
    command.chmod(0o755)
    place.run(python, "-m", "compileall", "-qq", "-j", "0", PACKAGES, "bench", "commands")
    device = place.run(
        python, "-c", _WORKS, failure="the kit's packages do not work with this Python's"
    )
    say(
        f"done, on torch {torch} of {sys.executable}, {device.strip()}: . {place.venv}/bin/activate"
    )


def _check(kit: dict[str, Any]) -> str:
    this, machine = ".".join(map(str, sys.version_info[:2])), platform.machine()
    if (this, machine) != (kit["python_version"], kit["machine"]):
        raise SetupError(
            f"this kit is for Python {kit['python_version']} on {kit['machine']}, and "
            f"{sys.executable} is Python {this} on {machine}: start it with another, or pack "
            f"another kit: make kit PYTHON_VERSION={this} MACHINE={machine}"
        )
    for name in THERE:
        try:
            importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            raise SetupError(
                f"{sys.executable} has no {name}: start the set-up with the Python that has torch"
            ) from None
    torch = importlib.metadata.version("torch")
    if tuple(map(int, re.findall(r"\d+", torch)[:2])) < OLDEST_TORCH:
        raise SetupError(f"torch {torch} of {sys.executable} is too old: 2.11 is the oldest")
    return torch


def pack(place: Place, python_version: str, machine: str, out: Path) -> Path:
    """Write a kit for that Python and processor into the folder `out`; the file.

    Raises `SetupError` where this is no git work tree, and where a package has no wheel for it.
    """
    asked = _run(place.script("python"), "-c", _FACTS, *LEFT_OUT, *THERE)
    facts, carried = json.loads(asked)
    if facts["git_commit"] is None:
        raise SetupError(f"{place.root} is no git work tree, so its own files are not known")
    out.mkdir(parents=True, exist_ok=True)
    file = out / f"{NAME}-python{python_version}-{machine}.tar.gz"
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, NAME)
        others = [f":!{name}" for name in ("docs", "examples", "deploy", "tests", "README.md")]
        for name in _run("git", "ls-files", "-z", "--", *others).split("\0")[:-1]:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(place.root / name, folder / name)
        shutil.copy(place.root / "docs" / "install.md", folder / "README.md")
        kit = {"python_version": python_version, "machine": machine, "left_out": LEFT_OUT, **facts}
        (folder / KIT).write_text(json.dumps(kit, indent=1), "utf-8")
        # the oldest glibc that torch's wheels run on
        target = ["--python-platform", f"{machine}-manylinux_2_28", "--only-binary", ":all:"]
        target += ["--python-version", python_version, "--constraint", "requirements.txt"]
        target += ["--link-mode", "copy", "--target", str(folder / PACKAGES)]
        _run(place.script("uv"), "pip", "install", "--quiet", *target, *carried)
        for numpy in (folder / PACKAGES).glob("numpy*"):  # simplejpeg asks for it
            shutil.rmtree(numpy)
        partial = file.with_suffix(".partial")
        with tarfile.open(partial, "w:gz") as tar:
            tar.add(folder, NAME)
        partial.replace(file)
    return file


def _run(*command: str | Path) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.stderr.write(done.stderr)
        raise SetupError(f"{command[0]} failed with exit code {done.returncode} (see above)")
    return done.stdout


def main(arguments: list[str]) -> int:
    """Exit code: 0 the kit is written, 1 it is not and a line says why."""
    parser = argparse.ArgumentParser(prog="python -m contrib.kit", description="Pack a kit.")
    parser.add_argument("--python-version", default="3.12")
    parser.add_argument("--machine", default="x86_64", choices=["x86_64", "aarch64"])
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    given = parser.parse_args(arguments)
    # packages are made for the first two numbers of a version
    version = ".".join(given.python_version.split(".")[:2])
    try:
        kit = pack(Place(ROOT, -1), version, given.machine, given.out)
    except (SetupError, OSError) as error:
        print(f"kit: {error}", file=sys.stderr)
        return 1
    print(f"{kit} ({kit.stat().st_size / 1e6:.1f} MB)")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
