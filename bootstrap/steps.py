"""The set-up: `.venv` from pinned requirements, then the environment that `mlflow run` uses."""

from __future__ import annotations

import argparse
import platform
import sys
import time
from pathlib import Path

from bootstrap.installer import BASE_PYTHON, Place, Runner, SetupError, Stamp, obtain_uv
from bootstrap.kit import read_kit, set_up_kit

ROOT = Path(__file__).resolve().parent.parent

#: The project's own modules that a start imports.
OWN_MODULES = ("mlproject.py", "analysis", "bench", "campaigns", "commands", "tracking")


def main(arguments: list[str]) -> int:
    """Exit code: 0 everything is in place, 1 it is not and a line says why, 130 interrupted."""
    parser = argparse.ArgumentParser(prog="python3 -m bootstrap", description=__doc__)
    parser.add_argument("--dev", action="store_true", help="with the tools of `make test`")
    dev = parser.parse_args(arguments).dev
    place = Place(ROOT)
    try:
        kit = read_kit(ROOT)
        with place.claimed() as lock:
            if kit is None:
                set_up(place, dev, lock)
            else:
                _say(f"done, on {set_up_kit(kit, place, lock)}: . {place.folder}/bin/activate")
    except (SetupError, OSError) as error:
        print(f"set-up: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("set-up: interrupted; run it again to finish", file=sys.stderr)
        return 130
    return 0


def set_up(place: Place, dev: bool, lock: int) -> None:
    """Bring the environment to what the requirements say; nothing where it is there already."""
    stamp, runner = place.stamp(), Runner(place, lock)
    if stamp and _still_good(place, stamp, dev):
        _compile_own(place, runner)
        return
    started = time.monotonic()
    keep = stamp if stamp and stamp.home == place.home() and _runs(place) else None
    dev = dev or bool(keep and keep.dev)
    inputs = place.inputs()
    if keep:
        place.drop_stamp()
    else:
        _create(place, runner)
    _install(place, runner, dev)
    _say("compiling the packages to bytecode, once: starts take half of the time with it")
    _compile(place, runner, ["-qq", place.folder])
    _compile_own(place, runner)
    whole = runner.run(
        [place.script("python"), "-m", "tracking.projects"],
        "the environment of `mlflow run` could not be made: run this again",
    )
    place.write_stamp(Stamp(place.home(), inputs, dev, whole.strip()))
    _say(f"done in {time.monotonic() - started:.0f} s")


def _still_good(place: Place, stamp: Stamp, dev: bool) -> bool:
    return (
        stamp.home == place.home()
        and stamp.inputs == place.inputs()
        and stamp.dev >= dev
        and _runs(place)
        and Path(stamp.project_environment).exists()
    )


def _runs(place: Place) -> bool:
    """Whether the environment's interpreter is still on the machine (a link may dangle)."""
    return place.script("python").exists() and place.script("mlproject").exists()


def _create(place: Place, runner: Runner) -> None:
    """An empty environment where there was none, half of one, or one that cannot be kept."""
    if place.empty():
        _say(f"removed what was in {place.folder}: unfinished, or of another Python or place")
    _say(f"creating {place.folder} with Python {platform.python_version()} ({BASE_PYTHON})")
    runner.run(
        [BASE_PYTHON, "-m", "venv", "--without-pip", place.folder],
        f"{BASE_PYTHON} could not make an environment: "
        "on Debian or Ubuntu `sudo apt install python3-venv`, then run this again",
    )


def _install(place: Place, runner: Runner, dev: bool) -> None:
    uv = obtain_uv(place, runner)
    requirements = "requirements-dev.txt" if dev else "requirements.txt"
    install: list[str | Path] = [uv, "pip", "install", "--python", place.script("python")]
    # a log keeps neither the progress bars nor the list of packages
    install += [] if sys.stderr.isatty() else ["--quiet"]
    _say(f"installing {requirements} (5 GB with CUDA libraries, downloaded once)")
    runner.run(
        [*install, "-r", requirements],
        f"uv could not install {requirements}: check network and disk space, then run this again",
    )
    # setuptools came with the requirements: no isolated, downloaded build environment
    runner.run(
        [*install, "--no-deps", "--no-build-isolation", "-e", "."],
        "uv could not install the project itself: run this again",
    )


def _compile_own(place: Place, runner: Runner) -> None:
    """Bytecode of the project's own modules, where it is absent or older than its source."""
    _compile(place, runner, ["-q", *(n for n in OWN_MODULES if (place.root / n).exists())])


def _compile(place: Place, runner: Runner, arguments: list[str | Path]) -> None:
    """Write bytecode, also where PYTHONDONTWRITEBYTECODE keeps imports from writing any.

    Some packages ship templates that are not Python, so failures are not errors.
    """
    command = [place.script("python"), "-m", "compileall", "-j", "0", *arguments]
    runner.run(command, "", check=False)


def _say(line: str) -> None:
    print(f"set-up: {line}", file=sys.stderr, flush=True)
