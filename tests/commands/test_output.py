"""What a command found, in every form and in files."""

import json

import pytest

from bench.errors import UserError
from commands.console.output import Output, table_of

ROWS = [
    {"model": "resnet18", "images_per_s": 1234.5678, "batch": 8},
    {"model": "vgg|16", "images_per_s": None, "batch": 1024},
]
COLUMNS = {"model": "model", "images_per_s": "images/s", "batch": "batch size of it"}
TABLE = table_of("speeds", ROWS, COLUMNS, "Speeds")
FOUND = Output(["two models", TABLE, "[/red] is text"])


def test_people_get_short_numbers_and_programs_all_digits():
    title, *lines = FOUND.text("text", 60).splitlines()
    assert (title, lines[-1]) == ("two models", "[/red] is text")
    rows = [line.split() for line in lines if line.startswith((" resnet18", " vgg"))]
    assert rows == [["resnet18", "1230", "8"], ["vgg|16", "-", "1024"]]
    assert max(map(len, lines)) <= 60
    lines = FOUND.text("markdown").splitlines()
    assert lines[0] == "- two models"
    assert r"| vgg\|16 | - | 1024 |" in lines
    assert Output(markdown="# own\n").text("markdown") == "# own\n"
    assert json.loads(FOUND.text("json")) == ROWS
    csv = ["model,images_per_s,batch", "resnet18,1234.5678,8", "vgg|16,,1024"]
    assert FOUND.text("csv").splitlines() == csv
    said = Output(["said"], {"a": 1, "b": None})  # facts without a table are rows too
    assert said.text("csv").splitlines() == ["fact,value", "a,1", "b,"]
    assert json.loads(said.text("json")) == {"a": 1, "b": None}


def test_a_file_has_the_form_of_its_suffix_and_a_folder_has_everything(tmp_path):
    forms = {"x.txt": "text", "x.json": "json", "a/x.csv": "csv", "x.md": "markdown"}
    for name, form in forms.items():
        FOUND.write(tmp_path / name, "speeds")
        assert (tmp_path / name).read_text("utf-8") == FOUND.text(form)
    FOUND.write(tmp_path / "out", "found")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"found.json", "found.md", "speeds.csv", "speeds.md", "speeds.tex"}
    with pytest.raises(UserError, match="cannot write there"):
        FOUND.write(tmp_path / "out" / "found.json" / "x", "found")
