"""The time that emulated arithmetic is said to take, by one convolution on a scripted clock."""

from itertools import count
from types import SimpleNamespace

import pytest
from torch.utils.flop_counter import FlopCounterMode

from bench.config import TimeLimits
from bench.training.devices import open_device
from bench.training.precision import Fp32
from bench.worker import emulation


@pytest.mark.slow
def test_an_estimate_counts_the_flop_of_its_convolution(monkeypatch):
    seconds = count()
    scripted = SimpleNamespace(perf_counter=lambda: float(next(seconds)))  # a second each
    monkeypatch.setattr(emulation, "time", scripted)
    cpu = open_device("cpu")
    with FlopCounterMode(display=False) as counted:
        rate = emulation.emulated_flops_per_s(Fp32(), cpu)
    assert 2 * rate == counted.get_total_flops()  # one is not timed
    limits = TimeLimits(10, 100, max_seconds=45.0)
    assert emulation.emulation_estimate(Fp32(), cpu, int(130 * rate), limits) == (
        "estimate, by one small convolution: 130 s an iteration, 780 s for warm-up and window"
    )
