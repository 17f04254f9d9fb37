"""The order of a sweep, what fits a machine, and how long it will take."""

import importlib.util
from collections import Counter
from types import SimpleNamespace

import pytest
import samples

from bench.config import RunConfig
from campaigns.local import Durations
from campaigns.matrix import Block, Matrix, read_matrix
from campaigns.plan import plan_runs
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
