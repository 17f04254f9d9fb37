"""Every lever of speed trains the same function: the loss after 20 steps, against plain fp32."""

import shutil

import pytest
import torch

from bench.config import RunConfig
from bench.devices import open_device
from bench.inputs import open_batches
from bench.phases import Phases
from bench.precision import open_precision
from bench.resolve import resolve
from bench.team import Team
from bench.worker.prepare import build_step, set_switches

PLAIN = {"channels_last": "false", "fused_optimizer": "false"}
#: Relative, of a loss: sums in another order in fp32, and 8 bits of a bf16 number (2^-8).
TOLERANCE = {"fp32": 1e-3, "amp": 2**-6}
pytestmark = pytest.mark.slow


def loss_after_20_steps(arch, **knobs):
    config = RunConfig(arch=arch, backend="cpu", batch_size=8, image_size=32, seed=7, **knobs)
    device = open_device("cpu")
    precision = open_precision(config.precision, device)
    precision.apply()
    resolved = resolve(config, device, precision)
    threads = torch.get_num_threads()
    set_switches(config, resolved)
    try:
        batches = open_batches(config, resolved, device.torch_device)
        step = build_step(config, resolved, device, precision, Phases(), Team())
        for _ in range(20):
            loss = step(batches.next)
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(False)
    return float(loss)


@pytest.fixture(scope="module")
def plain():
    return {arch: loss_after_20_steps(arch, **PLAIN) for arch in ("resnet18", OWN)}


OWN = "crashing_models:small"


@pytest.mark.parametrize("precision", ["fp32", "amp"])
@pytest.mark.parametrize(
    "lever",
    [
        {"channels_last": "true"},
        {"fused_optimizer": "true"},
        {"threads": 1},
        {"deterministic": True},
        {"channels_last": "true", "fused_optimizer": "true"},
    ],
)
def test_a_lever_trains_the_same_function(plain, precision, lever):
    loss = loss_after_20_steps("resnet18", precision=precision, **{**PLAIN, **lever})
    assert loss == pytest.approx(plain["resnet18"], rel=TOLERANCE[precision])


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
@pytest.mark.parametrize("precision", ["fp32", "amp"])
def test_a_compiled_step_trains_the_same_function(plain, precision):
    loss = loss_after_20_steps(OWN, precision=precision, compile="default")
    assert loss == pytest.approx(plain[OWN], rel=TOLERANCE[precision])


def test_another_function_is_seen(plain):
    assert loss_after_20_steps("resnet18", grad_accum_steps=2, **PLAIN) != pytest.approx(
        plain["resnet18"], rel=TOLERANCE["amp"]
    )
