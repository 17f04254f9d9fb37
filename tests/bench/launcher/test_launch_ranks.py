"""Real ranks under torch's elastic launcher, and everything that can end one of them."""

import os
import signal

import psutil
import pytest
import torch
from servers import free_port
from worker_processes import command_line, small_run, worker_of

from bench.launcher.measurement import launch_ceilings, launch_measurement
from bench.records.folders import RecordFolder, is_running, read_records
from bench.records.metrics import attained_flops_per_s

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("mlproject_command")]


class Launch:
    """One measurement on two processes; everything of its family that was ever seen."""

    def __init__(self, records, on_event=lambda event: None, without=None, **changes):
        self.strangers = set(psutil.Process().children(recursive=True))
        self.family = set()
        self.names = []
        self.on_event = on_event
        self.folder = RecordFolder.create(records)
        asked = small_run(devices=2, **changes)
        self.record = launch_measurement(asked, self.folder, self.take, without=without)
        assert read_records(records) == [self.record]
        assert not [process for process in self.family if is_running(process)]

    def take(self, event):
        self.family |= set(psutil.Process().children(recursive=True)) - self.strangers
        self.names.append(event.name)
        self.on_event(event)


def test_of_two_ranks_input_and_exchange_are_taken_out_of_both(tmp_path):
    record = Launch(tmp_path, without="input,sync,auto", data="fakedata").record
    assert record.outcome == "ok", record.reason
    found = {removal.what: removal for removal in record.removals}
    assert [len(found[what].with_s) >= 3 for what in ("input", "sync")] == [True, True]


def test_two_ranks_measure_one_window(tmp_path):
    launch = Launch(
        tmp_path, batch_size=2, grad_accum_steps=2, warmup_iters=2, iters=10**6, max_seconds=1.0
    )
    record = launch.record
    assert record.outcome == "ok", record.reason
    window = record.measurement
    iterations = len(window.iteration_times_s)
    assert window.ended_early.startswith("max_seconds=1 at the warm-up's pace")
    assert f"{iterations} of 1000000" in window.ended_early
    assert window.samples_per_iteration == 2 * 2 * 2
    cut_s = sum(window.iteration_times_s[: window.settled_after])
    steady_samples = 8 * (iterations - window.settled_after)
    assert window.throughput_samples_per_s == pytest.approx(
        steady_samples / (window.window_s - cut_s)
    )
    assert attained_flops_per_s(record) == pytest.approx(
        record.complexity.step_flops * 4 / window.step_s
    )
    together = window.ranks
    assert together.communication == "gloo"
    assert [rank.rank for rank in together.ranks] == [0, 1]
    assert {len(rank.iteration_times_s) for rank in together.ranks} == {iterations}
    assert together.ranks[0].iteration_times_s == window.iteration_times_s
    assert together.ranks[1].iteration_times_s != window.iteration_times_s
    assert sum(together.ranks[1].iteration_times_s) < 1.5 * window.window_s
    assert len(together.synced_step_s) == len(together.local_step_s) >= 1
    own_s = [rank.local_step_s for rank in together.ranks]
    assert together.local_step_s == tuple(map(max, zip(*own_s, strict=True)))
    assert record.resolved.threads >= 1
    assert record.process.user_s > 0
    assert record.process.max_rss_bytes > 100e6
    order = [name for name in launch.names if name not in ("tick", "probe", "notice")]
    assert order == [
        *("started", "imported", "started", "imported", "device"),
        *("warmup_started", *["warmup"] * 2, "window_started", "window_ended"),
        *("ended", "memory", "memory"),  # rank 0's and the elastic launcher's, with its ranks'
    ]
    assert not launch.folder.in_use()


@pytest.mark.parametrize(
    ("changes", "outcome", "reason"),
    [
        ({"arch": "ranked_models:killed"}, "crashed", "rank 1: ended by SIGKILL"),
        ({"arch": "ranked_models:out_of_memory"}, "oom", "rank 1: RuntimeError: "),
        ({"arch": "ranked_models:never_starts"}, "refused", "rank 1: arch='ranked_models:never_"),
        # what every rank says is said once
        ({"precision": "tf32"}, "unsupported", "precision='tf32'"),
    ],
)
@pytest.mark.long
def test_the_rank_that_failed_is_named_with_its_reason(tmp_path, changes, outcome, reason):
    record = Launch(tmp_path, **changes).record
    assert record.outcome == outcome
    assert record.reason.startswith(reason)
    assert record.verdict.level == "invalid"


def ended_in_window(records, end, **changes):
    """A launch on which `end` is called once every rank has measured iterations."""

    def take(event):
        if event.name == "window_started" or (seen and event.name == "tick"):
            seen.append(event.name)
            if seen.count("tick") == 2:
                end()

    seen = []
    return Launch(records, take, iters=10**7, max_seconds="none", **changes)


@pytest.mark.long
def test_ctrl_c_ends_all_ranks_and_keeps_what_was_measured(tmp_path):
    launch = ended_in_window(
        tmp_path, lambda: os.kill(os.getpid(), signal.SIGINT), data="fakedata", workers=1
    )
    assert launch.record.outcome == "interrupted"
    assert launch.record.reason == "interrupted from outside"
    assert launch.record.measurement.iteration_times_s
    accounts = launch.folder.read_ranks()
    assert [account.outcome for account in accounts] == ["interrupted", "interrupted"]


@pytest.mark.long
def test_a_rank_killed_in_the_window_is_named(tmp_path):
    def kill():
        family = psutil.Process().children(recursive=True)
        ranks = [one for one in family if command_line(one)[2:3] == ["rank"]]
        max(ranks, key=psutil.Process.create_time).kill()

    record = ended_in_window(tmp_path, kill).record
    assert record.outcome == "crashed"
    assert record.reason.startswith("rank ")
    assert "ended by SIGKILL" in record.reason


@pytest.mark.long
def test_ranks_without_their_elastic_launcher_are_ended_too(tmp_path):
    record = ended_in_window(tmp_path, lambda: worker_of(tmp_path).kill()).record
    assert record.outcome in ("crashed", "interrupted")
    assert record.measurement is not None


@pytest.mark.long
def test_two_machines_measure_together_and_one_keeps_the_record(tmp_path, mlproject_command):
    codes, outputs = on_two_machines(mlproject_command, "crashing_models:small")
    assert codes == [0, 0], outputs
    [record] = read_records(tmp_path / "0")
    assert [rank.node for rank in record.measurement.ranks.ranks] == [0, 1]
    assert record.measurement.samples_per_iteration == 8
    assert record.telemetry.energy_j is None
    assert "took part: ok" in outputs[1][0]
    assert not (tmp_path / "1").exists()


@pytest.mark.long
def test_a_rank_that_fails_on_another_machine_is_named_in_the_record(tmp_path, mlproject_command):
    codes, outputs = on_two_machines(mlproject_command, "ranked_models:raises")
    assert codes == [1, 1], outputs
    [record] = read_records(tmp_path / "0")
    assert record.reason == "rank 1: RuntimeError: rank 1 had enough"
    assert "took part: crashed (rank 1: RuntimeError: rank 1 had enough)" in outputs[1][0]


@pytest.mark.long
@pytest.mark.skipif(torch.cuda.is_available(), reason="asks for GPUs that are not there")
def test_roofs_of_two_processes_have_what_joins_them_and_absent_gpus_are_said(tmp_path):
    record = launch_ceilings("cpu", RecordFolder.create(tmp_path), devices=2)
    assert (record.outcome, record.reason) == ("ok", None)
    assert record.ceilings[0].peak_flops_per_s
    assert [one.devices for one in record.all_reduces] == [2] * len(record.all_reduces)
    least, *_, largest = record.all_reduces
    assert least.time_s < largest.time_s
    record = launch_ceilings("cuda", RecordFolder.create(tmp_path), devices=2)
    assert record.outcome == "unsupported"


def on_two_machines(command, arch):
    """Exit codes and outputs of two launchers that meet on this machine."""
    port = free_port()
    nodes = [start_node(command, node, port, arch) for node in (0, 1)]
    outputs = [node.communicate(timeout=300) for node in nodes]
    return [node.returncode for node in nodes], outputs


def start_node(command, node, port, arch):
    options = {
        **{"arch": arch, "backend": "cpu", "batch-size": 4},
        **{"nodes": 2, "image-size": 32, "warmup-iters": 2, "iters": 6},
        "records": command.folder / str(node),
    }
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    meeting = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "NODE_RANK": str(node)}
    return command.start("run", *words, "--no-track", **meeting)
