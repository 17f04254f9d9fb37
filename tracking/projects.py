"""The environment of the literal `mlflow run .`, made ready so that it needs no conda, no pyenv.

MLflow names the folder by a hash of python_env.yaml, its requirements and the running Python's
version, and uses a folder of that name as it finds it, whole or not (`_create_virtualenv` in
mlflow/utils/virtualenv.py). So it is built beside that name and renamed when it is whole.
"""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.errors import UserError

#: In the environment's folder: every import below worked in it, and its packages are compiled.
WHOLE = ".mlproject-compiled"

_IMPORTS = "import click, mlflow, pydantic, torch, torchvision"


def project_environment(project: Path) -> Path:
    """The folder in which `mlflow run` of this Python looks for the environment of `project`."""
    environment: Any = importlib.import_module("mlflow.utils.environment")
    virtualenv: Any = importlib.import_module("mlflow.utils.virtualenv")
    spec = environment._PythonEnv.from_yaml(project / "python_env.yaml")
    root: str = virtualenv._get_mlflow_virtualenv_root()
    name: str = virtualenv._get_virtualenv_name(spec, project)
    return Path(root) / name


def is_whole(folder: Path) -> bool:
    """Whether `folder` holds an environment that was seen to work, with its Python."""
    return (folder / WHOLE).exists() and _python(folder).exists()


def make_environment(project: Path) -> Path:
    """Build the environment of `project` unless it is whole; its folder.

    Raises `UserError` where it cannot be written or its packages cannot be installed.
    """
    from filelock import FileLock

    folder = project_environment(project)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_suffix(".lock")):
            if not is_whole(folder):
                _remake(folder, project / "requirements.txt")
    except OSError as error:
        raise UserError(
            f"cannot write {folder.parent} ({error.strerror}): "
            "free some space, or set MLFLOW_ENV_ROOT to a folder that you can write"
        ) from None
    return folder


def _remake(folder: Path, requirements: Path) -> None:
    if folder.exists() and _imports(folder):  # MLflow built this one itself, to its end
        _compile(folder)
        (folder / WHOLE).touch()
        return
    for unfinished in folder.parent.glob(f"{folder.name}.new-*"):
        shutil.rmtree(unfinished)
    print(f"set-up: making {folder} for `mlflow run`", file=sys.stderr, flush=True)
    new = folder.with_name(f"{folder.name}.new-{os.getpid()}")
    try:
        _install(new, requirements)
        _compile(new)
        (new / WHOLE).touch()
        if folder.exists():
            shutil.rmtree(folder)
        new.rename(folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _install(new: Path, requirements: Path) -> None:
    from uv import find_uv_bin

    uv = find_uv_bin()
    base_python = getattr(sys, "_base_executable", None) or sys.executable
    for command in (
        # relocatable: the folder is renamed afterwards
        [uv, "venv", "--quiet", "--relocatable", "--python", base_python, str(new)],
        [uv, "pip", "install", "--quiet", "--python", str(_python(new)), "-r", str(requirements)],
    ):
        done = subprocess.run(command, check=False)
        if done.returncode:
            raise UserError(
                f"`{' '.join(command)}` ended with exit code {done.returncode} (see above): "
                "check network and disk space, then run `make setup` again"
            )
    if not _imports(new):
        raise UserError(
            f"the packages of {requirements} do not import (see above): run `make setup` again"
        )


def _compile(folder: Path) -> None:
    """Bytecode of all packages, also where PYTHONDONTWRITEBYTECODE keeps imports from writing any.

    Some packages ship templates that are not Python, so failures are not errors.
    """
    print("set-up: compiling its packages to bytecode, once", file=sys.stderr, flush=True)
    command = [str(_python(folder)), "-m", "compileall", "-qq", "-j", "0", str(folder)]
    subprocess.run(command, check=False)


def _imports(folder: Path) -> bool:
    """Whether the packages that a run needs can be imported in the environment.

    Their messages are shown only if they cannot.
    """
    command = [str(_python(folder)), "-c", _IMPORTS]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return False
    if done.returncode:
        sys.stderr.write(done.stderr)
    return done.returncode == 0


def _python(folder: Path) -> Path:
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def main() -> int:
    """Make this project's environment and print the file that says it is whole.

    The embedded store too, which two first `mlflow run` at once, or one cut short, would break.
    """
    from tracking.store import TrackingError, is_unmade, open_client, server_errors, settings_uri

    try:
        whole = make_environment(Path(__file__).resolve().parent.parent) / WHOLE
        if is_unmade(settings_uri()):
            with server_errors():
                open_client()
        print(whole)
    except (UserError, TrackingError) as error:
        print(f"set-up: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
