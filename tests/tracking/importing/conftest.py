"""One way to read a file in tests; a reader of `examples/importers` is loaded by its path."""

from pathlib import Path

import pytest

from tracking.importing import load_readers, read_results

IMPORTERS = Path(__file__).resolve().parents[3] / "examples" / "importers"


@pytest.fixture
def read(tmp_path, request):
    """Return a function that writes a file and reads it, with the readers that PLUG_INS names."""
    names = getattr(request.module, "PLUG_INS", ())
    readers = load_readers([str(IMPORTERS / f"{name}.py") for name in names])

    def read(content=None, name="results.csv", named=None, **given):
        path = tmp_path / name
        if content is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        how = {"given": given, "readers": readers, "named": named or {}}
        return read_results(path, campaign="old", **how)

    return read
