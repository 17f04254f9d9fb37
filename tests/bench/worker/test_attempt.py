"""What a worker leaves, however its job ends."""

import sys
import time
from contextlib import contextmanager
from datetime import datetime, timezone
from types import SimpleNamespace

import pytest
import samples
import torch
from fakes import Card, ScriptedClock
from worker_processes import small_run

from bench.config import RunConfig
from bench.errors import Unknown, UnsupportedError
from bench.launcher.measurement import _by_gpm, finish_run, launch_ceilings
from bench.profilers.torch_profiler import work_set
from bench.records import Account, CounterCheck, Job, SampledSeries
from bench.records.folders import RecordFolder
from bench.records.journal import JournalReader, JournalWriter
from bench.records.metrics import summary
from bench.records.verdict import judge
from bench.training.devices import open_device
from bench.training.team import Team
from bench.worker.attempt import RoofsAttempt, outcome_of
from bench.worker.measurement import StepAttempt
from bench.worker.step_setup import check_accumulation


def raising(error):
    def work(*_):
        raise error

    return work


@pytest.mark.parametrize(
    ("text", "free_bytes", "outcome"),
    [
        ("FIND was unable to find an engine to execute this computation", 99, "oom"),
        ("GET was unable to find an engine to execute this computation", 99, "oom"),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", 99, "oom"),
        # said for other reasons too: of memory only where the device has next to none left
        ("cuDNN error: CUDNN_STATUS_NOT_INITIALIZED", 4, "oom"),
        ("cuDNN error: CUDNN_STATUS_NOT_INITIALIZED", 6, "crashed"),
        ("NCCL error in: NCCLUtils.cpp:94, unhandled cuda error", 4, "oom"),
        ("NCCL error in: NCCLUtils.cpp:94, unhandled cuda error", None, "crashed"),
        ("another", 4, "crashed"),
    ],
)
def test_what_a_library_says_without_memory_is_out_of_memory(
    monkeypatch, text, free_bytes, outcome
):
    def free_and_total():
        if free_bytes is None:
            raise RuntimeError("the context is gone")
        return free_bytes, 100

    monkeypatch.setattr(torch.cuda, "mem_get_info", free_and_total)
    assert outcome_of(raising(RuntimeError(text))) == (outcome, f"RuntimeError: {text}")


def test_a_step_that_cannot_be_deterministic_or_ends_the_process_has_its_reason():
    def unpool():
        torch.use_deterministic_algorithms(True)
        try:
            torch.nn.functional.max_unpool2d(
                torch.ones(1, 1, 1, 1), torch.zeros(1, 1, 1, 1, dtype=torch.int64), 2
            )
        finally:
            torch.use_deterministic_algorithms(False)

    outcome, reason = outcome_of(unpool)
    assert outcome == "unsupported"
    assert "does not have a deterministic implementation" in reason
    assert "use deterministic=false" in reason
    words = "could not create a primitive descriptor for the LSTM forward propagation primitive"
    outcome, reason = outcome_of(raising(RuntimeError(f"{words}. Run it with ONEDNN_VERBOSE")))
    assert outcome == "unsupported"
    assert reason.startswith(f"{words}: ")
    assert "use precision=fp32" in reason
    outcome, reason = outcome_of(lambda: sys.exit(3))
    assert outcome == "crashed"
    assert "sys.exit(3)" in reason


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_a_mode_that_captures_graphs_cannot_accumulate_on_a_card(mode):
    config, card = RunConfig(compile=mode, grad_accum_steps=2), Card(ScriptedClock())
    check_accumulation(config, card)  # nothing is captured there
    card.supports_cuda_graphs = True
    with pytest.raises(UnsupportedError, match=r"use compile=default, or grad_accum_steps=1"):
        check_accumulation(config, card)
    check_accumulation(config.model_copy(update={"grad_accum_steps": 1}), card)
    check_accumulation(config.model_copy(update={"compile": "default"}), card)


def attempt_in(tmp_path, config=None, **changes):
    folder = RecordFolder.create(tmp_path, "one")
    folder.write(folder.config, Job(config=config or small_run(**changes)))
    return StepAttempt(folder, JournalWriter(folder.journal), Team())


def record_of(attempt):
    """The record of an attempt that goes on to its end here."""
    attempt.attempt()
    account, unwatched = attempt.folder.read_worker(), Unknown("nobody watched")
    return finish_run(attempt.folder, attempt.job, samples.NOW, account, unwatched)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "outcome", "words"),
    [
        ({"arch": "crashing_models:out_of_memory"}, "oom", "allocate memory"),
        ({"arch": "no_such_module:small"}, "refused", "no_such_module"),
        ({"arch": "vit_b_16", "image_size": 100}, "refused", "Expected 224 but got 100"),
        ({"precision": "tf32"}, "unsupported", "precision='tf32'"),
    ],
)
def test_what_cannot_be_measured_is_a_record_with_its_reason(tmp_path, changes, outcome, words):
    record = record_of(attempt_in(tmp_path, **changes))
    assert record.outcome == outcome
    assert words in record.reason
    assert "\n" not in record.reason
    assert record.verdict.level == "invalid"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "reason"),
    [("raises", "RuntimeError: the model had enough"), ("exits", "cut off: SystemExit")],
)
def test_what_goes_wrong_after_the_window_leaves_a_reason_and_never_an_outcome(
    tmp_path, how, reason
):
    asked = small_run(f"{how}_when_explained", explain=True)
    record = record_of(attempt_in(tmp_path, asked))
    assert (record.outcome, record.reason) == ("ok", None)
    assert len(record.measurement.iteration_times_s) == 6
    assert record.complexity is not None
    assert record.missing["ops"] == reason


FAILS = raising(RuntimeError("CUPTI_ERROR"))
OTHERS = {
    "hidden_syncs": "bench.training.devices.CpuDevice.hidden_syncs",
    "ranks": "bench.worker.measurement.StepAttempt._compare_ranks",
    "complexity": "bench.worker.step_setup.StepSetup.complexity",
}


@pytest.mark.slow
@pytest.mark.parametrize(("fails", "others"), [(FAILS, {}), (work_set, OTHERS)])
def test_what_looks_into_the_step_besides_its_window_decides_nothing_about_the_run(
    tmp_path, monkeypatch, fails, others
):
    monkeypatch.setattr("bench.worker.measurement.work_set", fails)
    for where in others.values():
        monkeypatch.setattr(where, FAILS)
    attempt = attempt_in(tmp_path, arch="unusual_models:SetsBack")
    attempt.attempt()
    account = attempt.folder.read_worker()
    assert (account.outcome, account.reason) == ("ok", None)
    assert len(account.measurement.iteration_times_s) == 6
    assert (account.complexity is None) == bool(others) == (account.measurement.work is not None)
    within = "cudnn.conv.fp32_precision to tf32" in account.measurement.changed_switches
    assert within == bool(others)  # where a step was looked into
    missing = account.missing | account.measurement.missing
    reasons = {missing[fact] for fact in (others or ["work"])}
    assert reasons == {"RuntimeError: CUPTI_ERROR"}


class NotingTeam:
    def __init__(self):
        self.notes = []
        self.local = False

    def barrier(self):
        self.notes.append("barrier")

    @contextmanager
    def no_gradient_sync(self):
        self.local = True
        yield
        self.local = False

    def gather(self, times_s):
        """Another rank took a second for each step."""
        self.mine = times_s
        return [times_s, (1.0,) * len(times_s)]


@pytest.mark.parametrize("local", [False, True])
def test_probed_steps_begin_together_and_are_known_of_every_rank(tmp_path, local):
    team = NotingTeam()

    def step():
        team.notes.append("local step" if team.local else "whole step")

    device = SimpleNamespace(synchronize=lambda: team.notes.append("idle"))
    folder = attempt_in(tmp_path, devices=2).folder
    measurement = StepAttempt(folder, None, team)
    found = measurement._times_s(SimpleNamespace(step=step, device=device), 3, local=local)
    name = "local step" if local else "whole step"
    assert team.notes == ["barrier", name, "idle"] * 4  # the first does not count
    assert found == [team.mine, (1.0, 1.0, 1.0)]


# `data_only=true`: the loader alone, and nothing said of a model that did not run


NO_MODEL = "data_only=true: no model ran"


@pytest.mark.slow
def test_a_loader_is_measured_without_a_model_and_its_rate_has_a_name_of_its_own(
    tmp_path, generated
):
    config = RunConfig(
        arch="vgg16",  # would take seconds to build
        backend="cpu",
        data=str(generated),
        data_only=True,
        cudnn_benchmark=False,  # of this process: other tests' stays
        batch_size=6,
        image_size=64,
        workers=1,
        warmup_iters=2,
        iters=4,
    )
    record = record_of(attempt_in(tmp_path, config))
    assert record.outcome == "ok", record.reason
    assert record.measurement.samples == 24
    assert record.complexity is None
    assert record.missing["complexity"] == NO_MODEL
    for fact in ("first_loss", "last_loss", "work"):
        assert getattr(record.measurement, fact) is None
        assert record.measurement.missing[fact] == NO_MODEL
    window = record.measurement
    for waited_s, took_s in zip(window.data_wait_s, window.iteration_times_s, strict=True):
        assert 0 < waited_s <= took_s
    found = summary(record)
    assert found["loader_images_per_s"] == window.throughput_samples_per_s
    assert not {"throughput_images_per_s", "attained_gflops"} & found.keys()
    assert "loader_images_per_s" not in summary(samples.run_record())


def test_no_finding_is_made_of_a_loss_a_wait_or_an_arithmetic_that_there_was_not():
    whole = samples.run_record().model_copy(
        update={
            "measurement": samples.measurement(
                first_loss=None, last_loss=None, data_wait_s=(0.5,) * 6
            ),
            "resolved": samples.resolved(native_math=False),
        }
    )
    codes = {finding.code for finding in judge(whole).findings}
    assert codes == {"unproven", "input-bound", "loss-not-finite", "emulated"}
    loader = whole.model_copy(update={"config": RunConfig(data="photos", data_only=True)})
    assert [finding.code for finding in judge(loader).findings] == ["unproven"]


# Work of known bytes and FLOP, for counters that are proved on it


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
