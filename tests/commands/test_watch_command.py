"""`mlproject watch` on scripts of others: run as they are, each leaves a record."""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from analysis.account import account_of
from bench.cost.estimate import step_complexity
from bench.records import StepSpec
from bench.records.folders import record_folders
from bench.records.step_settings import settings_of

PROJECT = Path(__file__).resolve().parents[2]

#: Like PyTorch's example for ImageNet; it keeps its own clock, and saves it when it is told to end.
TRAINS = """
import argparse, json, signal, sys, time
import torch, torchvision
from torch.utils.data import DataLoader
from torchvision.transforms import ToTensor

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--api-key")
options = parser.parse_args()
times = []

def save(*_):
    json.dump(times, open("times.json", "w"))
    sys.exit()

signal.signal(signal.SIGTERM, save)
model = torchvision.models.squeezenet1_1()
optimizer = torch.optim.SGD(model.parameters(), options.lr, momentum=0.9)
data = torchvision.datasets.FakeData(10_000, (3, 32, 32), 1000, ToTensor())
sys.stdout.buffer.write(b"\\xff\\xfe")
sys.stdout.flush()
begun = time.perf_counter()
while True:
    for images, labels in DataLoader(data, batch_size=2, shuffle=True):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        ended = time.perf_counter()
        times.append(ended - begun)
        begun = ended
"""


@pytest.fixture
def watch(tmp_path):
    """Run `mlproject watch` on a script of this text; return what it printed and the record."""

    def run(text, *arguments, options=(), launcher=()):
        (tmp_path / "train.py").write_text(text)
        command = [sys.executable, PROJECT / "mlproject.py", "watch", "--no-track", *options]
        command += ["--", sys.executable, *launcher, "train.py", *arguments]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True)
        [folder] = record_folders(tmp_path / "records")
        return ended, folder.read_record()

    return run


def of_own_clock(times_s, own_s):
    """The script's own times of the window's steps, wherever among all steps they are."""
    places = range(len(own_s) - len(times_s) + 1)
    spans = (own_s[place : place + len(times_s)] for place in places)
    return min(spans, key=lambda s: sum(abs(a - b) for a, b in zip(s, times_s, strict=True)))


@pytest.mark.slow
def test_a_script_is_measured_counted_and_explained(watch, tmp_path):
    ended, record = watch(TRAINS, "--lr", "0.1", "--api-key", "abc123")
    assert (ended.returncode, record.outcome) == (0, "ok")
    assert ended.stdout.startswith(b"\xff\xfe")
    assert b"120 s at most" in ended.stderr
    own_s = of_own_clock(
        record.measurement.iteration_times_s, json.loads((tmp_path / "times.json").read_text())
    )
    pairs = zip(record.measurement.iteration_times_s, own_s, strict=True)
    assert statistics.median(abs(ours / own - 1) for ours, own in pairs) < 0.01
    asked = step_complexity(StepSpec("squeezenet1_1", 2, "fp32", image_size=32))
    assert record.complexity.step_flops == asked.step_flops
    assert record.complexity.parameters == asked.parameters
    account = account_of(record, None, record.measurement)
    assert account.seconds_of("not explained") <= 0.05 * account.step_time_s
    assert any(part.kind == "input" for part in account.parts)
    settings, _ = settings_of(record)
    assert settings["arch"] == "script:train.py"
    assert settings["arguments"] == "--lr 0.1 --api-key (left out)"
    assert record.script["command"].startswith("mlproject watch -- ")
    assert record.script["command"].endswith(f" train.py {settings['arguments']}")
    assert (settings["batch_size"], settings["image_size"]) == ("2", "32")
    assert "SGD" in settings["optimizer"]
    assert record.environment.model_code.modules == ("train",)


CRASHES = """
import os, torch
import bench

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(3):
    if step and os.fork() == 0:
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        os._exit(0)
    if step:
        os.wait()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    from bench import mine
assert bench.__file__.startswith(os.getcwd())
raise RuntimeError("in step 3")
"""


@pytest.mark.slow
def test_a_script_that_crashes_leaves_a_record_and_its_own_modules_are_its_own(watch, tmp_path):
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "__init__.py").write_text("mine = 1")
    ended, record = watch(CRASHES)
    assert (ended.returncode, record.outcome) == (1, "crashed")
    assert record.reason == "RuntimeError: in step 3"
    assert ended.stderr.count(b"Traceback") == 1
    assert record.script["optimizer"] == "AdamW"


NEVER_STEPS = """
import sys, sitecustomize
print(sitecustomize.OF_THE_ENVIRONMENT, [path for path in sys.path if path.endswith("hook")])
sys.exit(7)
"""


@pytest.mark.slow
def test_a_script_that_never_steps_has_one_line_and_its_own_exit_code(watch, tmp_path, monkeypatch):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("OF_THE_ENVIRONMENT = 3")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    ended, record = watch(NEVER_STEPS)
    assert (ended.returncode, record.outcome) == (7, "crashed")
    assert ended.stdout.startswith(b"3 []\n")
    assert record.reason == "script exit code 7 after 'its start'"


def test_a_python_that_takes_no_hook_is_told_of(watch):
    ended, record = watch("print('hello')", launcher=("-I",))
    assert (ended.returncode, record.outcome) == (2, "refused")
    assert "-I" in record.reason


@pytest.mark.slow
def test_a_script_that_does_not_step_in_time_is_ended(watch):
    ended, record = watch("while True: pass", options=("--seconds", "1"))
    assert (ended.returncode, record.outcome) == (2, "refused")
    assert "--step-of" in record.reason


STEPS_WHEN_TOLD_TO_END = """
import signal

signal.signal(signal.SIGTERM, lambda *_: None)
signal.pause()
import torch

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters())
for step in range(3):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_a_script_that_steps_while_it_is_ended_leaves_a_record(watch):
    ended, record = watch(STEPS_WHEN_TOLD_TO_END, options=("--seconds", "3"))
    assert (ended.returncode, record.outcome) == (2, "refused")
    assert "before one was measured" in record.reason


RANKS = """
import torch
from torch import distributed

distributed.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
while True:
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.slow
def test_of_several_ranks_one_is_measured(watch):
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node", "2")
    ended, record = watch(RANKS, launcher=launcher)
    assert (ended.returncode, record.outcome) == (0, "ok")
    assert (record.config.devices, record.resolved.batch_size) == (2, 4)
    assert record.measurement.samples == 8 * len(record.measurement.iteration_times_s)
    assert "one-rank" in {finding.code for finding in record.verdict.findings}
    assert record.script["model"].startswith("Linear ")
