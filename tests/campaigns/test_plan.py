"""The order of a sweep, what fits a machine, and how long it will take."""

import importlib.util
import json
import os
import subprocess
import sys
from collections import Counter
from types import SimpleNamespace

import pytest
import samples
from stored_runs import filed

from bench.config import RunConfig
from bench.machine.repository import model_code
from bench.records import Account, Job
from bench.records.environment import environment_id
from bench.records.folders import RecordFolder
from campaigns.local import Durations
from campaigns.matrix import Block, Matrix, read_matrix
from campaigns.plan import PastRun, PastRuns, plan_runs, take_over
from commands.sweep import plan_result


def matrix(*blocks, seed=0):
    return Matrix("sample", seed, blocks)


def block(name="one", repeats=3, backend="cpu", batches=(4, 8, 16, 32, 64)):
    configs = tuple(RunConfig(backend=backend, batch_size=batch) for batch in batches)
    return Block(name, repeats, configs)


def planned(*blocks, seed=0, **options):
    known = {"campaign": "c", "backends": {"cpu"}}
    return plan_runs(matrix(*blocks, seed=seed), **{**known, **options})


def test_each_round_has_an_order_of_its_own_that_the_seed_decides():
    def orders(seed):
        runs = planned(block(), seed=seed).runs
        return [tuple(run.batch_size for run in runs[at : at + 5]) for at in (0, 5, 10)]

    assert len(set(orders(seed=1))) > 1
    assert orders(seed=1) == orders(seed=1)
    assert len({tuple(orders(seed)) for seed in range(5)}) > 1


def test_a_limit_keeps_whole_configurations():
    runs = planned(block(), limit=2).runs
    assert Counter(run.batch_size for run in runs) == {4: 3, 8: 3}


def test_shards_have_whole_configurations_and_are_together_what_there_is():
    shards = [planned(block(), limit=4, shard=(part, 3)).runs for part in (1, 2, 3)]
    assert [{run.batch_size for run in runs} for runs in shards] == [{4, 32}, {8}, {16}]
    assert [len(runs) for runs in shards] == [6, 3, 3]


@pytest.mark.parametrize("shard", ["2", "0/2", "3/2"])
def test_a_shard_that_cannot_be_is_refused(mlproject_command, shard):
    code, _, err = mlproject_command("sweep", "smoke", "--dry-run", "--shard", shard)
    assert (code, f"shard='{shard}': give" in err) == (2, True)


HERE = samples.environment()


def past_run(batch_size=8, arch="resnet18", real_s=10.0, **config):
    asked = RunConfig(arch=arch, batch_size=batch_size, backend="cpu", iters=6, **config)
    return samples.run_record(
        asked,
        measurement=samples.measurement(images=batch_size),
        process=samples.process_figures(real_s=real_s),
    )


def known(*records, flops=None):
    return Durations(records, lambda config: flops)


def test_what_was_measured_before_takes_what_it_took():
    durations = known(past_run(real_s=10.0), past_run(real_s=14.0), past_run(real_s=99.0))
    assert durations.of(past_run().config, HERE) == 14.0


@pytest.mark.parametrize(
    ("warmup_iters", "iters", "max_seconds", "seconds"),
    [
        (2, 10, "auto", 2 * 1.0 + 10 * 1.0 + 6.0),
        (1, 1000, "auto", 1.0 + 30.0 + 6.0),  # the window's own limit ends it
        (100, 10, "auto", 1.0 + 10.0 + 10.0 + 6.0),  # a third of it the warm-up after its first
        (100, 10, 0.3, 2.0 + 4.0 + 6.0),  # neither ends before its least iterations
        (1, 1000, "none", 1.0 + 1000.0 + 6.0),
    ],
)
def test_another_batch_takes_the_same_time_per_image(warmup_iters, iters, max_seconds, seconds):
    # 6 iterations of 8 images in 3 s, one warm-up of 1 s, the rest of 10 s is 6 s
    window = {"warmup_iters": warmup_iters, "iters": iters, "max_seconds": max_seconds}
    other = RunConfig(backend="cpu", batch_size=16, **window)
    assert known(past_run()).of(other, HERE) == pytest.approx(seconds)


@pytest.mark.parametrize("model", [{"arch": "vgg16"}, {"image_size": 320}])
def test_another_model_or_image_size_takes_the_same_time_per_flop(model):
    # the sample takes 1/16 s per image of 10**9 / 8 FLOP; this one has twice as many
    other = RunConfig(**model, backend="cpu", batch_size=8, warmup_iters=1, iters=10)
    durations = known(past_run(), flops=2 * 10**9 / 8)
    assert durations.of(other, HERE) == pytest.approx(1.0 + 10.0 + 6.0)


def test_what_no_record_shows_stays_unknown():
    amp = RunConfig(backend="cpu", precision="amp", batch_size=8)
    loader = RunConfig(backend="cpu", data="d", data_only=True, batch_size=8)
    elsewhere = samples.environment(label="another")
    durations = known(past_run(), samples.failed_record())
    assert durations.of(amp, HERE) is None
    assert durations.of(loader, HERE) is None
    assert durations.of(past_run().config, elsewhere) is None
    assert durations.of_all([past_run().config, amp], (HERE,)) == (10.0, 1)


def test_models_whose_package_is_not_installed_are_left_out_with_what_to_install(
    tmp_path, monkeypatch
):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "timm" else find_spec(name)
    )
    path = tmp_path / "m.yaml"
    path.write_text(
        "blocks:\n"
        "  - {name: both, backend: [cpu, cuda], arch: [mymodels:tiny, timm:any]}\n"
        "  - {name: gpu, backend: cuda, arch: timm:any}\n"
    )
    plan = plan_runs(read_matrix(path), campaign="c", backends={"cpu"})
    assert [run.arch for run in plan.runs] == ["mymodels:tiny"]
    timm = "timm (pip install 'mlproject[timm]')"
    assert [str(block) for block in plan.left_out] == [
        f"both: needs cpu or cuda and {timm}; 1 of 4 runs are here",
        f"gpu: needs cuda and {timm}; 0 of 1 runs are here",
    ]
    where = SimpleNamespace(place="this machine", backends={"cpu"}, environments=())
    blocks = plan_result(plan, where, tmp_path).facts["blocks"]
    assert [(block["runs"], block["here"]) for block in blocks] == [(4, 1), (1, 0)]


# What a campaign has measured: from disk, from the server, from a killed sweep


def config(**changes):
    return RunConfig(**{"backend": "cpu", "batch_size": 8, "campaign": "c", **changes})


def past(records, **options):
    runs = PastRuns(records, "c", environment_id(samples.environment()), **options)
    runs.refresh()
    return runs


@pytest.mark.parametrize(
    "record",
    [
        samples.run_record(config(campaign="another")),
        samples.run_record(config(), environment=samples.environment(torch="1.0")),
        samples.run_record(config(), environment=samples.environment(label="another")),
    ],
)
def test_another_campaign_or_environment_is_another_run(tmp_path, record):
    filed(tmp_path, record)
    assert past(tmp_path).of(config()) is None


@pytest.mark.parametrize("on_disk", [True, False])
def test_a_run_of_another_version_of_a_users_model_is_another_run(tmp_path, monkeypatch, on_disk):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mynet.py").write_text("net = 1\n")
    code = model_code("mynet:net")
    mine = config(arch="mynet:net")
    record = samples.run_record(mine, environment=samples.environment(model_code=code))
    if on_disk:
        filed(tmp_path / "records", record)
    elsewhere = [] if on_disk else [PastRun.of(record)]
    assert past(tmp_path / "records", elsewhere=elsewhere).of(mine) is not None
    (tmp_path / "mynet.py").write_text("net = 2\n")
    assert past(tmp_path / "records", elsewhere=elsewhere).of(mine) is None


def test_half_written_and_damaged_folders_are_passed_over(tmp_path):
    half = RecordFolder.create(tmp_path)
    half.write(half.config, config())
    damaged = RecordFolder.create(tmp_path)
    damaged.record.write_text("{")
    assert past(tmp_path).of(config()) is None


OOM = samples.failed_record("oom", config=config(), environment=samples.environment())


@pytest.mark.parametrize(
    ("asked", "fitted", "too_large"),
    [
        ({"batch_size": 16, "repeat": 3}, {}, True),
        ({"batch_size": 8, "repeat": 2}, {}, False),
        ({"batch_size": 4}, {}, False),
        ({"batch_size": "auto"}, {}, False),
        ({"batch_size": 16, "precision": "amp"}, {}, False),
        ({"batch_size": 16, "arch": "vgg16"}, {}, False),
        # memory that sufficed for as much, or more, in another run
        ({"batch_size": 16}, {"repeat": 2}, False),
        ({"batch_size": 16}, {"batch_size": 12}, False),
        ({"batch_size": 16}, {"batch_size": 4}, True),
    ],
)
def test_larger_batches_of_what_ran_out_of_memory_are_too_large(tmp_path, asked, fitted, too_large):
    filed(tmp_path, OOM)
    if fitted:
        filed(tmp_path, samples.run_record(config(**fitted)))
    assert (past(tmp_path).too_large(config(**asked)) is not None) == too_large


def test_nothing_is_known_to_be_larger_than_an_auto_batch_that_ran_out_of_memory(tmp_path):
    filed(tmp_path, OOM.replaced(config=config(batch_size="auto")))
    assert past(tmp_path).too_large(config(batch_size=4)) is None


def test_what_is_to_be_measured_again_makes_nothing_too_large_until_it_has_failed_again(tmp_path):
    filed(tmp_path, OOM)
    runs = past(tmp_path, retry_failed=True)
    assert runs.too_large(config(batch_size=16)) is None
    runs.add(PastRun.of(OOM.replaced(record_id="99991231T000000Z-00000002")))
    assert runs.too_large(config(batch_size=16)) is not None


def test_a_worker_that_outlived_its_launcher_is_waited_for(tmp_path):
    folder = RecordFolder.create(tmp_path)
    folder.write(folder.config, Job(config=config()))
    account = samples.facts(
        Account, outcome="ok", measurement=samples.measurement(), resolved=samples.resolved()
    )
    (tmp_path / "account.json").write_text(account.model_dump_json())
    program = "import os, sys; sys.stdin.read(); os.rename(sys.argv[1], sys.argv[2])"
    worker = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "account.json"), str(folder.worker)],
        stdin=subprocess.PIPE,
    )
    folder.claim(os.getpid(), worker.pid)
    owners = json.loads((folder.path / "owners.json").read_text())
    owners["processes"][str(os.getpid())] -= 1000.0  # another process once had this number
    (folder.path / "owners.json").write_text(json.dumps(owners))
    assert folder.orphaned()
    waited = []

    def waiting(name):
        waited.append(name)
        worker.stdin.close()

    (changed,) = take_over(tmp_path, waiting)
    assert waited == [folder.record_id]
    assert changed.read_record().outcome == "ok"
    worker.wait()


def test_a_folder_becomes_a_record_once_its_launcher_is_dead(tmp_path):
    folder = RecordFolder.create(tmp_path)
    folder.write(folder.config, Job(config=config()))
    folder.claim(os.getpid())  # another sweep that is measuring
    assert take_over(tmp_path, print) == []
    assert folder.read_record() is None
    folder.leave()
    (changed,) = take_over(tmp_path, lambda name: pytest.fail("nothing runs"))
    assert changed.read_record().outcome == "interrupted"
    assert take_over(tmp_path, print) == []
