"""The project's environment folder: whose it is, who works on it now, and whether it is whole."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

#: Files that decide what is installed, and how.
INPUTS = ("requirements.txt", "requirements-dev.txt", "pyproject.toml", "python_env.yaml")

#: In the environment folder: set-up made this folder. It is the lock too, and is never removed.
OURS = ".mlproject-setup.lock"
#: In the environment folder: set-up went to its end, and from what. Written last.
STAMP = ".mlproject-setup.json"


class SetupError(Exception):
    """Set-up cannot go on: one line with what was found and the remedy."""


@dataclass(frozen=True)
class Stamp:
    """What a finished set-up was made from."""

    home: str  # interpreter and place: an environment cannot follow a change of these
    inputs: str  # hash of the files and settings: an environment can be brought up to date
    dev: bool
    project_environment: str  # the file that says the environment of `mlflow run` is whole


class Place:
    """The folder `.venv` of the clone at `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / ".venv"
        self._scripts = self.folder / ("Scripts" if os.name == "nt" else "bin")

    def script(self, name: str) -> Path:
        """Where the environment has the program `name`."""
        return self._scripts / (f"{name}.exe" if os.name == "nt" else name)

    def home(self) -> str:
        """Python version, platform and place of the clone, as one string."""
        return f"{platform.python_version()} {sysconfig.get_platform()} {self.root}"

    def inputs(self) -> str:
        """Hash of everything else that decides what set-up makes."""
        digest = hashlib.sha256()
        for name in INPUTS:
            digest.update((self.root / name).read_bytes() + b"\0")
        # MLflow keeps the environments of `mlflow run` here: docs of MLFLOW_ENV_ROOT
        envs = os.environ.get("MLFLOW_ENV_ROOT") or str(Path.home() / ".mlflow" / "envs")
        digest.update(envs.encode())
        digest.update(b"compiled")  # environments made before packages were compiled are not whole
        return digest.hexdigest()

    def stamp(self) -> Stamp | None:
        """What the last set-up left, or None when it did not reach its end."""
        try:
            return Stamp(**json.loads((self.folder / STAMP).read_text("utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    def write_stamp(self, stamp: Stamp) -> None:
        """Declare the environment whole, in one step."""
        partial = self.folder / f"{STAMP}.partial"
        partial.write_text(json.dumps(asdict(stamp), indent=1), "utf-8")
        partial.replace(self.folder / STAMP)

    def drop_stamp(self) -> None:
        """Declare the environment unfinished, before it is touched."""
        (self.folder / STAMP).unlink(missing_ok=True)

    def empty(self) -> bool:
        """Remove everything in the folder but the sign that it is ours; whether there was any."""
        self.drop_stamp()
        children = [child for child in self.folder.iterdir() if child.name != OURS]
        for child in children:
            if child.is_dir() and not child.is_symlink():
                shutil.rmtree(child)
            else:
                child.unlink()
        return bool(children)

    @contextmanager
    def claimed(self) -> Iterator[int]:
        """Hold the folder against other set-ups; the lock's file descriptor.

        A program started with that descriptor keeps the lock while it lives, so that what a
        killed set-up left running is waited for. Raises `SetupError` if somebody else made
        the folder.
        """
        try:
            self.folder.mkdir(exist_ok=True)
            if not (self.folder / OURS).exists() and any(self.folder.iterdir()):
                raise SetupError(
                    f"{self.folder} was not made by this set-up: remove it or move it away, "
                    "then run this again"
                )
            lock = (self.folder / OURS).open("a")
        except OSError as error:
            raise SetupError(f"cannot write {self.folder} ({error.strerror})") from None
        with lock:
            _lock(lock.fileno(), self.folder)
            yield lock.fileno()


def _lock(descriptor: int, folder: Path) -> None:
    waiting = f"set-up: another one is at work in {folder}: waiting for it"
    if sys.platform == "win32":
        import msvcrt

        try:
            msvcrt.locking(descriptor, msvcrt.LK_LOCK, 1)
        except OSError:
            raise SetupError(f"{waiting} took too long") from None
    else:
        import fcntl

        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(waiting, file=sys.stderr, flush=True)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
