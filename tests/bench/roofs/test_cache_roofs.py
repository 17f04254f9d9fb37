"""Roofs of caches: from scripted rates to records, and what has a reason instead of a guess."""

import itertools
import sys
from functools import partial
from types import SimpleNamespace

import pytest
import samples
from scripted_gpu import QueueingDevice

from bench.errors import Unknown
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

    def level(name, rates_gb_per_s):
        rates = itertools.chain(rates_gb_per_s, itertools.repeat(rates_gb_per_s[-1]))
        launch = lambda: device.queue(0.01 / next(rates))  # noqa: E731
        probe = Probe(f"{name}: scripted", None, GB // 100, 0, lambda: launch)
        return Level(name, 1000, probe)

    def measure(*levels):
        made = [each if isinstance(each, Level) else level(*each) for each in levels]
        monkeypatch.setattr(cache_roofs, "cuda_levels", lambda device: made)
        return measure_cache_roofs(device, clock=device.clock, budget_s=0.5)

    return measure


def test_levels_have_their_scripted_rates(measured):
    l1, l2 = measured(("L1", [9]), ("L2", [3]))
    for roof, level, rate in ((l1, "L1", 9 * GB), (l2, "L2", 3 * GB)):
        assert (roof.level, roof.size_bytes, roof.missing) == (level, 1000, {})
        assert roof.peak_bytes_per_s == pytest.approx(rate)
    assert l1.source.startswith("L1: scripted, upper quartile of ")
    assert "; torch " in l1.source
    unmeasured = samples.facts(CacheRoof, level="L3", source="not measured")  # of an old record
    shown = roof_facts(samples.ceilings_record(cache_roofs=(l2, unmeasured)))  # by the command
    assert shown["roof L2"] == "3 GB/s"
    assert shown["no roof L3"] == unmeasured.missing["peak_bytes_per_s"]


@pytest.mark.parametrize(
    ("levels", "reason"),
    [
        ([("L1", [3]), ("L2", [2.9])], "no slower than the L1 (3 GB/s): the two cannot be"),
        ([("L2", [4] * 12 + [3])], "others use the device"),
    ],
)
def test_a_rate_that_may_not_be_the_caches_has_a_reason(measured, levels, reason):
    *below, roof = measured(*levels)
    assert roof.peak_bytes_per_s is None
    assert reason in roof.missing["peak_bytes_per_s"]
    assert roof.source.startswith(f"{roof.level}: scripted")  # what was seen is kept
    assert None not in [level.peak_bytes_per_s for level in below]


def test_a_probe_that_fails_and_an_absent_one_give_the_reason(measured):
    def prepare():
        raise RuntimeError("Triton cannot be used here: No module named 'triton'\nmore")

    probe = Probe("L1: read", None, 1, 0, prepare)
    no_probe = Level("L2", 8, Unknown("small"))
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


@pytest.mark.parametrize("absent", ["cores", "last_level_cache_bytes"])
def test_a_gpu_that_does_not_report_its_parts_has_the_reason_and_another_device_no_roof(absent):
    device = gpu(**{absent: None})
    roofs = measure_cache_roofs(device, clock=device.clock, budget_s=0.1)
    assert [roof.level for roof in roofs] == ["L1", "L2"]
    assert {roof.missing["peak_bytes_per_s"] for roof in roofs} == {"scripted"}
    assert measure_cache_roofs(open_device("cpu")) == ()


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
