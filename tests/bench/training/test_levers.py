"""Every lever of speed trains the same function: the losses of 20 steps, against plain fp32."""

import shutil

import pytest
import torch

from bench.config import RunConfig
from bench.training.devices import open_device
from bench.training.inputs import open_batches
from bench.training.precision import open_precision
from bench.training.resolve import resolve
from bench.training.step import Phases
from bench.training.team import Team
from bench.training.workloads import workload_of
from bench.worker.step_setup import build_step, set_switches

PLAIN = {
    "arch": "small_models:batch_normed",
    "backend": "cpu",
    "batch_size": 8,
    "image_size": 32,
    "seed": 7,
    "threads": 1,
    "channels_last": "false",
    "fused_optimizer": "false",
    "depthwise_fp32": "false",
}
#: Of what the loss falls by: sums in another order in fp32, and the 8 bits of a bf16 number.
TOLERANCE = {"fp32": 2**-12, "amp-bf16": 2**-6}


def losses(**knobs):
    config = RunConfig(**{**PLAIN, **knobs})
    device = open_device("cpu")
    precision = open_precision(config.precision, device)
    torch.manual_seed(config.seed)
    workload = workload_of(config)
    resolved = resolve(config, device, precision, workload)
    threads, benchmark = torch.get_num_threads(), torch.backends.cudnn.benchmark
    set_switches(config, precision, resolved.threads)
    try:
        batches = open_batches(config, resolved, workload, device.torch_device)
        step, _ = build_step(config, resolved, workload, device, precision, Phases(), Team())
        return [float(step(batches.next)) for _ in range(20)]
    finally:
        torch.set_num_threads(threads)
        torch.backends.cudnn.benchmark = benchmark
        torch.use_deterministic_algorithms(False)


def distance(some, others):
    """The largest difference on the way down, of how far down it is."""
    pairs = zip(some, others, strict=True)
    return max(abs(one - other) for one, other in pairs) / (others[0] - others[-1])


@pytest.fixture(scope="module")
def plain():
    return losses()


@pytest.mark.parametrize(
    ("precision", "lever"),
    [
        ("fp32", {"channels_last": "true"}),
        ("fp32", {"fused_optimizer": "true"}),
        ("fp32", {"threads": 2}),
        ("fp32", {"deterministic": True}),
        ("amp-bf16", {"channels_last": "true", "fused_optimizer": "true", "deterministic": True}),
    ],
)
@pytest.mark.slow
def test_a_lever_trains_the_same_function(plain, precision, lever):
    assert distance(losses(precision=precision, **lever), plain) < TOLERANCE[precision]


def test_depthwise_in_fp32_trains_the_same_function(plain):
    kept = losses(precision="amp-bf16", depthwise_fp32="true")
    assert distance(kept, plain) < TOLERANCE["amp-bf16"]
    assert kept != losses(precision="amp-bf16") != plain


@pytest.mark.long
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
@pytest.mark.parametrize("precision", ["fp32", "amp-bf16"])
def test_a_compiled_step_trains_the_same_function(precision):
    known = {"arch": "small_models:batch_normed", "precision": precision}
    compiled = losses(**known, compile="default")
    assert distance(compiled, losses(**known)) < TOLERANCE[precision]


@pytest.mark.parametrize("other", [{"seed": 8}, {"grad_accum_steps": 2, "batch_size": 7}])
def test_another_function_is_seen(plain, other):
    assert plain[-1] < plain[0] - 0.1
    assert distance(losses(**other), plain) > TOLERANCE["amp-bf16"]
