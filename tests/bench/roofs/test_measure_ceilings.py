"""From a device to its ceilings: a scripted GPU, and this machine's CPU."""

import math
import re
from datetime import datetime

import pytest
import torch
from scripted_gpu import MIB, QueueingDevice, ScriptedWork

from bench.roofs import (
    MINIMUM_REPETITIONS,
    PLANS,
    RoofPlan,
    measure_all_reduces,
    measure_ceilings,
    sustained_rate,
)
from bench.roofs.roof_probes import set_arithmetic
from bench.training.devices import open_device
from bench.training.inputs import Shard
from bench.training.team import DdpTeam

GPU_MODES = ("fp32", "tf32", "bf16", "fp16")
PRODUCT_RATES = {"fp32": 2.0**45, "tf32": 2.0**46, "bf16": 1.5 * 2.0**46, "fp16": 2.0**47}
STREAM_RATES = {"copy": 1.0e12, "triad": 1.1e12, "update": 1.2e12}
ONE_WAY_RATES = {"read": 1.4e12, "write": 1.3e12}
ALONE_S = PLANS["cuda"].sustain_s


def product_rate(dtype, tf32):
    names = {torch.bfloat16: "bf16", torch.float16: "fp16"}
    return PRODUCT_RATES[names.get(dtype, "tf32" if tf32 else "fp32")]


@pytest.fixture(autouse=True)
def _switches():
    """Put torch's back for other tests."""
    benchmark = torch.backends.cudnn.benchmark
    yield
    torch.backends.cudnn.benchmark = benchmark
    set_arithmetic("fp32")


@pytest.fixture
def roomy_gpu(monkeypatch):
    """CUDA's memory queries answer for a card of 128 GiB."""
    free_bytes(monkeypatch, 128 * 2**30)


def free_bytes(monkeypatch, free):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 2 * free))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 0)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 0)


def measure_scripted(device, fails=lambda op, elements: None, rate=product_rate, **options):
    lines = []
    with ScriptedWork(device, rate, STREAM_RATES | ONE_WAY_RATES, fails):
        measured = measure_ceilings(device, clock=device.clock, progress=lines.append, **options)
    return *measured, lines


def test_a_scripted_gpu_has_exactly_its_scripted_roofs(roomy_gpu):
    """The convolutions run at 1.25 times the products' rate, so they set the roof, but for fp32."""
    device = QueueingDevice(*GPU_MODES)
    start_s = device.clock()
    ceilings, samples, _ = measure_scripted(device, budget_s=6.0)
    assert 6.0 <= device.clock() - start_s - len(GPU_MODES) * ALONE_S < 8.5
    assert [ceiling.math_mode for ceiling in ceilings] == list(GPU_MODES)
    for ceiling in ceilings:
        expected = 1.25 * PRODUCT_RATES[ceiling.math_mode]
        by_products = ceiling.math_mode == "fp32"  # convolutions may execute fewer FLOP
        peak = expected / 1.25 if by_products else expected
        assert ceiling.peak_flops_per_s == pytest.approx(peak, rel=1e-9)
        assert ceiling.burst_flops_per_s == pytest.approx(expected, rel=1e-9)
        assert ceiling.peak_bytes_per_s == pytest.approx(1.2e12, rel=1e-9)
        assert ceiling.one_way_bytes_per_s == pytest.approx(1.4e12, rel=1e-9)
        assert (ceiling.device, ceiling.backend) == ("Scripted GPU", "cuda")
        assert ceiling.kind == "measured"
        probe = "matmul fp32 " if by_products else f"conv {ceiling.math_mode} 3x3 "
        assert ceiling.source.startswith(probe)
        assert re.search(r"; update \d+ MiB, upper quartile of \d+, spread \+0", ceiling.source)
        assert ceiling.source.endswith(f"torch {torch.__version__}")
        assert datetime.fromisoformat(ceiling.date).utcoffset().total_seconds() == 0
    for sample in samples:
        if sample.probe.startswith("matmul"):
            expected = PRODUCT_RATES[sample.math_mode]
            assert sample.rates == pytest.approx([expected] * len(sample.rates), rel=1e-9)
    names = {sample.probe for sample in samples}
    assert {"matmul bf16 8192x8192x8192 " + layout for layout in ("NN", "NT", "TN")} < names
    assert {f"{kind} {size} MiB" for kind in STREAM_RATES for size in (240, 960, 3840)} < names
    # A cache would serve more of a smaller array that is read again and again.
    one_way = [name for name in names if name.split()[0] in ONE_WAY_RATES]
    assert sorted(one_way) == ["read 3840 MiB", "write 3840 MiB"]


def test_the_roof_of_fp8_is_by_scaled_products_alone(roomy_gpu):
    device = QueueingDevice("fp8")
    [ceiling], samples, _ = measure_scripted(device, rate=lambda dtype, tf32: 2.0**48, budget_s=3.0)
    assert ceiling.math_mode == "fp8"
    assert ceiling.peak_flops_per_s == pytest.approx(2.0**48)
    assert ceiling.source.startswith("matmul fp8 ")
    shapes = {each.probe.split()[2] for each in samples if each.math_mode == "fp8"}
    assert {"8192x8192x8192", "200704x512x4608"} < shapes


class ScriptedTeam(DdpTeam):
    """One of four ranks; the slowest takes twice as long."""

    shard, communication = Shard(0, 4), "nccl"

    def __init__(self):
        """Meet nobody."""

    def barrier(self):
        """Wait for nobody."""

    def gather(self, value):
        return [value, 2 * value, value, value]


@pytest.mark.parametrize(("free", "sizes"), [(2**37, 10), (2**30, 8)])
def test_all_reduces_are_timed_by_size_on_the_slowest_rank_as_far_as_memory_goes(
    monkeypatch, free, sizes
):
    free_bytes(monkeypatch, free)
    device = QueueingDevice()

    def all_reduce(message):  # 20 us and 100 GB/s
        device.queue(20e-6 + message.numel() * 4 / 100e9)

    monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)
    found = measure_all_reduces(device, ScriptedTeam(), clock=device.clock)
    assert [one.message_bytes for one in found] == [1024 * 4**power for power in range(sizes)]
    for one in found:
        assert (one.communication, one.devices) == ("nccl", 4)
        expected_s = 2 * (20e-6 + one.message_bytes / 100e9)
        assert one.times_s == pytest.approx([expected_s] * 7, rel=0.01)
        # 2 (4 - 1) / 4 = 1.5 times the message's
        assert one.bus_bytes_per_s == pytest.approx(1.5 * one.message_bytes / expected_s, rel=0.01)


def test_the_roof_is_what_lasts_and_a_burst_stands_beside_it(roomy_gpu):
    device = QueueingDevice("bf16")
    begin_s = device.clock()

    def rate(dtype, tf32):  # power lowers the clock two seconds after the probes took turns
        passed_s = device.clock() - begin_s
        return product_rate(dtype, tf32) * (0.8 if passed_s > 3.0 + 2.0 else 1.0)

    [ceiling], samples, _ = measure_scripted(device, rate=rate, budget_s=3.0)
    burst = 1.25 * PRODUCT_RATES["bf16"]
    assert ceiling.burst_flops_per_s == pytest.approx(burst)
    assert ceiling.peak_flops_per_s == pytest.approx(0.8 * burst)
    assert f"alone for {ALONE_S:g} s" in ceiling.source
    assert f"alone for {ALONE_S:g} s" in samples[-1].probe
    assert 10 <= len(samples[-1].rates) <= 1 / 0.05 + 2  # the last second's


def test_a_shape_out_of_memory_is_left_out_and_a_mode_without_any_has_no_peak_but_a_reason(
    roomy_gpu,
):
    device = QueueingDevice("bf16", last_level_cache_bytes=None)

    def fails(op, elements):
        return "CUDA out of memory." if op == "mm" and elements > 8192**2 else None

    ceilings, samples, lines = measure_scripted(device, fails, budget_s=3.0)
    assert [ceiling.math_mode for ceiling in ceilings] == ["bf16"]  # that the device has
    assert "matmul bf16 16384x16384x16384 NT left out: CUDA out of memory." in lines
    assert not [sample for sample in samples if "16384" in sample.probe]
    assert ceilings[0].peak_flops_per_s == pytest.approx(1.25 * PRODUCT_RATES["bf16"])
    largest = {"copy 512 MiB", "copy 2048 MiB", "copy 8192 MiB"}  # of an unknown cache
    assert largest < {each.probe for each in samples}
    ceilings, _, _ = measure_scripted(
        device, lambda op, elements: "no kernel" if op in ("mm", "conv") else None, budget_s=2.0
    )
    assert ceilings[0].peak_flops_per_s is None
    assert "left out: no kernel" in ceilings[0].missing["peak_flops_per_s"]
    assert ceilings[0].peak_bytes_per_s == pytest.approx(1.2e12)


def test_too_little_memory_for_arrays_past_the_cache_gives_no_bandwidth(monkeypatch):
    free_bytes(monkeypatch, 2 * 2**30)
    ceilings, samples, _ = measure_scripted(QueueingDevice("bf16"), budget_s=2.0)
    assert ceilings[0].peak_bytes_per_s is None
    for name in ("peak_bytes_per_s", "one_way_bytes_per_s"):
        assert "2048 MiB are free, too few" in ceilings[0].missing[name]
    assert ceilings[0].peak_flops_per_s is not None
    assert not [sample for sample in samples if sample.quantity == "bytes_per_s"]


@pytest.mark.slow
def test_this_cpus_ceilings_follow_from_its_samples_with_arrays_past_its_cache(monkeypatch):
    small = RoofPlan(
        products=((64, 64, 64, "NT"), (128, 128, 128, "NN")),
        convolutions=((1, 16, 8, 16),),
        stream_steps=(1,),
        group_s=0.002,
        budget_s=0.3,
    )
    monkeypatch.setitem(PLANS, "cpu", small)
    device = open_device("cpu")
    ceilings, samples = measure_ceilings(device)
    assert [each.math_mode for each in ceilings] == [
        mode for mode in GPU_MODES if device.native_math(mode)
    ]
    assert all(math.isfinite(rate) and rate > 0 for each in samples for rate in each.rates)
    for ceiling in ceilings:
        assert ceiling.device == device.info().name
        assert f"{torch.get_num_threads()} threads" in ceiling.source
        assert ceiling.peak_flops_per_s == peak(samples, ceiling.math_mode)
        assert ceiling.peak_bytes_per_s == peak(samples, None)
    sizes = [int(each.probe.split()[1]) for each in samples if each.quantity == "bytes_per_s"]
    cache_bytes = device.info().last_level_cache_bytes or 0
    assert min(sizes) * MIB >= 4 * cache_bytes


def peak(samples, math_mode):
    return max(
        sustained_rate(sample.rates)
        for sample in samples
        if sample.math_mode == math_mode and len(sample.rates) >= MINIMUM_REPETITIONS
        if sample.probe.split()[0] not in ONE_WAY_RATES
    )
