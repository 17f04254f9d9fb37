"""A plan measured by real workers: to the end, taken up again, and by two sweeps at once."""

import shutil
import threading
from collections import Counter

import pytest
import samples
from worker_processes import small_run

from bench.launcher.device_lock import exclusive
from bench.records import Finding, Verdict
from bench.records.folders import read_records
from campaigns.local import LocalExecutor, identify_machine
from campaigns.plan import Plan, SweepOrder, SweepWatch

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("mlproject_command")]


@pytest.fixture(scope="module")
def machine():
    return identify_machine()


def config(batch_size=4, model="small", **changes):
    return small_run(model, batch_size=batch_size, campaign="c", **changes)


def broken():
    return config(model="raises_later")


def swept(machine, records, *configs, watch=None, deliver=None, retry_failed=False, profile=()):
    plan = Plan(configs, {}, ())
    order = SweepOrder(plan, "c", records, retry_failed, settle_s=0.0, profile=profile)
    deliver = deliver or (lambda *_: None)
    return list(LocalExecutor(machine).sweep(order, deliver, watch or SweepWatch()))


def states(turns):
    return [(turn.state, turn.outcome) for turn in turns]


@pytest.mark.long
def test_what_is_measured_is_on_disk_when_delivered_and_not_measured_again(machine, tmp_path):
    delivered = []

    def deliver(folder, record):
        assert folder.read_record() == record
        delivered.append(record)

    plan = [config(8, "out_of_memory"), config(16, "out_of_memory"), config(), broken()]
    turns = swept(machine, tmp_path, *plan, deliver=deliver)
    assert states(turns) == [
        ("measured", "oom"),  # a result, and larger batches are skipped
        ("skipped", None),
        ("measured", "ok"),
        ("measured", "crashed"),
    ]
    assert "batch 8" in turns[1].reason
    assert turns[0].record.record_id in turns[1].reason
    assert delivered == [turn.record for turn in turns if turn.record is not None]
    again = swept(machine, tmp_path, *plan)
    assert states(again) == [
        ("measured before", "oom"),
        ("skipped", None),
        ("measured before", "ok"),
        ("measured before", "crashed"),
    ]
    # Failures only when asked.
    retried = swept(machine, tmp_path, config(), broken(), retry_failed=True)
    assert states(retried) == [("measured before", "ok"), ("measured", "crashed")]
    assert len(read_records(tmp_path)) == 4


@pytest.mark.long
def test_two_sweeps_at_once_wait_for_the_device_and_measure_everything_once(machine, tmp_path):
    waiting = threading.Event()
    turns = []

    class Watch(SweepWatch):
        def waiting(self, holder):
            waiting.set()

    def sweep():
        turns.extend(swept(machine, tmp_path, config(1), config(2), watch=Watch()))

    threads = [threading.Thread(target=sweep) for _ in range(2)]
    with exclusive(["cpu"]):
        for thread in threads:
            thread.start()
        assert waiting.wait(300)
        assert read_records(tmp_path) == []
    for thread in threads:
        thread.join()
    assert Counter(turn.state for turn in turns) == {"measured": 2, "measured before": 2}
    assert Counter(r.config.batch_size for r in read_records(tmp_path)) == {1: 1, 2: 1}


@pytest.fixture
def scripted(monkeypatch):
    """Sweeps without workers: the environment, what was profiled, and the doubts of each run."""
    here, profiles, doubts = (samples.environment(),), [], []

    def measured(config, folder, on_event, deadline_s):
        known = {"environment": here[0], "verdict": Verdict.of(doubts.pop(0) if doubts else [])}
        folder.close(samples.run_record(config, record_id=folder.record_id, **known))
        return folder.read_record()

    def profiled(config, folder, tools, timed, on_event):
        profiles.append((config.world_size, config.data_only, tools, timed.record_id))
        folder.close(
            samples.profile_record(config, record_id=folder.record_id, environment=here[0])
        )
        return folder.read_record()

    monkeypatch.setattr("campaigns.local.launch_measurement", measured)
    monkeypatch.setattr("campaigns.local.launch_profile", profiled)
    return here, profiles, doubts


def test_a_profile_is_made_by_the_tools_that_can_examine_a_step(scripted, tmp_path, monkeypatch):
    here, profiles, _ = scripted
    monkeypatch.setattr("bench.profilers.perf.PerfTool.obstacle", lambda *_: None)
    plan = [config(), config(devices=2), config(data="d", data_only=True)]
    for number, profile in enumerate((("torch", "perf"), ("perf",), ("ncu",), ("auto",))):
        swept(here, tmp_path / str(number), *plan, profile=profile)
    assert [asked[:3] for asked in profiles] == [
        (1, False, ("torch", "perf")),
        (2, False, ("torch",)),
        (1, False, ("perf",)),
        (1, False, None),
        (2, False, None),
    ]


def test_a_configuration_is_profiled_once_after_its_first_run_without_a_doubt(scripted, tmp_path):
    here, profiles, doubts = scripted
    doubts[:] = [[Finding.of("busy-host", cores=1, usable=2)], [], []]
    delivered = []

    def again():
        repeats = [config(repeat=number) for number in (1, 2, 3)]
        deliver = lambda _, record: delivered.append(record)  # noqa: E731
        swept(here, tmp_path, *repeats, deliver=deliver, profile=("torch",))
        return [record.kind for record in delivered]

    kinds = ["measurement", "measurement", "profile", "measurement"]
    assert again() == kinds
    assert [timed for *_, timed in profiles] == [delivered[1].record_id]
    # The next sweep measures nothing, and profiles what an earlier one did not.
    assert again() == kinds
    shutil.rmtree(tmp_path / delivered[2].record_id)
    assert again() == [*kinds, "profile"]
    assert profiles[1][-1] in (delivered[1].record_id, delivered[3].record_id)
