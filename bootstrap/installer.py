"""Finds uv, which installs everything else, or fetches it with whatever this Python offers."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import ssl
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

#: The oldest uv on PATH that is trusted with the job, as in pyproject.toml.
OLDEST_UV = (0, 9)

#: The interpreter that environments are made from, also when we run inside one.
BASE_PYTHON = Path(getattr(sys, "_base_executable", None) or sys.executable)


class Runner:
    """Runs programs for the set-up; they inherit its lock."""

    def __init__(self, place: Place, lock: int) -> None:
        self._root = place.root
        self._inherited = () if os.name == "nt" else (lock,)
        self._environ = child_environment()

    def run(
        self, command: list[str | Path], failure: str, check: bool = True, quiet: bool = False
    ) -> str:
        """Standard output of `command`; its error output goes to ours, if `quiet` only if it fails.

        Raises `SetupError` with the line `failure` if it cannot be started, or fails and `check`;
        then all its output has been shown.
        """
        try:
            done = subprocess.run(
                command,
                cwd=self._root,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE if quiet else None,
                text=True,
                check=False,
                pass_fds=self._inherited,
            )
        except OSError as error:
            raise SetupError(f"{failure} ({command[0]}: {error.strerror})") from None
        if check and done.returncode:
            sys.stderr.write(done.stdout + (done.stderr or ""))
            raise SetupError(f"{failure} (exit code {done.returncode} of {command[0]}, see above)")
        return done.stdout


def child_environment() -> dict[str, str]:
    """The environment for pip and uv: the user's, less what would send packages elsewhere."""
    environ = dict(os.environ)
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX"):
        environ.pop(name, None)
    environ |= {"PIP_USER": "0", "PIP_REQUIRE_VIRTUALENV": "0"}
    environ |= {"PIP_ROOT_USER_ACTION": "ignore", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    environ.setdefault("UV_PYTHON_DOWNLOADS", "never")
    if "SSL_CERT_FILE" not in environ and _system_certificates():
        # as pip does since 24.2: a company's own certificate authority is known to the system
        environ.setdefault("UV_SYSTEM_CERTS", "true")
    return environ


def _system_certificates() -> bool:
    paths = ssl.get_default_verify_paths()
    return sys.platform == "darwin" or bool(paths.cafile)


def obtain_uv(place: Place, runner: Runner) -> Path:
    """A uv that works: the one on PATH, the one fetched earlier, or a fetched one."""
    on_path = shutil.which("uv")
    if on_path and place.folder not in Path(on_path).parents and _recent(Path(on_path)):
        return Path(on_path)
    folder = place.folder / "installer"
    fetched = folder / "bin" / ("uv.exe" if os.name == "nt" else "uv")
    if not _recent(fetched):
        python = _python_with_pip(place, runner)
        version = pinned_uv(place.root / "requirements.txt")
        print(f"set-up: fetching uv {version}", file=sys.stderr, flush=True)
        pip: list[str | Path] = [python, "-m", "pip", "install", "--quiet", "--no-input"]
        pip += ["--only-binary", ":all:", "--upgrade", "--target", folder, f"uv=={version}"]
        failure = f"pip could not fetch uv {version}: check the network and run this again"
        runner.run(pip, failure, quiet=True)  # it warns of settings of this machine
    if not _recent(fetched):
        raise SetupError(
            f"{fetched} does not run on this machine: install uv by hand, put it on PATH"
        )
    return fetched


def pinned_uv(requirements: Path) -> str:
    """The version of uv that the requirements pin."""
    match = re.search(r"^uv==([\w.]+)", requirements.read_text("utf-8"), re.MULTILINE)
    if not match:
        raise SetupError(f"{requirements} does not pin uv: restore it from git")
    return match[1]


def _recent(uv: Path) -> bool:
    """Whether `uv` runs and is new enough; a shim on PATH may do neither."""
    match = re.match(r"uv (\d+)\.(\d+)", _output([uv, "--version"]))
    return match is not None and (int(match[1]), int(match[2])) >= OLDEST_UV


def _python_with_pip(place: Place, runner: Runner) -> Path:
    """An interpreter with pip: the one that runs us, or the environment's after ensurepip."""
    if _output([BASE_PYTHON, "-m", "pip", "--version"]):
        return BASE_PYTHON
    if _output([BASE_PYTHON, "-m", "ensurepip", "--version"]):
        inside = place.script("python")
        failure = "pip could not be unpacked: run this again"
        runner.run([inside, "-m", "ensurepip"], failure, quiet=True)
        return inside
    raise SetupError(
        f"{BASE_PYTHON} has neither pip nor ensurepip, and no uv is on PATH: "
        "on Debian or Ubuntu `sudo apt install python3-venv`, elsewhere install uv, "
        "then run this again"
    )


def _output(command: list[str | Path]) -> str:
    """Standard output, empty where the program is absent or fails."""
    try:
        done = subprocess.run(
            command, env=child_environment(), capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return "" if done.returncode else done.stdout


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
        if self.folder.is_symlink():
            raise SetupError(
                f"{self.folder} is a link, and a set-up would empty what it leads to: "
                "remove the link, and run this again"
            )
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
