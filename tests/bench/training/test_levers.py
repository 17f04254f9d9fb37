"""Every lever of speed trains the same function: the losses of 20 steps, against plain fp32."""

import os
import shutil
from pathlib import Path

import pytest
import torch

from bench.config import RunConfig
from bench.records.journal import JournalWriter
from bench.worker.step_setup import StepSetup

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
    threads, benchmark = torch.get_num_threads(), torch.backends.cudnn.benchmark
    try:
        with StepSetup(config, JournalWriter(Path(os.devnull))).opened() as ready:
            return [float(ready.step()) for _ in range(20)]
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
