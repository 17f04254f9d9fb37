"""`mlproject watch` on scripts of others: run as they are, each leaves a record."""

import json
import os
import signal
import statistics
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from servers import free_port

from analysis.account import account_of
from bench.cost.estimate import step_complexity
from bench.records import StepSpec
from bench.records.folders import record_folders
from bench.records.step_settings import settings_of
from bench.worker.hook.sitecustomize import _Hook

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

signal.signal(signal.SIGINT, save)
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


#: A script's model, and one step of it: it sleeps, so that all are as long, and known soon.
STEPS = """
import os, signal, sys, time, torch

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters())
end_s = time.monotonic() + 60

def step():
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    time.sleep(0.005)

"""


@pytest.fixture
def watch(tmp_path):
    """Run `mlproject watch` on a script of this text; return what it printed and the record."""

    def run(text, *arguments, options=(), launcher=(), tracked=False, seconds=20, **how):
        (tmp_path / "train.py").write_text(text)
        command = [sys.executable, PROJECT / "mlproject.py", "watch", "--seconds", str(seconds)]
        command += [*options] if tracked else [*options, "--no-track"]
        command += ["--", sys.executable, *launcher, "train.py", *arguments]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, **how)
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
    assert b"20 s at most" in ended.stderr
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


CRASHES = f"""import bench
{STEPS}
for number in range(3):
    if number and os.fork() == 0:
        step()
        os._exit(0)
    if number:
        os.wait()
    step()
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
    assert record.script["optimizer"] == "SGD"


NEVER_STEPS = """
import glob, os, sys, sitecustomize
print(sitecustomize.OF_THE_ENVIRONMENT, [path for path in sys.path if path.endswith("hook")])
print([os.path.realpath(file) for file in glob.glob("/proc/self/fd/*")])
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
    assert b".lock" not in ended.stdout  # it gets none of ours
    assert record.reason == "script exit code 7 after 'its start'"


ENDED_IN_ITS_WINDOW = f"""{STEPS}
journal = os.path.join(os.environ["MLPROJECT_WATCH"], "journal.jsonl")
left = 5
while left:
    step()
    left -= os.path.exists(journal) and "window_started" in open(journal).read()
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(60)
"""


@pytest.mark.slow
def test_a_script_that_a_signal_ends_keeps_what_was_measured(watch):
    ended, record = watch(ENDED_IN_ITS_WINDOW)
    assert (ended.returncode, record.outcome) == (128 + signal.SIGTERM, "interrupted")
    assert 4 <= len(record.measurement.iteration_times_s) <= 5


STEPS_WHEN_TOLD_TO_END = f"""
import signal

signal.signal(signal.SIGINT, lambda *_: None)
signal.pause()
{STEPS}
for _ in range(3):
    step()
"""


RANKS = """
import time, torch
from torch import distributed

distributed.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
while True:
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    time.sleep(0.005)
"""


@pytest.mark.slow
def test_all_ranks_of_torchrun_are_measured(watch, tmp_path):
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node", "2")
    ended, record = watch(RANKS, launcher=launcher)
    assert (ended.returncode, record.outcome) == (0, "ok")
    assert (record.config.devices, record.resolved.batch_size) == (2, 4)
    assert record.measurement.samples == 8 * len(record.measurement.iteration_times_s)
    assert record.script["model"].startswith("Linear ")
    check_ranks(record, "DistributedDataParallel")
    [table] = tmp_path.glob("records/*/ranks.csv")
    assert len(table.read_text().splitlines()) == 3
    assert not [*tmp_path.glob("records/*/steps-*")]


def check_ranks(record, parallelism, sizes=(4, 4)):
    """All are there, and their times are those of the window's steps."""
    assert record.measurement.ranks is not None, record.measurement.missing
    figures, measured = record.measurement.ranks, record.measurement
    assert (figures.communication, figures.parallelism) == ("gloo", parallelism)
    assert tuple(rank.samples_per_step for rank in figures.ranks) == sizes
    for rank in figures.ranks:
        assert rank.host
        assert rank.max_rss_bytes > 1e6
        spent = zip(rank.iteration_times_s, rank.exchange_wait_s, rank.data_wait_s, strict=True)
        assert all(0 <= wait + load <= 1.0001 * step for step, wait, load in spent)
        assert sum(rank.exchange_wait_s) > 0
    own_s = figures.ranks[0].iteration_times_s
    assert sum(own_s) == pytest.approx(sum(measured.iteration_times_s[: len(own_s)]), rel=0.05)


@pytest.mark.long
@pytest.mark.parametrize("is_watched", [True, False])
def test_ranks_of_another_machine_give_their_steps_or_are_said_to_be_absent(
    watch, tmp_path, monkeypatch, is_watched
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # each holds a machine of its own
    nodes = ("-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1")
    nodes += ("--master-addr", "127.0.0.1", "--master-port", f"{free_port()}", "--node-rank")
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / "train.py").write_text(RANKS)
    hook = PROJECT / "mlproject.py", "watch", "--seconds", "50", "--no-track", "--", sys.executable
    command = [sys.executable, *(hook if is_watched else ()), *nodes, "1", "train.py"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(folder)}
    other = subprocess.Popen(command, cwd=folder, env=environment, start_new_session=True)
    ended, record = watch(RANKS, launcher=(*nodes, "0"), seconds=50)
    with suppress(ProcessLookupError):
        os.killpg(other.pid, signal.SIGTERM)
    other.wait()
    assert (ended.returncode, record.config.world_size) == (0, 2)
    if is_watched:
        check_ranks(record, "DistributedDataParallel")
    else:
        assert "ranks-absent" in {finding.code for finding in record.verdict.findings}
    assert [rank.node for rank in record.measurement.ranks.ranks] == [0, 1]


SPAWNED = """
import os, time, torch
from torch import distributed, multiprocessing

def train(rank):
    place = "file://" + os.path.abspath("meet")
    distributed.init_process_group("gloo", place, rank=rank, world_size=2)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    begun = 0
    for number in range(10**9):
        time.sleep(0.005)
        model(torch.ones(4 + 2 * rank, 8)).sum().backward()
        optimizer.step()
        if KILLED and rank and number and number % 10 == 0:
            with open(os.environ["MLPROJECT_WATCH"] + "/journal.jsonl") as journal:
                begun += "window_started" in journal.read()
            if begun > 8:
                os.kill(os.getpid(), 9)

if __name__ == "__main__":
    multiprocessing.spawn(train, nprocs=2)
"""


@pytest.mark.long
def test_ranks_that_a_script_spawns_are_measured_with_a_batch_each(watch):
    ended, record = watch(SPAWNED.replace("KILLED", "0"), seconds=40)
    assert (ended.returncode, record.outcome) == (0, "ok")
    check_ranks(record, "DistributedDataParallel", (4, 6))
    assert record.measurement.samples_per_iteration == 10
    assert "ranks-differ" in {finding.code for finding in record.verdict.findings}


@pytest.mark.long
def test_of_a_rank_that_is_killed_what_was_measured_is_kept(watch):
    ended, record = watch(SPAWNED.replace("KILLED", "1"), seconds=60)
    assert ended.returncode != 0
    assert record.outcome == "crashed"
    assert record.reason.startswith("rank 1: its process on ")
    first, second = record.measurement.ranks.ranks
    assert first.iteration_times_s
    # the killed one's last quarter of a second is not written
    assert second.iteration_times_s or "it ended" in second.missing["iteration_times_s"]


SHARDED = RANKS.replace(
    "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))",
    "from torch.distributed.fsdp import fully_shard\nmodel = fully_shard(torch.nn.Linear(8, 8))",
).replace('"gloo")', '"gloo")\ntorch.distributed.device_mesh.init_device_mesh("cpu", (2,))')
ACCELERATED = RANKS.replace(
    "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))",
    "import accelerate\nmodel = torch.nn.Linear(8, 8)",
).replace(
    "while True:",
    "model, optimizer = accelerate.Accelerator(cpu=True).prepare(model, optimizer)\nwhile True:",
)


_TORCHRUN = ("torch.distributed.run", "--nproc-per-node", "2")
TENSOR_PARALLEL = RANKS.replace(
    "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))",
    """from torch.distributed.tensor import parallel
mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2,))
layers = {"0": parallel.ColwiseParallel(), "1": parallel.RowwiseParallel()}
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
model = parallel.parallelize_module(model, mesh, layers)""",
)
PIPELINE = RANKS.replace(
    "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))",
    """from torch.distributed import pipelining
model, rank = torch.nn.Linear(8, 8), distributed.get_rank()
stage = pipelining.PipelineStage(model, rank, 2, torch.device("cpu"))
schedule = pipelining.ScheduleGPipe(stage, 2, loss_fn=torch.nn.functional.mse_loss)""",
).replace(
    "model(torch.ones(4, 8)).sum().backward()",
    "schedule.step(*(() if rank else (torch.ones(4, 8),)), "
    "target=torch.ones(4, 8) if rank else None)",
)


@pytest.mark.long
@pytest.mark.parametrize(
    ("text", "parallelism", "step_flops"),
    # two layers of 8 x 8 for 4 samples, halved: forward, weights, and the second's input
    [(TENSOR_PARALLEL, "tensor parallel", 5 * 2 * 4 * 8 * 8 // 2), (PIPELINE, "pipeline", None)],
)
def test_a_model_that_is_shared_by_ranks_has_each_sample_once_and_no_work_of_unseen_stages(
    watch, text, parallelism, step_flops
):
    ended, record = watch(text, launcher=("-m", *_TORCHRUN), seconds=40)
    assert (ended.returncode, record.outcome) == (0, "ok")
    check_ranks(record, parallelism)
    assert record.measurement.samples_per_iteration == 4
    assert (record.complexity and record.complexity.step_flops) == step_flops
    assert step_flops or "stages of a pipeline" in record.missing["complexity"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("text", "module", "parallelism"),
    [
        (SHARDED, _TORCHRUN, "fully_shard"),
        (
            ACCELERATED.replace('distributed.init_process_group("gloo")', ""),
            ("accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"),
            "DistributedDataParallel",
        ),
    ],
)
def test_ranks_of_other_launchers_and_libraries_are_measured(watch, text, module, parallelism):
    ended, record = watch(text, launcher=("-m", *module), seconds=40)
    assert (ended.returncode, record.outcome) == (0, "ok")
    check_ranks(record, parallelism)


STEPS_IN_VAIN = """
import functools

class Trainer:
    def train_step(self):
        return 1

def main():
    def train_one():
        return 2
    return train_one() + Trainer().train_step()

number, partly = 5, functools.partial(main)
print("ended well", main(), partly())
"""


@pytest.mark.parametrize("step_of", ["train_step", "nosuch"])
def test_a_wrong_step_of_is_one_line_and_the_script_goes_on(watch, step_of):
    options = ("--keep-going", "--step-of", f"__main__:{step_of}")
    ended, record = watch(STEPS_IN_VAIN, options=options)
    assert ended.stdout.startswith(b"ended well 3 3\n")
    assert (ended.returncode, record.measurement) == (2, None)
    assert ("and no call of" in record.reason) == (step_of == "nosuch")
    assert "module:Class.method" in record.reason
    assert ended.stderr.count(record.reason.encode()) == 1


@pytest.mark.parametrize(
    ("step_of", "said"),
    [
        ("train_step", "the function Trainer.train_step"),
        ("train_one", "the function main.<locals>.train_one"),
        ("Trainer", "the class Trainer"),
        *[(name, None) for name in ("nosuch", "number", "partly")],
    ],
)
@pytest.mark.skipif(sys.version_info < (3, 11), reason="code has no qualified name before 3.11")
def test_what_step_of_names_instead_of_a_function_is_said(tmp_path, step_of, said):
    (tmp_path / "train.py").write_text(STEPS_IN_VAIN)
    hook = {"PYTHONPATH": str(PROJECT / "bench" / "worker" / "hook")}
    hook |= {"MLPROJECT_WATCH": str(tmp_path), "MLPROJECT_STEP_OF": f"__main__:{step_of}"}
    subprocess.run([sys.executable, "train.py"], cwd=tmp_path, env=os.environ | hook, check=True)
    problem = tmp_path / "problem"
    assert problem.exists() == (said is not None)
    assert said is None or said in problem.read_text()


@pytest.mark.parametrize("name", ["static", "of_class", "usual"])
def test_a_method_of_any_kind_may_be_the_step(name):
    given, steps = [], []

    class Trainer:
        static = staticmethod(given.append)

        @classmethod
        def of_class(cls, what):
            given.append(cls)

        def usual(self, what):
            given.append(type(self))

    class Heir(Trainer):
        pass

    hook = object.__new__(_Hook)
    hook._call = steps.append
    hook._stand_around(Heir, name)
    getattr(Heir(), name)(Heir)
    assert (given, steps) == ([Heir], ["stepped"])


WAITS = f"""{STEPS}
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 10**6
    def __getitem__(self, index):
        if wait_s := float(sys.argv[1]):
            time.sleep(wait_s)
        return torch.ones(2, 4)

for inputs in DataLoader(Slow(), batch_size=None):
    model(inputs).sum().backward()
    optimizer.step()
    time.sleep(0.02)
"""


@pytest.mark.long
@pytest.mark.parametrize(("wait_s", "share"), [(0.0, 0.0), (0.01, 1 / 3)])
def test_the_gain_without_a_wait_is_measured_beside_what_the_account_says(watch, wait_s, share):
    options = ("--without", "input", "--format", "json")
    ended, record = watch(WAITS, str(wait_s), options=options, seconds=30)
    assert (ended.returncode, record.outcome) == (0, "ok")
    [gain] = json.loads(ended.stdout)["gains"]
    assert gain["without"] == "input"
    assert abs(1 - 1 / gain["gain"] - share) < 0.03
    assert abs(1 - 1 / gain["account_gain"] - share) < 0.03
    assert ("nothing to gain" in gain["sentence"]) == (share == 0)
    assert b"weights of this run" in ended.stderr
    assert "taken-out" in {finding.code for finding in record.verdict.findings}


EXCHANGES = f"""{STEPS}
from torch import distributed
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.utils.data import DataLoader

def slow(state, bucket):
    time.sleep(0.02)
    return allreduce_hook(state, bucket)

distributed.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(model)
model.register_comm_hook(None, slow)
while True:
    for inputs in DataLoader(torch.ones(1000, 4), batch_size=2):
        model(inputs).sum().backward()
        optimizer.step()
        time.sleep(0.02)
"""


@pytest.mark.long
def test_of_two_ranks_the_exchange_and_the_input_are_taken_out_of_both(watch):
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node", "2")
    options = ("--without", "sync,input", "--format", "json")
    ended, record = watch(EXCHANGES, launcher=launcher, options=options, seconds=60)
    assert (ended.returncode, record.outcome) == (0, "ok")
    gains = {gain["without"]: gain for gain in json.loads(ended.stdout)["gains"]}
    assert abs(1 - 1 / gains["sync"]["gain"] - 0.5) < 0.05
    assert "nothing to gain" in gains["input"]["sentence"]


CALLS_ITS_STEP = f"""{STEPS}
class Trainer:
    @classmethod
    def train(cls, number):
        step()
        return number

assert [Trainer.train(number) for number in range(600)] == list(range(600))
"""


@pytest.mark.slow
def test_a_function_that_is_called_once_a_step_is_measured(watch):
    how = ("--keep-going", "--step-of", "__main__:Trainer.train")
    ended, record = watch(CALLS_ITS_STEP, options=how)
    assert (ended.returncode, record.outcome) == (0, "ok")
    assert ended.stderr.count(b"Error") == 0
    if record.complexity is not None:
        assert record.complexity.forward_macs == 2 * 4 * 4


BREAKS_THE_HOOK = f"""{STEPS}
import weakref

weakref.WeakKeyDictionary = None
for _ in range(3):
    step()
print("ended well")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "how", "outcome", "reason", "printed"),
    [
        # a Python that takes no hook
        ("print('hello')", {"launcher": ("-I",)}, "refused", "-I", b"hello"),
        (STEPS_WHEN_TOLD_TO_END, {"seconds": 3}, "refused",
         "before one was measured", b""),
        # what goes wrong in the hook does not stop the script
        (BREAKS_THE_HOOK, {}, "unsupported", "TypeError", b"ended well"),
    ],
)  # fmt: skip
def test_a_script_that_cannot_be_measured_has_one_reason(
    watch, text, how, outcome, reason, printed
):
    ended, record = watch(text, **how)
    assert (ended.returncode, record.outcome) == (2, outcome)
    assert reason in record.reason
    assert ended.stdout.startswith(printed)


@pytest.mark.slow
def test_without_a_step_nothing_is_uploaded_now_or_by_sync(watch, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    ended, record = watch("print('hello')", tracked=True)
    assert (ended.returncode, record.outcome) == (2, "refused")
    assert b"nothing is uploaded" in ended.stderr
    assert not (tmp_path / "mlflow.db").exists()
    command = [sys.executable, PROJECT / "mlproject.py", "sync"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True)
    assert (ended.returncode, ended.stdout.partition(b" (")[0]) == (0, b"1 without a step")


IS_ENDED = """
import atexit, subprocess, sys, time

child = "import time\\ntry: time.sleep(60)\\nexcept KeyboardInterrupt: print('child')"
atexit.register(print, "exit")
started = subprocess.Popen([sys.executable, "-c", child])
try:
    time.sleep(60)
finally:
    started.wait(60)
    print("finally", flush=True)
"""


@pytest.mark.parametrize("in_background", [False, True])
@pytest.mark.skipif(os.name == "nt", reason="Windows has no process groups to interrupt")
def test_a_script_is_ended_as_by_ctrl_c(watch, in_background):
    def as_a_shell_does():
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    how = {"preexec_fn": as_a_shell_does} if in_background else {}
    ended, record = watch(IS_ENDED, seconds=1, **how)
    assert ended.stdout.splitlines()[:3] == [b"child", b"finally", b"exit"]
    assert (ended.returncode, record.outcome) == (2, "refused")
    assert "seconds=1" in record.reason
    assert "--step-of" in record.reason


#: Each takes what the hook might lean on.
ROBS = f"""
import os, shutil, sys

if "second" not in sys.argv:
    os.mkdir("away")
    os.chdir("away")
{STEPS}
monotonic = time.monotonic
if "second" not in sys.argv:
    for _ in range(20):
        step()
    os.execv(sys.executable, [sys.executable, "../train.py", "second"])
time.perf_counter = time.time = time.monotonic = lambda: 5.0
shutil.rmtree(os.getcwd())
os.environ.clear()
sys.path.clear()
while monotonic() < end_s:
    step()
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="there exec starts another process")
def test_a_script_that_replaces_itself_and_takes_what_it_can_is_measured(watch, tmp_path):
    ended, record = watch(ROBS)
    assert (ended.returncode, record.outcome) == (0, "ok")
    assert min(record.measurement.iteration_times_s) > 0
    assert not (tmp_path / "away").exists()


DAEMON = f"""{STEPS}
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
try:
    while time.monotonic() < end_s:
        step()
except KeyboardInterrupt:
    open("asked", "w")
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="a daemon is found by its environment")
def test_a_daemon_is_measured_and_ended(watch, tmp_path):
    ended, record = watch(DAEMON)
    assert (ended.returncode, record.outcome) == (0, "ok")
    assert record.process is None
    assert (tmp_path / "asked").exists()


COMPILES_ITS_UPDATE = f"""{STEPS}
update = torch.compile(lambda: optimizer.step(), backend="eager")
while time.monotonic() < end_s:
    model(torch.ones(2, 4)).sum().backward()
    update()
    time.sleep(0.005)
"""


@pytest.mark.slow
def test_a_step_that_ends_within_a_compiled_function_is_not_counted(watch):
    ended, record = watch(COMPILES_ITS_UPDATE)
    assert (ended.returncode, record.outcome) == (0, "ok")
    assert b"INTERNAL ASSERT" not in ended.stderr
    assert "torch.compile" in record.missing["complexity"]


FAILS_ONCE = f"""{STEPS}
for _ in range(10**9 if int(os.environ["TORCHELASTIC_RESTART_COUNT"]) else 5):
    step()
raise RuntimeError("once")
"""


@pytest.mark.long
def test_what_torchrun_restarts_is_measured(watch):
    launcher = ("-m", "torch.distributed.run", "--standalone", "--max-restarts", "1")
    ended, record = watch(FAILS_ONCE, launcher=launcher)
    assert (ended.returncode, record.outcome) == (0, "ok")


@pytest.mark.slow
def test_what_a_script_claims_is_held_against_its_step(watch):
    """Forward and the weight's gradient are 2 x 4 x 4 multiply-adds each: 128 FLOP."""
    text = STEPS + "while time.monotonic() < end_s: step()"
    claim = ["--claims-mfu", "0.5", "--peak", "1e12"]
    ended, record = watch(text, options=claim, seconds=10)
    assert record.complexity.step_flops == 128
    assert b"claim_counts" in ended.stdout
    assert b"none of the usual counts" in ended.stdout
