"""Roofs of caches: from scripted rates to records, and what has a reason instead of a guess."""

import itertools
import sys
from functools import partial
from types import SimpleNamespace

import pytest
import samples
import torch
from scripted_gpu import QueueingDevice

from bench.errors import Unknown
from bench.machine import UnknownFactError
from bench.machine.cpu import CacheLevel
from bench.records import CacheRoof
from bench.roofs import cache_roofs
from bench.roofs.cache_roofs import Level, measure_cache_roofs
from bench.roofs.roof_probes import Probe
from bench.training.devices import open_device
from commands.run import roof_facts

READER = "bench.roofs.gpu_reader"
KIB = 2**10
GB = 10**9


def gpu(**facts):
    return QueueingDevice(**{"cores": 10, "last_level_cache_bytes": 40 * 2**20, **facts})


@pytest.fixture(autouse=True)
def _roomy(monkeypatch):
    monkeypatch.setattr("bench.roofs.free_bytes", lambda device: 128 * 2**30)


@pytest.fixture
def measured(monkeypatch):
    """Return a function from levels to roofs; a level's repetitions run at `rates_gb_per_s`."""
    device = gpu()

    def level(name, rates_gb_per_s, only_control=False):
        rates = itertools.chain(rates_gb_per_s, itertools.repeat(rates_gb_per_s[-1]))
        launch = lambda: device.queue(0.01 / next(rates))  # noqa: E731
        probe = Probe(f"{name}: scripted", None, GB // 100, 0, lambda: launch)
        return Level(name, 1000, probe, only_control)

    def measure(*levels, launch_s=0.0):
        made = [each if isinstance(each, Level) else level(*each) for each in levels]
        monkeypatch.setattr(cache_roofs, "_levels", lambda device: made)
        monkeypatch.setattr(cache_roofs, "_launch_seconds", lambda device, clock: launch_s)
        return measure_cache_roofs(device, clock=device.clock, budget_s=0.5)

    return measure


def test_levels_have_their_scripted_rates(measured):
    l1, l2 = measured(("L1", [9]), ("L2", [3]), launch_s=0.04 * 0.01 / 9)
    for roof, level, rate in ((l1, "L1", 9 * GB), (l2, "L2", 3 * GB)):
        assert (roof.level, roof.size_bytes, roof.missing) == (level, 1000, {})
        assert roof.peak_bytes_per_s == pytest.approx(rate)
    assert l1.source.startswith("L1: scripted, upper quartile of ")
    assert "; launches take 4.0 %; torch " in l1.source
    unmeasured = samples.facts(CacheRoof, level="L3", source="not measured")
    shown = roof_facts(samples.ceilings_record(cache_roofs=(l2, unmeasured)))  # by the command
    assert shown["roof L2"] == "3 GB/s"
    assert shown["no roof L3"] == unmeasured.missing["peak_bytes_per_s"]


@pytest.mark.parametrize(
    ("levels", "launch_share", "reason"),
    [
        (
            [("L1", [9]), ("L2", [3]), ("L3", [2.9])],
            0,
            "no slower than the level below (3 GB/s): the two cannot be distinguished",
        ),
        ([("L1", [4], True), ("L2", [3.9])], 0, "the two cannot be"),
        ([("L1", [3], True)], 0, "at 3 GB/s its reading may be bound by the additions"),
        ([("L2", [3])], 0.06, "6 % of the time went to launching"),
        ([("L2", [4] * 12 + [3])], 0, "others use the device"),
    ],
)
def test_a_rate_that_may_not_be_the_caches_has_a_reason(measured, levels, launch_share, reason):
    *below, roof = measured(*levels, launch_s=launch_share * 0.01 / 3)
    assert roof.peak_bytes_per_s is None
    assert reason in roof.missing["peak_bytes_per_s"]
    assert roof.source.startswith(f"{roof.level}: scripted")  # what was seen is kept
    assert [each.peak_bytes_per_s is None for each in below] == [
        len(level) == 3 for level in levels[:-1]
    ]


def test_a_probe_that_fails_and_an_absent_one_give_the_reason(measured):
    def prepare():
        raise RuntimeError("Triton cannot be used here: No module named 'triton'\nmore")

    probe = Probe("L1: read", None, 1, 0, prepare)
    no_probe = Level("L3", 8, Unknown("small"))
    roof, other = measured(Level("L1", Unknown("not reported by CUDA"), probe), no_probe)
    assert roof.missing == {
        "peak_bytes_per_s": "L1: read left out: Triton cannot be used here: "
        "No module named 'triton'",
        "size_bytes": "not reported by CUDA",
    }
    assert roof.source == "not measured"
    assert (other.size_bytes, other.missing) == (8, {"peak_bytes_per_s": "small"})


@pytest.fixture
def scripted_reader(monkeypatch):
    """The kernel's launcher, taking the time that its reading would."""
    calls = []

    def install(device, l1=30 * GB * 100, l2=6 * GB * 100):
        class Read:
            def __class_getitem__(cls, grid):
                return partial(cls.read, *grid)

            def read(programs, data, sums, elements, *strides_rounds, block, past_l1, num_warps):  # noqa: N805
                calls.append((data.numel(), sums.numel(), programs, elements, not past_l1))
                rate = l2 if past_l1 else l1
                device.queue(programs * strides_rounds[-1] * block * 4 / rate)

        monkeypatch.setitem(sys.modules, READER, SimpleNamespace(read=Read))
        return calls

    return install


def test_a_gpus_levels_are_read_by_programs_on_every_multiprocessor(scripted_reader):
    device = gpu(cores=132, last_level_cache_bytes=50 * 2**20)
    calls = scripted_reader(device)
    l1, l2 = measure_cache_roofs(device, clock=device.clock, budget_s=0.5)
    assert l1.peak_bytes_per_s == pytest.approx(3000 * GB)
    assert l2.peak_bytes_per_s == pytest.approx(600 * GB)
    assert (l1.size_bytes, l2.size_bytes) == (None, 50 * 2**20)
    own, shared = (next(call for call in calls if call[4] is each) for each in (True, False))
    assert own[2:4] == (264, 4096)  # 32 KiB of fp32 on each multiprocessor
    assert own[0] == 264 * 4096
    assert shared[2] == 528
    assert shared[0] * 4 == shared[3] * 4 == 50 * 2**20 // 4  # a quarter of the L2, together
    assert shared[3] % 2048 == 0
    assert shared[1] == 528 * 2048
    device = gpu(last_level_cache_bytes=16 * KIB)  # too small an L2 costs only its own roof
    scripted_reader(device)
    l1, l2 = measure_cache_roofs(device, clock=device.clock, budget_s=0.1)
    assert l1.peak_bytes_per_s is not None
    assert "too few for a block" in l2.missing["peak_bytes_per_s"]


@pytest.mark.parametrize(
    ("device", "reason"),
    [
        (gpu(cores=None), "scripted"),
        (gpu(last_level_cache_bytes=None), "scripted"),
        (gpu(backend="mps"), "no kernel that reads an Apple GPU's caches is at hand"),
    ],
)
def test_a_gpu_that_does_not_report_its_parts_or_is_apples_has_reasons(device, reason):
    roofs = measure_cache_roofs(device, clock=device.clock, budget_s=0.1)
    assert [roof.level for roof in roofs] == ["L1", "L2"]
    assert {roof.missing["peak_bytes_per_s"] for roof in roofs} == {reason}


def test_without_a_triton_that_compiles_a_gpu_has_the_reason(monkeypatch):
    class Read:
        def __class_getitem__(cls, grid):
            raise ValueError("no C compiler\nin PATH")

    device = gpu()
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, READER, raising=False)
    for roof in measure_cache_roofs(device, clock=device.clock, budget_s=0.1):
        assert "left out: Triton: ModuleNotFoundError" in roof.missing["peak_bytes_per_s"]
    monkeypatch.setitem(sys.modules, READER, SimpleNamespace(read=Read))
    for roof in measure_cache_roofs(device, clock=device.clock, budget_s=0.1):
        why = roof.missing["peak_bytes_per_s"]
        assert why.endswith("left out: Triton: ValueError: no C compiler")


def cpu_plan(monkeypatch, caches_here):
    monkeypatch.setattr(cache_roofs, "data_caches", lambda: caches_here)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    return cache_roofs.cpu_levels()


def sizes(kib, largest=None, total=None):
    return CacheLevel(kib * KIB, (largest or kib) * KIB, (total or 2 * kib) * KIB)


@pytest.mark.parametrize(
    ("l1", "l2", "l3", "blocks"),
    [
        (sizes(32), sizes(1024), sizes(32768), (16, 256, 8192)),  # AMD Zen 4
        (sizes(32), sizes(256), sizes(8192), (16, 128, 2048)),  # Intel Skylake
        (sizes(48), sizes(1280), sizes(12288), (24, 320, 5120)),  # Intel Tiger Lake
        (sizes(32, 48), sizes(1280, 2048), sizes(30720), (16, 320, 8192)),  # two kinds of cores
    ],
)
def test_blocks_fit_into_their_level_and_not_into_the_one_below(monkeypatch, l1, l2, l3, blocks):
    levels = cpu_plan(monkeypatch, {1: l1, 2: l2, 3: l3})
    assert [level.probe.operand_bytes // KIB for level in levels] == list(blocks)
    assert [level.only_control for level in levels] == [True, False, False]
    assert [level.size_bytes for level in levels] == [cache.total_bytes for cache in (l1, l2, l3)]


def test_a_level_hardly_larger_than_the_one_below_and_unknown_ones_have_reasons(monkeypatch):
    def unknown():
        raise UnknownFactError("not read on Windows")

    levels = cpu_plan(monkeypatch, {1: sizes(32), 2: sizes(1024), 3: sizes(4096)})
    assert "takes over half of its 4096 KiB" in levels[2].probe.reason
    assert levels[1].probe
    monkeypatch.setattr(cache_roofs, "data_caches", unknown)
    why = Unknown("the processor's caches: not read on Windows")
    assert [level[1:3] for level in cache_roofs.cpu_levels()] == [(why, why)] * 3


def test_every_row_of_a_launch_is_a_sum_over_the_whole_block(monkeypatch):
    monkeypatch.setattr(cache_roofs, "_BYTES_PER_THREAD", 2**20)
    torch.manual_seed(0)
    probe = cache_roofs.sum_probe("L2", 64 * KIB)
    sums = probe.prepare()()
    assert sums.numel() * 64 * KIB == probe.work_per_launch
    assert sums.numel() == 16 * torch.get_num_threads()
    torch.manual_seed(0)
    block = torch.randn(16 * KIB)
    assert torch.allclose(sums, block.sum(), rtol=1e-3, atol=1e-3)
    assert len(set(sums.tolist())) == 1


def test_this_machines_caches_give_a_rate_or_a_reason():
    lines = []
    roofs = measure_cache_roofs(open_device("cpu"), budget_s=0.2, progress=lines.append)
    assert [roof.level for roof in roofs] == ["L1", "L2", "L3"][: len(roofs)]
    assert lines
    for roof in roofs:
        assert (roof.peak_bytes_per_s is None) == ("peak_bytes_per_s" in roof.missing)
        assert roof.peak_bytes_per_s is None or roof.peak_bytes_per_s > 0
    if roofs[0].size_bytes is not None:
        assert f"by each of {torch.get_num_threads()} threads" in roofs[0].source
