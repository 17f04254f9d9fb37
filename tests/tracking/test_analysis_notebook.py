"""The notebook of tracked runs: as it is kept, and run against a real server."""

import re
from pathlib import Path

import nbformat
import pytest
from stored_runs import filed, night

from tracking import log_record

PROJECT = Path(__file__).resolve().parents[2]
NOTEBOOK = PROJECT / "examples" / "notebooks" / "analysis.ipynb"


def notebook():
    return nbformat.read(NOTEBOOK, as_version=4)


def test_it_is_kept_without_what_a_run_left_and_names_no_server():
    nbformat.validate(notebook())
    for cell in notebook().cells:
        assert cell.get("outputs", []) == []
        assert cell.get("execution_count") is None
        if cell.id != "settings":
            assert "://" not in cell.source


@pytest.mark.slow
def test_every_cell_of_it_answers(tmp_path, server, monkeypatch):
    from nbclient import NotebookClient

    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "1")  # this kernel, not a user's
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))
    records = tmp_path / "records"
    for record in night("notebook"):
        log_record(filed(records, record)[1], records, tracking_uri=server)
    filled = notebook()
    [settings] = [cell for cell in filled.cells if cell.id == "settings"]
    for name, value in {"TRACKING_URI": server, "CAMPAIGN": "notebook"}.items():
        pattern, value = f"(?m)^{name} = [^#\\n]*", f"{name} = {value!r}  "
        settings.source, count = re.subn(pattern, value, settings.source)
        assert count == 1, name
    where = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(filled, timeout=300, resources=where).execute()
    shown = {cell.id: cell.outputs for cell in filled.cells if cell.cell_type == "code"}
    table = text(shown["table"])
    assert "sample-cpu resnet18" in " ".join(table.split())
    assert "16 rows" in table or table.count("sample-cpu") == 16
    for figure in ("roofline", "figure"):
        assert any("image/png" in output.get("data", {}) for output in shown[figure]), figure
    assert text(shown["comparison"]).count("faster") == 4
    assert "precision uplift" in text(shown["findings"])


def text(outputs):
    """What a notebook shows of a cell, as text."""
    return "".join(output.get("data", {}).get("text/plain", "") for output in outputs)
