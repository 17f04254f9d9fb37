"""The notebook of tracked runs, on a real server."""

from pathlib import Path

import pytest
from notebooks import execute, filled_in
from stored_runs import filed, night

from tracking import log_record

PROJECT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_every_cell_of_it_answers(tmp_path, server, monkeypatch):
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "1")  # this kernel, not a user's
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))
    records = tmp_path / "records"
    for record in night("notebook"):
        log_record(filed(records, record)[1], records, tracking_uri=server)
    notebook = filled_in("analysis", TRACKING_URI=server, CAMPAIGN="notebook")
    execute(notebook, tmp_path)
    shown = {cell.id: cell.outputs for cell in notebook.cells if cell.cell_type == "code"}
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
