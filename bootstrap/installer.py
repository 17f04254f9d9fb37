"""Finds uv, which installs everything else, or fetches it with whatever this Python offers."""

from __future__ import annotations

import os
import re
import shutil
import ssl
import subprocess
import sys
from pathlib import Path

from bootstrap.place import Place, SetupError

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
