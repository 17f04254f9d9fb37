"""A plan measured by real workers: to the end, taken up again, and by two sweeps at once."""

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

from bench.config import RunConfig
from bench.records.folders import read_records, record_folders
from campaigns.sweep.executor import SweepOrder, SweepWatch
from campaigns.sweep.local import LocalExecutor
from campaigns.sweep.local_devices import exclusive, identify_machine
from campaigns.sweep.matrix import Plan
from campaigns.sweep.past import take_over

PROJECT = Path(__file__).resolve().parents[3]
MODELS = PROJECT / "tests" / "bench"
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _own_models(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(MODELS))


@pytest.fixture(scope="module")
def machine():
    return identify_machine()


def config(batch_size=4, model="small", **changes):
    known = {
        "arch": f"crashing_models:{model}",
        "backend": "cpu",
        "batch_size": batch_size,
        "image_size": 32,
        "warmup_iters": 1,
        "iters": 5,
        "campaign": "c",
    }
    return RunConfig(**{**known, **changes})


def swept(machine, records, *configs, watch=None, deliver=None, retry_failed=False):
    order = SweepOrder(Plan(configs, ()), "c", records, retry_failed, settle_s=0.0)
    deliver = deliver or (lambda *_: None)
    return list(LocalExecutor(machine).sweep(order, deliver, watch or SweepWatch()))


def states(turns):
    return [(turn.state, turn.outcome) for turn in turns]


def test_this_machine_has_at_least_a_cpu(machine):
    assert machine[-1].device.backend == "cpu"


def test_what_is_measured_is_not_measured_again(machine, tmp_path):
    first = swept(machine, tmp_path, config(4), config(8))
    assert states(first) == [("measured", "ok")] * 2
    again = swept(machine, tmp_path, config(4), config(8), config(8, repeat=2))
    assert states(again) == [("measured before", "ok")] * 2 + [("measured", "ok")]
    assert len(read_records(tmp_path)) == 3


def test_a_record_is_on_disk_before_it_is_delivered(machine, tmp_path):
    delivered = []

    def deliver(folder, record):
        assert folder.read_record() == record
        delivered.append(record.record_id)

    turns = swept(machine, tmp_path, config(), deliver=deliver)
    assert delivered == [turn.record.record_id for turn in turns]


def test_out_of_memory_is_a_result_and_larger_batches_are_skipped(machine, tmp_path):
    plan = [config(8, model="out_of_memory"), config(16, model="out_of_memory"), config(4)]
    turns = swept(machine, tmp_path, *plan)
    assert states(turns) == [("measured", "oom"), ("skipped", None), ("measured", "ok")]
    assert "batch 8" in turns[1].reason
    assert turns[0].record.record_id in turns[1].reason
    again = swept(machine, tmp_path, *plan)
    assert states(again) == [
        ("measured before", "oom"),
        ("skipped", None),
        ("measured before", "ok"),
    ]


def test_failures_are_taken_up_again_only_when_asked(machine, tmp_path):
    broken = config(model="raises_later")
    assert states(swept(machine, tmp_path, broken, config())) == [
        ("measured", "crashed"),
        ("measured", "ok"),
    ]
    assert states(swept(machine, tmp_path, broken)) == [("measured before", "crashed")]
    again = swept(machine, tmp_path, broken, retry_failed=True)
    assert states(again) == [("measured", "crashed")]


class InterruptAtWindow(SweepWatch):
    def on_event(self, event):
        if event.name == "window_started":
            raise KeyboardInterrupt


def test_an_interrupt_ends_the_sweep_and_its_run_is_taken_up_again(machine, tmp_path):
    plan = [config(4, iters=10**6), config(8)]
    turns = swept(machine, tmp_path, *plan, watch=InterruptAtWindow())
    assert states(turns) == [("measured", "interrupted")]
    short = [config(4, iters=10**6, max_seconds=1.0), config(8)]
    assert states(swept(machine, tmp_path, *short)) == [("measured", "ok")] * 2


def test_two_sweeps_at_once_measure_everything_once(machine, tmp_path):
    plan = [config(batch) for batch in (1, 2, 3, 4)]
    results = {}

    def run(name):
        results[name] = swept(machine, tmp_path, *plan)

    threads = [threading.Thread(target=run, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    states_of_both = Counter(turn.state for turns in results.values() for turn in turns)
    assert states_of_both == {"measured": 4, "measured before": 4}
    assert Counter(r.config.batch_size for r in read_records(tmp_path)) == {1: 1, 2: 1, 3: 1, 4: 1}


def test_a_device_in_use_is_waited_for(machine, tmp_path):
    waiting = threading.Event()

    class Watch(SweepWatch):
        def waiting(self, device):
            waiting.set()

    done = []
    with exclusive(machine[-1].device, lambda: None):
        sweep = threading.Thread(
            target=lambda: done.extend(swept(machine, tmp_path, config(), watch=Watch()))
        )
        sweep.start()
        assert waiting.wait(60)
        assert read_records(tmp_path) == []
    sweep.join()
    assert states(done) == [("measured", "ok")]


PROGRAM = """
import sys
from pathlib import Path
sys.path[:0] = [{project!r}, {tests!r}]
from campaigns.sweep.local_devices import identify_machine
from test_sweep_run import config, swept
plan = [config(2), config(4, iters=10**6, max_seconds=3.0), config(8)]
swept(identify_machine(), Path({records!r}), *plan)
"""


def test_a_killed_sweep_loses_nothing_and_repeats_nothing(machine, tmp_path):
    records = tmp_path / "records"
    program = PROGRAM.format(
        project=str(PROJECT), tests=str(Path(__file__).parent), records=str(records)
    )
    sweep = subprocess.Popen(
        [sys.executable, "-c", program], env=os.environ | {"PYTHONPATH": str(MODELS)}
    )
    while not _in_second_window(records):
        assert sweep.poll() is None
    sweep.send_signal(signal.SIGKILL)
    sweep.wait()
    waited = []
    take_over(records, waited.append)
    assert len(waited) == 1  # the orphan measured on, and its measurement counts
    plan = [config(2), config(4, iters=10**6, max_seconds=3.0), config(8)]
    again = swept(machine, records, *plan)
    assert states(again) == [("measured before", "ok")] * 2 + [("measured", "ok")]
    assert Counter(r.config.batch_size for r in read_records(records)) == {2: 1, 4: 1, 8: 1}


def _in_second_window(records):
    if not records.is_dir():
        return False
    journals = [folder.journal for folder in record_folders(records)]
    reached = [path.read_text() for path in journals if path.is_file()]
    return len(reached) == 2 and "window_started" in reached[-1]
