"""The notebooks of the examples: as they are kept, filled in as a user does, and run."""

import re
from pathlib import Path

import nbformat

FOLDER = Path(__file__).resolve().parent.parent / "examples" / "notebooks"


def read(name):
    """Return a notebook, which holds nothing that a run left and, but for its form, no address."""
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        assert cell.get("outputs", []) == []
        assert cell.get("execution_count") is None
        assert "://" not in cell.source or cell.id == "settings"
    return notebook


def filled_in(name, **settings):
    """Return a notebook with its form filled in."""
    notebook = read(name)
    [form] = [cell for cell in notebook.cells if cell.id == "settings"]
    for setting, value in settings.items():
        pattern, line = rf"(?m)^{setting} = [^#\n]*", f"{setting} = {value!r}  "
        form.source, count = re.subn(pattern, line, form.source)
        assert count == 1, setting
    return notebook


def execute(notebook, folder):
    """Run every cell in `folder`."""
    from nbclient import NotebookClient

    where = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=300, resources=where).execute()
