"""Work of known bytes and FLOP, for counters that are proved on it."""

import time
from datetime import datetime, timezone

import pytest
import samples

from bench.config import RunConfig
from bench.launcher.measurement import _by_gpm, launch_ceilings
from bench.records import Account, CounterCheck, Job, SampledSeries
from bench.records.folders import RecordFolder
from bench.records.journal import JournalReader, JournalWriter
from bench.training.devices import open_device
from bench.worker.attempt import RoofsAttempt

MIB = 2**20


@pytest.fixture
def attempt(tmp_path, monkeypatch):
    """A worker's attempt whose arrays have 4 MiB, and whose work lasts no longer than a launch."""
    monkeypatch.setattr("bench.roofs.array_sizes", lambda *_: (4 * MIB,))
    monkeypatch.setattr("bench.worker.attempt._KNOWN_S", 0.0)
    monkeypatch.setattr("bench.worker.attempt._AROUND_S", 0.0)

    def make(**task):
        folder = RecordFolder.create(tmp_path)
        folder.write(folder.config, Job(kind="ceilings", config=RunConfig(), task=task))
        return RoofsAttempt(folder, JournalWriter(folder.journal))

    return make


def test_a_copy_a_read_and_a_product_are_done_between_marks(attempt):
    made = attempt()
    before_s = time.perf_counter()
    made._do_known_work(open_device("cpu"))
    found = {
        one.work: (one.counter, one.quantity, one.known) for one in made.found["counter_checks"]
    }
    assert found == {
        "copy 4 MiB x 1": ("GPM", "bytes", 2 * 4 * MIB),
        "read 4 MiB x 1": ("GPM", "bytes", 4 * MIB),
        "matmul fp32 1024x1024x1024 NN x 1": ("GPM", "flops", 2 * 1024**3),
    }
    events = JournalReader(made.folder.journal).new_events()
    names = ("copy", "read", "matmul")
    assert [one.name for one in events] == [
        f"{name}_{end}" for name in names for end in ("started", "ended")
    ]
    for one, begin, end in zip(
        made.found["counter_checks"], events[::2], events[1::2], strict=True
    ):
        assert before_s < begin.clock_s
        assert one.took_s <= end.clock_s - begin.clock_s
        assert one.counted is None


def test_under_a_tool_it_is_what_the_task_names(attempt):
    made = attempt(work="read")
    made._do_known_work(open_device("cpu"))
    (one,) = made.found["counter_checks"]
    assert (one.work, made.found["iterations"]) == ("read 4 MiB x 1", 1)


def known(quantity):
    return CounterCheck.of(
        "not yet", counter="GPM", work="w", quantity=quantity, known=1e12, took_s=2.0
    )


def seen(**facts):
    series = [
        SampledSeries(name=name, source="nvml", times_s=(0.1, 0.6, 1.1), values=values)
        for name, values in {
            "gpu_tensor_active_percent": (10.0, 80.0, 80.0),  # the first is of the time before too
            "gpu_sm_clock_mhz": (1700.0, 1700.0, 1700.0),
        }.items()
    ]
    return samples.telemetry(series=tuple(series), **facts)


H100 = samples.device_info(backend="cuda", cores=132, compute_capability="9.0")


def test_gpm_says_bytes_and_of_a_product_the_time_of_its_tensor_cores():
    assert _by_gpm(known("bytes"), seen(dram_bytes=0.98e12), H100).share == pytest.approx(0.98)
    # 2 s x 80 % x 4096 FLOP x 132 multiprocessors x 1700 MHz
    flops = 2 * 0.8 * 4096 * 132 * 1.7e9
    assert _by_gpm(known("flops"), seen(dram_bytes=1.0), H100).counted == pytest.approx(flops)


@pytest.mark.parametrize("quantity", ["bytes", "flops"])
def test_what_gpm_does_not_say_has_its_reason(quantity):
    none = samples.telemetry(why_missing="GPM: Not Supported")
    check = _by_gpm(known(quantity), none, H100)
    assert (check.is_right, check.sentence) == (
        False,
        f"GPM counted nothing of the {quantity} of w: GPM: Not Supported",
    )


def test_of_another_architecture_a_clocks_flops_are_not_known():
    blackwell = H100.replaced(compute_capability="10.0")
    check = _by_gpm(known("flops"), seen(dram_bytes=1.0), blackwell)
    assert "9.0 alone" in check.missing["counted"]


def test_ceilings_hold_what_was_counted_between_the_marks_of_each_work(tmp_path, monkeypatch):
    gb = {"copy": 0.97, "read": 1.02}
    checks = tuple(
        CounterCheck.of("", {"counted": "not yet"}, counter="GPM", work=f"{name} 4 MiB x 9",
                        quantity="bytes", known=1e9, took_s=2.0)
        for name in gb
    )  # fmt: skip
    asked = []

    class Watch:
        started = datetime.now(timezone.utc)

        def __init__(self, *_, deadline_s):
            pass

        def wait(self):
            return Account.of("not here", outcome="ok", counter_checks=checks)

        def telemetry_between(self, first, last):
            asked.append((first, last))
            return samples.telemetry(dram_bytes=1e9 * gb.get(first.partition("_")[0], 0.0))

    monkeypatch.setattr("bench.launcher.measurement.WorkerWatch", Watch)
    record = launch_ceilings("cuda", RecordFolder.create(tmp_path))
    assert [one.share for one in record.counter_checks] == [0.97, 1.02]
    assert all(one.is_right for one in record.counter_checks)
    assert asked[1:] == [("copy_started", "copy_ended"), ("read_started", "read_ended")]
