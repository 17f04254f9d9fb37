"""`mlproject run` with scripted measurements: several repeats together, and a run like another."""

import json

import pytest
import samples
from stored_runs import filed

from bench.config import RunConfig
from mlproject import main


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
