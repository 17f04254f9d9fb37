"""What several tests of the analysis share."""

from pathlib import Path

import pytest

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture
def kept(request):
    """Holds texts, by the names of their files, against all files of a folder, or writes those."""

    def check(folder, texts):
        folder = GOLDEN / folder
        files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*.*")}
        if request.config.getoption("golden"):
            for path in files.values():
                path.unlink()
            for name, text in texts.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_text(text, encoding="utf-8", newline="\n")
            return
        assert sorted(texts) == sorted(files)
        for name, path in files.items():
            assert texts[name].splitlines() == path.read_text("utf-8").splitlines(), name

    return check
