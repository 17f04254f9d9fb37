"""Where models lie: a user's path, and packages, whose import takes seconds and reading 0.1 s."""

from __future__ import annotations

import difflib
import importlib.util
from collections.abc import Iterable
from pathlib import Path


def package_folder(package: str) -> Path | None:
    """Return the folder of an installed package; None where it is not installed."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0])


def extra_folder(package: str, extra: str) -> Path:
    """Return the folder of a package of the extra `extra`; raise `ValueError` without it."""
    folder = package_folder(package)
    if folder is None:
        raise ValueError(
            f"{package} is not installed; pip install 'mlproject[{extra}]', or in a clone "
            f"uv pip install -e '.[{extra}]'"
        )
    return folder


def user_path(text: str | Path) -> Path:
    """Return the path with `~` as the home; that of a user who does not exist stays as it is."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        return Path(text)


def nearest(name: str, known: Iterable[str], otherwise: str) -> str:
    """Return the hint that follows a wrong name: its nearest of `known`, or `otherwise`."""
    near = difflib.get_close_matches(name.lower(), list(known), n=3, cutoff=0.5)
    return f"did you mean {', '.join(near)}?" if near else otherwise
