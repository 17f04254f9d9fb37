"""The literal `mlflow run .` uses `.venv`: the folder in which MLflow looks is a link to it.

MLflow names that folder by a hash of python_env.yaml, its requirements and the running Python's
version, and takes one that exists as it is (`_create_virtualenv` in mlflow/utils/virtualenv.py).
"""

from __future__ import annotations

import importlib
import os
import sys
import sysconfig
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench.errors import UserError


def project_environment(project: Path) -> Path:
    """The folder in which `mlflow run` of this Python looks for the environment of `project`."""
    environment: Any = importlib.import_module("mlflow.utils.environment")
    virtualenv: Any = importlib.import_module("mlflow.utils.virtualenv")
    spec = environment._PythonEnv.from_yaml(project / "python_env.yaml")
    root: str = virtualenv._get_mlflow_virtualenv_root()
    name: str = virtualenv._get_virtualenv_name(spec, project)
    return Path(root) / name


def link_environment(project: Path, environment: Path) -> Path:
    """Make the folder of `mlflow run` a link to `environment`; the link.

    A folder that MLflow or somebody made there stays as it is. Raises `UserError` where no link
    can be written.
    """
    link = project_environment(project)
    try:
        link.parent.mkdir(parents=True, exist_ok=True)
        if link.is_dir() and not link.is_symlink():
            print(f"set-up: `mlflow run` uses {link}: remove it to use .venv", file=sys.stderr)
        elif not link.is_symlink() or link.readlink() != environment:
            new = link.with_name(f"{link.name}.{os.getpid()}")
            new.symlink_to(environment)
            new.replace(link)
    except OSError as error:
        raise UserError(
            f"cannot write {link.parent} ({error.strerror}): "
            "set MLFLOW_ENV_ROOT to a folder that you can write"
        ) from None
    return link


def quieten(packages: Path) -> None:
    """Leave MLflow's INFO lines out of what an environment with these packages prints.

    `mlflow run` reads that level when it starts, from a variable alone; one that is set stays.
    """
    line = 'import os; os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")\n'
    with suppress(OSError):  # an environment of somebody else's: more lines, and nothing worse
        (packages / "mlproject_quiet.pth").write_text(line, "utf-8")


def main() -> int:
    """Link this Python's environment and print the link; on Windows MLflow has no such folder.

    The embedded store too, which two first `mlflow run` at once, or one cut short, would break.
    """
    from tracking.connection import Server, TrackingError
    from tracking.store import is_unmade, settings_uri

    try:
        quieten(Path(sysconfig.get_path("purelib")))
        link = Path(sys.prefix)
        if os.name != "nt":
            link = link_environment(Path(__file__).resolve().parent.parent, link)
        if is_unmade(settings_uri()):
            _ = Server().experiments
        print(link)
    except (UserError, TrackingError) as error:
        print(f"set-up: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
