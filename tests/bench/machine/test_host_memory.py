"""What becomes of memory that a step frees, seen in real processes."""

import json
import platform

import pytest
from worker_processes import output_of

from bench.config import RunConfig
from bench.errors import UnsupportedError
from bench.machine.limits import allocator_in_use, allocator_settings

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")

FREED_AND_TAKEN_AGAIN = """
import json, os, resource
from bench.machine.limits import allocator_in_use

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def take():
    block = bytearray(64 << 20)
    block[::4096] = bytes(len(block) // 4096)

take()
before = faults()
for _ in range(5):
    take()
print(json.dumps([allocator_in_use("auto"), faults() - before]))
"""


@glibc
@pytest.mark.parametrize(
    ("asked", "in_use", "pays_again"), [("auto", "retain", False), ("system", "system", True)]
)
@pytest.mark.slow
def test_freed_memory_stays_or_is_paid_for_again(asked, in_use, pays_again):
    allocator, faults = json.loads(
        output_of(FREED_AND_TAKEN_AGAIN, **allocator_settings(RunConfig(allocator=asked)))
    )
    assert allocator == in_use
    assert (faults > 1000) == pays_again
    retain = allocator_settings(RunConfig(allocator="retain"))
    assert (allocator_settings(RunConfig(allocator=asked)) == retain) == (in_use == "retain")


@glibc
def test_the_users_own_tunables_stay(monkeypatch):
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.arena_max=1")
    tunables = allocator_settings(RunConfig())["GLIBC_TUNABLES"].split(":")
    assert tunables == ["glibc.malloc.arena_max=1", "glibc.malloc.hugetlb=1"]


@glibc
def test_another_allocator_of_the_users_is_named_and_left_alone(monkeypatch):
    monkeypatch.setenv("LD_PRELOAD", "/usr/lib/libjemalloc.so.2")
    assert allocator_settings(RunConfig(allocator="retain")) == {}
    assert allocator_in_use("retain") == "preloaded"


def test_what_the_c_library_cannot_is_unsupported(monkeypatch):
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    assert allocator_settings(RunConfig()) == {}
    assert allocator_in_use("auto") == "system"
    with pytest.raises(UnsupportedError, match="allocator='retain'"):
        allocator_in_use("retain")
