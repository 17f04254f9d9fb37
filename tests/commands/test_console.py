"""What a command found, in every form and in files; and what is shown while it measures."""

import json
from dataclasses import asdict

import pytest
import samples
from stored_runs import filed

from bench.config import RunConfig, TimeLimits
from bench.errors import UserError
from bench.records.journal import Event
from commands.console.output import Output, WorkerProgress, duration_text, rate_text, table_of
from mlproject import main

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


# `mlproject run` with scripted measurements: repeats together, and a run like another


@pytest.fixture
def ran(tmp_path, monkeypatch, capsys):
    """Measure repeats that end so: exit code, lines of JSON, configurations and error output."""

    def run(*options, outcomes=("ok",)):
        asked = []

        def measured(config, folder, on_event, while_preparing=None, without=None):
            outcome, _, later = outcomes[len(asked)].partition(", then ")
            folder.is_interrupted = later == "interrupted"
            asked.append(config)
            why = {} if outcome == "ok" else {"outcome": outcome, "reason": "so"}
            # half as fast again from repeat to repeat
            window = samples.measurement(times_s=(1.5**-config.repeat,) * 6)
            return samples.run_record(config, measurement=window, **why)

        monkeypatch.setattr("commands.run.launch_measurement", measured)
        words = ["--records", str(tmp_path), "--no-track", "--format", "json", *options]
        code = main(["run", *words, *(["--repeats", str(len(outcomes))] * (len(outcomes) > 1))])
        said = capsys.readouterr()
        return code, [json.loads(line) for line in said.out.splitlines()], asked, said.err

    return run


def test_repeats_have_a_line_each_and_a_mean(ran, tmp_path):
    out = tmp_path / "found.json"
    code, lines, *_ = ran("--out", str(out), outcomes=("ok", "ok", "ok"))
    assert code == 0
    assert json.loads(out.read_text()) == lines[3] | {"runs": lines[:3]}
    rates = [line["throughput_images_per_s"] for line in lines[:3]]
    assert lines[3]["repeats"] == 3
    assert lines[3]["throughput_images_per_s_mean"] == pytest.approx(rates[1], rel=1e-4)
    assert ran(outcomes=("oom", "oom"))[1][-1] == {"repeats": 0}


@pytest.mark.parametrize(
    ("outcomes", "code", "made"),
    [
        (("oom", "ok", "ok"), 1, 3),
        (("ok", "interrupted", "ok"), 130, 2),
        (("ok, then interrupted", "ok"), 130, 1),
        (("ok", "ok, then interrupted"), 0, 2),
    ],
)
def test_a_repeat_that_did_not_end_well_is_not_in_the_mean(ran, outcomes, code, made):
    ended, lines, *_ = ran(outcomes=outcomes)
    assert (ended, len(lines)) == (code, made + 1)
    rates = [line["throughput_images_per_s"] for line in lines[:-1] if line["outcome"] == "ok"]
    assert lines[-1]["repeats"] == len(rates)
    low, high = min(rates) - 1e-3, max(rates) + 1e-3
    assert low < lines[-1]["throughput_images_per_s_mean"] < high
    assert (lines[-1]["throughput_images_per_s_low"] is None) == (len(rates) == 1)


def test_a_run_like_another_has_its_configuration_and_no_label_of_its_machine(ran, tmp_path):
    config = RunConfig(
        arch="vgg16", backend="cpu", precision="amp", batch_size=3, max_seconds=2, campaign="night",
        env="theirs", repeat=4,
    )  # fmt: skip
    folder, record = filed(tmp_path, samples.run_record(config))
    again = config.model_copy(update={"env": "auto", "repeat": 1})
    code, _, asked, _ = ran("--like", record.record_id)
    assert (code, asked) == (0, [again])
    code, _, asked, _ = ran("--like", str(folder.path), "--threads", "2")
    assert (code, asked) == (0, [again.model_copy(update={"threads": 2})])


def test_a_watched_script_is_watched_again(ran, tmp_path):
    config = RunConfig().model_copy(update={"arch": "script:train.py"})
    script = {"command": "mlproject watch -- torchrun t.py"}
    _, record = filed(tmp_path, samples.run_record(config, script=script))
    code, _, asked, err = ran("--like", record.record_id)
    assert (code, asked) == (2, [])
    line = f"like='{record.record_id}': is of a script; mlproject watch -- torchrun t.py"
    assert err == f"mlproject: {line}\n"
