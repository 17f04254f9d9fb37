"""Steps that ranks have written, joined into what rank 0 has measured."""

import json
from struct import Struct

import pytest
import samples

from bench.config import RunConfig
from bench.errors import Unknown
from bench.launcher.measurement import finish_run
from bench.launcher.rank_steps import say_who_was_killed, with_ranks
from bench.records import Account, Job
from bench.records.folders import RecordFolder
from bench.records.journal import steps_of_rank
from bench.records.metrics import attained_flops_per_s
from bench.records.verdict import judge

#: The window of the sample begins at 1000 s and has six steps of 0.5 s.
BEGIN_S = 990.0
DDP = "DistributedDataParallel"
pack = Struct("=5d").pack  # clock at the end, loader, exchange, processor, peak


def write(folder, rank, *, steps=40, shift_s=0.0, cut=0, **facts):
    """The file of a rank whose steps of 0.5 s begin at 990 s of the first machine's clock."""
    own = {"rank": rank, "node": 0, "host": "a", "device": "CPU", "device_uuid": None}
    job = {"communication": "gloo", "parallelism": facts.pop("parallelism", DDP)}
    about = {"rank": {**own, "samples_per_step": 8, **facts}, "job": job}
    rows = [(BEGIN_S + shift_s, 0.0, 0.0, 0.0, 1e6)]
    for step in range(1, steps + 1):
        rows.append((BEGIN_S + shift_s + step / 2, 0.01 * step, 0.1, 0.3, 2e6))
    content = json.dumps(about).encode() + b"\n" + b"".join(pack(*row) for row in rows)
    steps_of_rank(folder, rank).write_bytes(content[: len(content) - cut])


def joined(folder, ranks=2, **changes):
    config = RunConfig(arch="resnet18", devices=ranks)
    return with_ranks(samples.measurement(**changes), config, folder)


def test_ranks_of_one_step_are_those_of_its_number_whatever_their_clock(tmp_path):
    write(tmp_path, 0)
    write(tmp_path, 1, shift_s=-500.0, host="b", node=1)  # another machine's clock
    found = joined(tmp_path).ranks
    for rank in found.ranks:
        assert rank.iteration_times_s == (0.5,) * 6
        assert rank.data_wait_s == pytest.approx([0.21, 0.22, 0.23, 0.24, 0.25, 0.26])
        assert (rank.exchange_wait_s, rank.processor_s) == ((0.1,) * 6, (0.3,) * 6)
        assert (rank.max_rss_bytes, rank.peak_memory_allocated_bytes) == (2_000_000, None)
    assert (found.communication, found.parallelism) == ("gloo", DDP)
    assert found.communication_share is None
    assert [rank.host for rank in found.ranks] == ["a", "b"]


@pytest.mark.parametrize("cut", [0, 3])  # killed while it wrote
def test_a_rank_that_ended_before_the_others_loses_only_its_own_steps(tmp_path, cut):
    write(tmp_path, 0)
    write(tmp_path, 1, steps=21, cut=cut)
    write(tmp_path, 2)
    found = joined(tmp_path, 3).ranks
    lengths = [len(rank.iteration_times_s or ()) for rank in found.ranks]
    assert lengths == [6, 0, 6]
    assert "it ended" in found.ranks[1].missing["iteration_times_s"]


@pytest.mark.parametrize("parallelism", ["fully_shard", "tensor parallel", "pipeline"])
def test_the_work_of_a_pipelines_first_stage_is_not_that_of_all(tmp_path, parallelism):
    folder = RecordFolder.create(tmp_path)
    for rank in (0, 1):
        write(folder.path, rank, parallelism=parallelism)
    job = Job(config=RunConfig(arch="resnet18", devices=2))
    work = samples.complexity()
    known = {"measurement": samples.measurement(), "resolved": samples.resolved()}
    known |= {"complexity": work, "script": {"file": "a.py"}}
    account = samples.facts(Account, outcome="ok", **known)
    record = finish_run(folder, job, samples.NOW, account, Unknown("not watched"))
    twice = 2 * work.step_flops / record.measurement.step_s
    assert attained_flops_per_s(record) == (None if parallelism == "pipeline" else twice)
    if parallelism == "pipeline":
        assert "stages of a pipeline" in record.missing["complexity"]


def test_a_rank_that_never_stepped_is_said(tmp_path):
    write(tmp_path, 0)
    measured = joined(tmp_path)
    assert [bool(rank.iteration_times_s) for rank in measured.ranks.ranks] == [True, False]
    record = samples.run_record(measurement=measured)
    said = [f.sentence for f in judge(record).findings if f.code == "ranks-absent"]
    assert "no steps of rank 1" in said[0]


def test_the_last_steps_that_one_has_not_written_are_left_out_for_all(tmp_path):
    write(tmp_path, 0)
    write(tmp_path, 1, steps=24)
    found = joined(tmp_path).ranks
    assert [len(rank.iteration_times_s) for rank in found.ranks] == [4, 4]


@pytest.mark.parametrize(
    ("parallelism", "samples_of_all"),
    [(DDP, 32), ("fully_shard, tensor parallel", 16)],
)
def test_of_batches_of_different_size_the_samples_are_those_of_all(
    tmp_path, parallelism, samples_of_all
):
    write(tmp_path, 0, parallelism=parallelism)
    write(tmp_path, 1, samples_per_step=24)
    measured = joined(tmp_path, images=16)
    assert measured.samples_per_iteration == samples_of_all
    record = samples.run_record(measurement=measured)
    assert "ranks-differ" in {finding.code for finding in judge(record).findings}


def test_without_files_the_measurement_is_rank_0s_alone(tmp_path):
    assert joined(tmp_path).ranks is None


@pytest.mark.parametrize("parallelism", [DDP, "fully_shard"])
def test_on_a_gpu_the_wait_is_known_of_what_has_hooks_around_it(tmp_path, parallelism):
    for rank in range(2):
        write(tmp_path, rank, device_uuid=f"GPU-{rank}", parallelism=parallelism)
    first, _ = joined(tmp_path).ranks.ranks
    assert first.peak_memory_allocated_bytes == 2_000_000
    assert (first.exchange_wait_s is None) is (parallelism == "fully_shard")


def test_of_ranks_that_ended_the_one_without_a_last_row_was_killed(tmp_path):
    folder = RecordFolder.create(tmp_path)
    folder.write(folder.config, Job(config=RunConfig(arch="resnet18", devices=3)))
    for rank in range(3):
        write(folder.path, rank)
    for rank in (0, 2):
        with steps_of_rank(folder.path, rank).open("ab") as file:
            file.write(pack(*[0.0] * 5))
    say_who_was_killed(folder)
    assert [account.rank for account in folder.read_ranks()] == [1]
    assert with_ranks(samples.measurement(), folder.read_job().config, folder.path).ranks
