"""What a campaign has measured: from disk, from the server, from a killed sweep."""

import json
import os
import subprocess
import sys

import pytest
import samples
from stored_runs import filed

from bench.config import RunConfig
from bench.machine.repository import model_code
from bench.records import Account, Job
from bench.records.environment import environment_id
from bench.records.folders import RecordFolder
from campaigns.plan import PastRun, PastRuns, take_over

HERE = environment_id(samples.environment())


def config(**changes):
    return RunConfig(**{"backend": "cpu", "batch_size": 8, "campaign": "c", **changes})


def past(records, **options):
    runs = PastRuns(records, "c", HERE, **options)
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
