"""What a command found, in every form and in files."""

import json

import pytest

from bench.errors import UserError
from commands.console.output import Result, table_of

ROWS = [
    {"model": "resnet18", "images_per_s": 1234.5678, "batch": 8},
    {"model": "vgg|16", "images_per_s": None, "batch": 1024},
]
COLUMNS = {"model": "model", "images_per_s": "images/s", "batch": "batch size of it"}
TABLE = table_of("speeds", ROWS, COLUMNS, "Speeds")
FOUND = Result(["two models", TABLE, "[/red] is text"])


@pytest.mark.parametrize(
    ("facts", "rows"),
    [
        ({"a": 1, "b": None}, ["fact,value", "a,1", "b,"]),
        ([{"a": 1}, {"b": 2}], ["a,b", "1,", ",2"]),
    ],
)
def test_facts_without_a_table_are_rows_too(facts, rows):
    assert Result(["said"], facts).text("csv").splitlines() == rows
    assert json.loads(Result(["said"], facts).text("json")) == facts


def test_a_folder_has_everything_and_a_file_in_its_place_is_one_line(tmp_path):
    FOUND.write(tmp_path / "out", "found")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"found.json", "speeds.csv", "speeds.md", "speeds.tex"}
    with pytest.raises(UserError, match="cannot write there"):
        FOUND.write(tmp_path / "out" / "found.json" / "x", "found")
