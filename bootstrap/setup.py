"""The set-up: `.venv` from pinned requirements, and the link by which `mlflow run` finds it."""

from __future__ import annotations

import argparse
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
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

#: The interpreter that environments are made from, also when we run inside one.
BASE_PYTHON = Path(getattr(sys, "_base_executable", None) or sys.executable)

#: Files that decide what is installed, and how.
INPUTS = (
    *("requirements.txt", "requirements-dev.txt", "pyproject.toml", "python_env.yaml"),
    "contrib/pyproject.toml",
)

#: The project's own modules that a start imports.
OWN_MODULES = (
    "mlproject.py",
    *("analysis", "bench", "campaigns", "commands", "contrib", "tracking"),
)

#: In the environment: set-up made this folder. It is the lock too, and is never removed.
OURS = ".mlproject-setup.lock"
#: In the environment: set-up went to its end, and from what. Written last.
STAMP = ".mlproject-setup.json"

#: Packages that torch's build for processors does not need.
_OF_CUDA = re.compile(r"^(nvidia-(?!ml-py\b)[\w-]+|cuda-[\w-]+|triton)==", re.MULTILINE)


class SetupError(Exception):
    """Set-up cannot go on: one line with what was found and the remedy."""


@dataclass(frozen=True)
class Place:
    """The environment `.venv` of the clone at `root`, held against other set-ups by `lock`."""

    root: Path
    lock: int

    @property
    def venv(self) -> Path:
        """The environment's folder."""
        return self.root / ".venv"

    def script(self, name: str) -> Path:
        """Where the environment has the program `name`."""
        windows = os.name == "nt"
        return self.venv / ("Scripts" if windows else "bin") / (f"{name}.exe" if windows else name)

    def run(self, *command: str | Path, failure: str | None = None) -> str:
        """Standard output of `command`; raises `SetupError` with the line `failure` if it fails.

        A command without that line may fail. What it starts inherits the lock, so that what a
        killed set-up left running is waited for.
        """
        done = subprocess.run(
            command,
            cwd=self.root,
            env=child_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
            pass_fds=() if os.name == "nt" else (self.lock,),
        )
        if failure and done.returncode:
            sys.stderr.write(done.stdout)
            raise SetupError(f"{failure} (exit code {done.returncode} of {command[0]}, see above)")
        return done.stdout

    def empty(self) -> bool:
        """Remove everything but the sign that the folder is ours; whether there was any.

        The stamp goes first: from then on the environment is unfinished. Links are removed, and
        never what they lead to.
        """
        (self.venv / STAMP).unlink(missing_ok=True)
        children = [child for child in self.venv.iterdir() if child.name != OURS]
        for child in children:
            if child.is_dir() and not child.is_symlink():
                shutil.rmtree(child)
            else:
                child.unlink()
        return bool(children)


@contextmanager
def claimed(root: Path) -> Iterator[Place]:
    """Hold `.venv` of the clone at `root`; raises `SetupError` if somebody else made the folder."""
    folder = root / ".venv"
    if folder.is_symlink():
        raise SetupError(f"{folder} is a link: a set-up would empty what it leads to; remove it")
    folder.mkdir(exist_ok=True)
    if not (folder / OURS).exists() and any(folder.iterdir()):
        raise SetupError(f"{folder} was not made by this set-up: remove it or move it away")
    with (folder / OURS).open("a") as lock:
        _lock(lock.fileno(), f"another one is at work in {folder}: waiting for it")
        yield Place(root, lock.fileno())


def _lock(descriptor: int, waiting: str) -> None:
    if sys.platform == "win32":
        import msvcrt

        msvcrt.locking(descriptor, msvcrt.LK_LOCK, 1)
    else:
        import fcntl

        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(waiting)
            fcntl.flock(descriptor, fcntl.LOCK_EX)


def child_environment() -> dict[str, str]:
    """The environment for pip and uv: the user's, less what would send packages elsewhere."""
    elsewhere = ("VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX")
    environ = {name: text for name, text in os.environ.items() if name not in elsewhere} | {
        "PIP_USER": "0",
        "PIP_REQUIRE_VIRTUALENV": "0",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    environ.setdefault("UV_PYTHON_DOWNLOADS", "never")
    system_has_some = sys.platform == "darwin" or ssl.get_default_verify_paths().cafile
    if "SSL_CERT_FILE" not in environ and system_has_some:
        # as pip does since 24.2: a company's own certificate authority is known to the system
        environ.setdefault("UV_SYSTEM_CERTS", "true")
    return environ


def main(arguments: list[str], make: Callable[[Place, bool], None]) -> int:
    """Have `make` bring the environment to what it should be, with tools for tests or without.

    Exit code: 0 everything is in place, 1 it is not and a line says why, 130 interrupted.
    """
    parser = argparse.ArgumentParser(prog="python3 -m bootstrap", description=__doc__)
    parser.add_argument("--dev", action="store_true", help="with the tools of `make test`")
    dev = parser.parse_args(arguments).dev
    try:
        with claimed(ROOT) as place:
            make(place, dev)
    except (SetupError, OSError) as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        say("interrupted; run it again to finish")
        return 130
    return 0


def set_up(place: Place, dev: bool) -> None:
    """Bring the environment to what the requirements say; nothing where it is there already."""
    started, stamp = time.monotonic(), {}
    with suppress(OSError, ValueError):  # none: the last set-up did not reach its end
        stamp = json.loads((place.venv / STAMP).read_text("utf-8"))
    python, envs = place.script("python"), os.environ.get("MLFLOW_ENV_ROOT") or str(Path.home())
    # an environment cannot follow a change of these
    home = f"{platform.python_version()} {sysconfig.get_platform()} {place.root}"
    keep = stamp.get("home") == home and python.exists() and place.script("mlproject").exists()
    digest = hashlib.sha256(f"{envs}{os.environ.get('UV_TORCH_BACKEND', '')}".encode())
    for name in INPUTS:
        digest.update((place.root / name).read_bytes() + b"\0")
    wanted = {"home": home, "inputs": digest.hexdigest(), "dev": dev or (keep and stamp["dev"])}
    link, own = Path(stamp.get("link", "")), [n for n in OWN_MODULES if (place.root / n).exists()]
    same = keep and wanted == {name: stamp[name] for name in wanted}
    if same and link.exists() and (link.samefile(place.venv) or not link.is_symlink()):
        _compile(place, "-q", *own)
        return
    if keep:
        (place.venv / STAMP).unlink()
    else:
        _create(place)
    _install(place, "requirements-dev.txt" if wanted["dev"] else "requirements.txt")
    say("compiling the packages to bytecode, once: starts take half of the time with it")
    _compile(place, "-qq", place.venv, *own)
    failure = "`mlflow run` would not find the environment: run this again"
    linked = place.run(python, "-m", "tracking.projects", failure=failure)
    partial = place.venv / f"{STAMP}.partial"
    partial.write_text(json.dumps({**wanted, "link": linked.strip()}, indent=1), "utf-8")
    partial.replace(place.venv / STAMP)
    say(f"done in {time.monotonic() - started:.0f} s")


def _create(place: Place) -> None:
    """An environment with pip where there was none, or one that cannot be kept."""
    if place.empty():
        say(f"removed what was in {place.venv}: unfinished, or of another Python or place")
    say(f"creating {place.venv} with Python {platform.python_version()} ({BASE_PYTHON})")
    place.run(
        *(BASE_PYTHON, "-m", "venv", place.venv),
        failure=f"{BASE_PYTHON} could not make an environment: "
        "on Debian or Ubuntu `sudo apt install python3-venv`, then run this again",
    )


def _install(place: Place, requirements: str) -> None:
    """The packages, by the pinned uv, which pip fetches; then the project itself."""
    listed = (place.root / requirements).read_text("utf-8")
    pinned = re.search(r"^uv==[\w.]+", listed, re.MULTILINE)
    if not pinned:
        raise SetupError(f"{requirements} does not pin uv: restore it from git")
    python = place.script("python")
    pip = (python, "-m", "pip", "install", "--quiet", "--no-input", "--only-binary", ":all:")
    place.run(*pip, pinned[0], failure=f"pip could not fetch {pinned[0]}: check the network")
    install: tuple[str | Path, ...] = (place.script("uv"), "pip", "install", "--python", python)
    # a log keeps neither the progress bars nor the list of packages
    install += () if sys.stderr.isatty() else ("--quiet",)
    chosen: tuple[str | Path, ...] = ("-r", requirements)
    if os.environ.get("UV_TORCH_BACKEND") == "cpu":  # uv knows where torch's builds lie
        left_out = place.venv / "left-out.txt"
        left_out.write_text("\n".join(sorted({*_OF_CUDA.findall(listed)})), "utf-8")
        chosen += ("--excludes", left_out)
        say(f"installing {requirements} without CUDA (about 2 GB on disk, once)")
    else:
        say(
            f"installing {requirements} (6.3 GB on disk with CUDA, once: 1 to 2 minutes on a fast "
            "network; without a GPU UV_TORCH_BACKEND=cpu make setup needs about 2 GB)"
        )
    place.run(
        *(*install, *chosen),
        failure=f"uv could not install {requirements}: check network and disk space, run it again",
    )
    # setuptools came with the requirements: no isolated, downloaded build environment
    place.run(
        *(*install, "--no-deps", "--no-build-isolation", "-e", ".", "-e", "contrib"),
        failure="uv could not install the project itself: run this again",
    )


def _compile(place: Place, *arguments: str | Path) -> None:
    """Write bytecode, also where PYTHONDONTWRITEBYTECODE keeps imports from writing any.

    Some packages ship templates that are not Python, so failures are not errors.
    """
    place.run(place.script("python"), "-m", "compileall", "-j", "0", *arguments)


def say(line: str) -> None:
    """One line of the set-up's progress."""
    print(f"set-up: {line}", file=sys.stderr, flush=True)
