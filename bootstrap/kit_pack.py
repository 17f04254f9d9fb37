"""`python -m bootstrap.kit_pack`, which `make kit` runs: this project and packages, in one file."""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import asdict
from pathlib import Path

from bootstrap.installer import Place, SetupError
from bootstrap.kit import CARRIED, KIT, PACKAGES, THERE, Kit
from bootstrap.steps import ROOT

#: What of the project is packed; docs/install.md becomes its README.
FOLDERS = ("analysis", "bench", "benchmarks", "bootstrap", "campaigns", "commands", "matrices")
FILES = ("LICENSE", "mlproject.py", "pyproject.toml", "tracking")
NAME = "mlproject-kit"

_FACTS = """
import json
from bench.machine.repository import code_id, repository_facts
print(json.dumps({**repository_facts().values, "code_id": code_id()}))
"""


def main(arguments: list[str]) -> int:
    """Exit code: 0 the kit is written, 1 it is not and a line says why."""
    parser = argparse.ArgumentParser(prog="python -m bootstrap.kit_pack", description=__doc__)
    parser.add_argument(
        "--python-version", default="3.12", type=_python_version, help="of the other machine"
    )
    parser.add_argument(
        "--machine", default="x86_64", choices=["x86_64", "aarch64"], help="its processor"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    given = parser.parse_args(arguments)
    try:
        kit = pack(given.python_version, given.machine, given.out)
    except (SetupError, OSError) as error:
        print(f"kit: {error}", file=sys.stderr)
        return 1
    print(f"{kit} ({kit.stat().st_size / 1e6:.1f} MB)")
    return 0


def _python_version(text: str) -> str:
    """`3.12` of `3.12` or `3.12.4`: packages are made for the first two numbers."""
    found = re.fullmatch(r"(3\.\d+)(\.\d+)?", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no version of Python, such as 3.12")
    return found[1]


def pack(python_version: str, machine: str, out: Path) -> Path:
    """Write a kit for that Python and processor into the folder `out`; the file.

    Raises `SetupError` where this is no git work tree, and where a package has no wheel for it.
    """
    place = Place(ROOT)
    facts = json.loads(_run([place.script("python"), "-c", _FACTS]))
    if facts["git_commit"] is None:
        raise SetupError(f"{ROOT} is no git work tree, so its own files are not known: use a clone")
    kit = Kit(python_version, machine, **facts)
    out.mkdir(parents=True, exist_ok=True)
    file = out / f"{NAME}-python{python_version}-{machine}.tar.gz"
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, NAME)
        for name in _run(["git", "ls-files", "-z", *FOLDERS, *FILES]).split("\0")[:-1]:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
        shutil.copy(ROOT / "docs" / "install.md", folder / "README.md")
        (folder / KIT).write_text(json.dumps(asdict(kit), indent=1), "utf-8")
        _packages(kit, place.script("uv"), folder / PACKAGES, Path(scratch))
        partial = file.with_suffix(".partial")
        with tarfile.open(partial, "w:gz") as tar:
            tar.add(folder, NAME)
        partial.replace(file)
    return file


def _packages(kit: Kit, uv: Path, folder: Path, scratch: Path) -> None:
    """Unpack the wheels of what a kit carries, and of what that needs, for the other machine."""
    there = f"{kit.machine}-manylinux_2_28"  # the oldest that torch's wheels run on
    target = ["--python-version", kit.python_version, "--python-platform", there]
    asked, pins = scratch / "asked.txt", scratch / "pins.txt"
    asked.write_text("\n".join(CARRIED), "utf-8")
    compiled: list[str | Path] = [
        uv,
        "pip",
        "compile",
        "--quiet",
        *target,
        "--constraint",
        "requirements.txt",
    ]
    for name in THERE:  # simplejpeg asks for numpy
        compiled += ["--no-emit-package", name]
    _run([*compiled, "--output-file", pins, asked])
    installed: list[str | Path] = [
        uv,
        "pip",
        "install",
        "--quiet",
        *target,
        "--only-binary",
        ":all:",
        "--no-deps",
    ]
    _run([*installed, "--link-mode", "copy", "--target", folder, "-r", pins])


def _run(command: list[str | Path]) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.stderr.write(done.stderr)
        raise SetupError(f"{command[0]} failed with exit code {done.returncode} (see above)")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
