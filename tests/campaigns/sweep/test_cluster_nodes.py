"""Who may measure where at the same time."""

import pytest
import samples

from bench.config import RunConfig
from campaigns.sweep.ray.cluster_nodes import Node, usable

CPU = samples.environment()
GPU = samples.environment(device=samples.device_info(backend="cuda", name="L4"))
MPS = samples.environment(device=samples.device_info(backend="mps", name="M4"))


def node(*environments, cpus=8.0, gpus=0.0):
    return Node("id", "10.0.0.1", cpus, gpus, environments, ({},) * len(environments))


def config(backend, **changes):
    return RunConfig(backend=backend, batch_size=2, **changes)


def can_start(node, backend, **changes):
    wanted = config(backend, **changes)
    environment = node.environment_of(wanted)
    return environment is not None and node.is_free_for(wanted, environment)


def test_a_run_needs_the_device_it_asks_for():
    host = node(CPU)
    assert can_start(host, "cpu")
    assert not can_start(host, "cuda")
    assert host.environment_of(config("auto")) == CPU
    assert node(GPU, CPU, gpus=1.0).environment_of(config("auto")) == GPU


@pytest.mark.parametrize(
    ("under_way", "free_for"),
    [
        ([], {("cpu", 1), ("cuda", 1), ("cuda", 2)}),
        (["cpu"], set()),  # it has the whole host
        (["cuda"], {("cuda", 1)}),
        (["cuda", "cuda"], set()),
    ],
)
def test_a_cpu_run_has_the_host_alone_and_a_gpu_takes_one_run(under_way, free_for):
    host = node(GPU, CPU, gpus=2.0)
    asked = [("cpu", 1), ("cuda", 1), ("cuda", 2)]
    for number, backend in enumerate(under_way):
        host.begin(str(number), config(backend), host.environment_of(config(backend)))
    assert {each for each in asked if can_start(host, each[0], devices=each[1])} == free_for
    for number in range(len(under_way)):
        host.end(str(number))
    assert all(can_start(host, backend, devices=devices) for backend, devices in asked)


def test_a_run_on_more_gpus_than_a_node_has_goes_elsewhere():
    assert not can_start(node(GPU, CPU, gpus=1.0), "cuda", devices=2)
    assert not can_start(node(GPU, CPU, gpus=1.0), "auto", devices=2)


@pytest.mark.parametrize(
    ("backend", "changes", "demand"),
    [
        ("cpu", {}, {"num_cpus": 8.0, "num_gpus": 0}),
        ("mps", {}, {"num_cpus": 8.0, "num_gpus": 0}),
        ("cuda", {}, {"num_cpus": 1.0, "num_gpus": 1}),
        ("cuda", {"devices": 2}, {"num_cpus": 2.0, "num_gpus": 2}),
    ],
)
def test_ray_is_asked_for_what_keeps_others_away(backend, changes, demand):
    host = node(GPU, MPS, CPU, gpus=2.0)
    wanted = config(backend, **changes)
    assert host.demand(wanted, host.environment_of(wanted)) == demand


def test_gpus_that_outnumber_cpus_share_them():
    host = node(GPU, CPU, cpus=1.0, gpus=4.0)
    assert host.demand(config("cuda"), GPU)["num_cpus"] == 0.25


def test_a_gpu_that_ray_does_not_count_is_nobodys():
    assert usable((GPU, CPU), gpus=0.0) == (CPU,)
    assert usable((GPU, CPU), gpus=1.0) == (GPU, CPU)
    assert usable((MPS, CPU), gpus=0.0) == (MPS, CPU)
