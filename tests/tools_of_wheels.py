"""Programs that are no Python and come in wheels: beside this Python, or on the path."""

import os
import shutil
import sys
from pathlib import Path

import pytest


def installed_tool(name):
    """The program's path; skips where its wheel has none for this kind of machine."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    found = shutil.which(name, path=path)
    if found is None:
        pytest.skip(f"no {name} on this kind of machine")
    return found
