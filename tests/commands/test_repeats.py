"""`mlproject run --repeats`: what several runs of one configuration say together."""

import json

import pytest
import samples

from bench.config import RunConfig
from mlproject import main


@pytest.fixture
def repeats(tmp_path, monkeypatch, capsys):
    """Measure repeats that end so; return the exit code and the lines of JSON."""

    def run(*outcomes, options=()):
        left = list(outcomes)

        def measured(config, folder, on_event, while_preparing=None):
            outcome = left.pop(0)
            why = {} if outcome == "ok" else {"outcome": outcome, "reason": "so"}
            # half as fast again from repeat to repeat
            window = samples.measurement(times_s=(1.5**-config.repeat,) * 6)
            return samples.run_record(config, measurement=window, **why)

        monkeypatch.setattr("commands.run.launch_measurement", measured)
        words = ["run", "--backend", "cpu", "--records", str(tmp_path / "records"), "--no-track"]
        words += ["--format", "json", "--repeats", str(len(outcomes)), *options]
        code = main(words)
        return code, [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return run


def test_repeats_have_a_line_each_and_a_mean(repeats, tmp_path):
    out = tmp_path / "found.json"
    code, lines = repeats("ok", "ok", "ok", options=("--out", str(out)))
    assert code == 0
    assert json.loads(out.read_text()) == lines[3] | {"runs": lines[:3]}
    rates = [line["throughput_images_per_s"] for line in lines[:3]]
    assert lines[3]["repeats"] == 3
    assert lines[3]["throughput_images_per_s_mean"] == pytest.approx(rates[1], rel=1e-4)


@pytest.mark.parametrize(
    ("outcomes", "code", "made"),
    [(("oom", "ok", "ok"), 1, 3), (("ok", "interrupted", "ok"), 130, 2)],
)
def test_a_repeat_that_did_not_end_well_is_not_in_the_mean(repeats, outcomes, code, made):
    ended, lines = repeats(*outcomes)
    assert (ended, len(lines)) == (code, made + 1)
    rates = [line["throughput_images_per_s"] for line in lines[:-1] if line["outcome"] == "ok"]
    assert lines[-1]["repeats"] == len(rates)
    low, high = min(rates) - 1e-3, max(rates) + 1e-3
    assert low < lines[-1]["throughput_images_per_s_mean"] < high
    assert (lines[-1]["throughput_images_per_s_low"] is None) == (len(rates) == 1)


def test_without_a_whole_repeat_there_is_no_mean(repeats):
    assert repeats("oom", "oom")[1][-1] == {"repeats": 0}


def kept(folder, record):
    (folder / record.record_id).mkdir()
    (folder / record.record_id / "record.json").write_text(record.model_dump_json())


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """Run `mlproject run` in a folder of records; return its exit code, and the configuration."""
    found = []

    def measured(config, folder, on_event, while_preparing=None):
        found.append(config)
        return samples.run_record(config)

    def run(*options):
        monkeypatch.setattr("commands.run.launch_measurement", measured)
        return main(["run", "--records", str(tmp_path), "--no-track", *options]), found[-1:]

    return run


def test_a_run_like_another_has_its_configuration_and_no_label_of_its_machine(asked, tmp_path):
    config = RunConfig(
        arch="vgg16", backend="cpu", precision="amp", batch_size=3, max_seconds=2, campaign="night",
        env="theirs", repeat=4,
    )  # fmt: skip
    kept(tmp_path, samples.run_record(config, record_id="known"))
    again = config.model_copy(update={"env": "auto", "repeat": 1})
    assert asked("--like", "known") == (0, [again])
    assert asked("--like", str(tmp_path / "known"), "--threads", "2") == (
        0, [again.model_copy(update={"threads": 2})]
    )  # fmt: skip


def test_a_watched_script_is_watched_again(asked, tmp_path, capsys):
    config = RunConfig().model_copy(update={"arch": "script:train.py"})
    script = {"command": "mlproject watch -- torchrun t.py"}
    record = samples.run_record(config, record_id="known", script=script)
    kept(tmp_path, record)
    assert asked("--like", "known") == (2, [])
    line = "mlproject: like='known': is of a script; mlproject watch -- torchrun t.py\n"
    assert capsys.readouterr().err == line
