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


def test_people_get_short_numbers_and_text_that_is_no_markup():
    title, *lines = FOUND.text("text", 60).splitlines()
    assert title == "two models"
    assert lines[-1] == "[/red] is text"
    rows = [line.split() for line in lines if line.startswith((" resnet18", " vgg"))]
    assert rows == [["resnet18", "1230", "8"], ["vgg|16", "-", "1024"]]
    assert max(map(len, lines)) <= 60
    lines = FOUND.text("markdown").splitlines()
    assert lines[0] == "- two models"
    assert r"| vgg\|16 | - | 1024 |" in lines
    assert Result(markdown="# own\n").text("markdown") == "# own\n"


def test_programs_get_all_digits_and_nothing_where_there_is_nothing():
    assert json.loads(FOUND.text("json")) == ROWS
    assert FOUND.text("csv").splitlines() == [
        "model,images_per_s,batch",
        "resnet18,1234.5678,8",
        "vgg|16,,1024",
    ]


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


@pytest.mark.parametrize(
    ("name", "form"),
    [("x.txt", "text"), ("x.json", "json"), ("a/x.csv", "csv"), ("x.md", "markdown")],
)
def test_a_file_has_the_form_of_its_suffix(tmp_path, name, form):
    FOUND.write(tmp_path / name, "speeds")
    assert (tmp_path / name).read_text("utf-8") == FOUND.text(form)


def test_a_folder_has_everything_and_a_file_in_its_place_is_one_line(tmp_path):
    FOUND.write(tmp_path / "out", "found")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"found.json", "speeds.csv", "speeds.md", "speeds.tex"}
    with pytest.raises(UserError, match="cannot write there"):
        FOUND.write(tmp_path / "out" / "found.json" / "x", "found")
