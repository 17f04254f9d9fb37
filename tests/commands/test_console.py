"""What a command found, in every form and in files; and what is shown while it measures."""

import json
from dataclasses import asdict

import pytest

from bench.config import TimeLimits
from bench.errors import UserError
from bench.records.journal import Event
from commands.console.output import Output, WorkerProgress, duration_text, rate_text, table_of

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


# The line of a measurement, from a scripted journal


LIMITS = TimeLimits(10, 100, max_seconds=45.0)


def test_a_duration_is_in_seconds_minutes_or_hours():
    spoken = [duration_text(seconds) for seconds in (45.0, 119.0, 150.1, 3599.0, 7500.0)]
    assert spoken == ["45 s", "119 s", "3 min", "1 h 0 min", "2 h 5 min"]


def test_the_rate_of_the_second_iteration_is_said_before_the_window(capsys):
    facts = {**asdict(LIMITS), "samples": 16, "unit": "images/s"}
    warming = [("warmup_started", facts), *[("warmup", {"seconds": s}) for s in (4.0, 2.0, 1.0)]]
    with WorkerProgress("resnet18") as progress:
        for name, known in warming:
            progress.on_event(Event(name, 0.0, known))
    assert capsys.readouterr().err.splitlines()[1:] == ["resnet18: about 8 images/s"]
    assert [rate_text(rate) for rate in (8.249, 123.0, 4728.0)] == ["8.2", "120", "4,700"]


def test_what_a_worker_has_to_say_is_a_line_and_a_rank_is_no_limit(capsys):
    facts = {**asdict(LIMITS), "rank": 0, "pid": 7}
    events = [
        ("notice", {"text": f"{LIMITS} [of one device]"}),
        *(("warmup_started", facts), ("warmup", {"seconds": 1.0}), ("window_started", facts)),
        *(("tick", {}), ("window_ended", {}), ("probe", {"probe": "matmul"})),
    ]
    with WorkerProgress("resnet18 amp") as progress:
        for at_s, (name, known) in enumerate(events):
            progress.on_event(Event(name, float(at_s), known))
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        f"resnet18 amp: {LIMITS} [of one device]",
        "resnet18 amp: about 54 s left",  # where no terminal shows a bar
    ]
