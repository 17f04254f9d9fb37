"""The processor's caches, level by level."""

import pytest

from bench.machine.cpu import CacheLevel, data_caches, last_level_cache_bytes
from bench.machine.probes import UnknownFactError

KIB = 2**10


def _files(caches):
    """What the kernel shows of caches: processor, index, level, type, size, processors."""
    names = ("level", "type", "size", "shared_cpu_list")
    return {
        f"sys/devices/system/cpu/cpu{cpu}/cache/index{index}/{name}": f"{value}\n"
        for cpu, index, *values in caches
        for name, value in zip(names, values, strict=True)
    }


@pytest.fixture
def two_kinds_of_cores(tree, on_linux):
    """One large core with caches of its own, two small ones that share an L2; one L3 for all."""
    caches = [
        (0, 0, 1, "Data", "48K", "0"),
        (0, 1, 1, "Instruction", "32K", "0"),
        (0, 2, 2, "Unified", "1280K", "0"),
        (0, 3, 3, "Unified", "12288K", "0-2"),
        *((cpu, 0, 1, "Data", "32K", str(cpu)) for cpu in (1, 2)),
        *((cpu, 2, 2, "Unified", "2048K", "1-2") for cpu in (1, 2)),
        *((cpu, 3, 3, "Unified", "12288K", "0-2") for cpu in (1, 2)),
    ]
    return tree(_files(caches))


def test_each_level_gives_its_smallest_its_largest_and_all_of_the_given_processors(
    two_kinds_of_cores,
):
    assert data_caches(range(3), two_kinds_of_cores) == {
        1: CacheLevel(32 * KIB, 48 * KIB, 112 * KIB),
        2: CacheLevel(1280 * KIB, 2048 * KIB, 3328 * KIB),
        3: CacheLevel(12288 * KIB, 12288 * KIB, 12288 * KIB),
    }
    assert data_caches([0], two_kinds_of_cores)[2] == CacheLevel(*[1280 * KIB] * 3)


def test_the_last_level_is_the_sum_of_its_caches(two_kinds_of_cores, tree):
    assert last_level_cache_bytes(range(3), two_kinds_of_cores) == 12288 * KIB
    second_socket = [(3, 3, 3, "Unified", "16M", "3")]
    assert last_level_cache_bytes(range(4), tree(_files(second_socket))) == (12288 + 16384) * KIB
    assert last_level_cache_bytes([3], two_kinds_of_cores) == 16384 * KIB


@pytest.mark.parametrize(
    ("caches", "reason"),
    [([], "lists no caches"), ([(0, 0, 1, "Data", "32 apples", "0")], "'32 apples'")],
)
def test_caches_that_cannot_be_read_are_a_reason(tree, on_linux, caches, reason):
    with pytest.raises(UnknownFactError, match=reason):
        last_level_cache_bytes([0], tree(_files(caches)))


@pytest.mark.parametrize("system", ["Darwin", "Windows"])
def test_other_systems_do_not_tell(tmp_path, monkeypatch, system):
    monkeypatch.setattr("platform.system", lambda: system)
    with pytest.raises(UnknownFactError, match=f"not read on {system}"):
        data_caches([0], tmp_path)
