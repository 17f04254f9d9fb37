import json
import platform
from types import SimpleNamespace

import pytest
from worker_processes import output_of

from bench.config import RunConfig
from bench.errors import UnsupportedError
from bench.machine.limits import (
    allocator_in_use,
    allocator_settings,
    cpu_quota,
    memory_bytes,
    oom_kills,
    profiling_capabilities,
)

MACHINE_BYTES = 10**10
V2 = {"cgroup.controllers": "cpu memory\n"}
V1_SELF = "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n0::/\n"


#: This process's groups, files below the mount, and the cores and bytes that are left.
LIMITS = {
    "the tightest up the hierarchy": (
        "0::/user.slice/job.scope\n",
        {
            **V2,
            "user.slice/job.scope/cpu.max": "400000 100000\n",
            "user.slice/job.scope/memory.max": "4000000000\n",
            "user.slice/cpu.max": "150000 100000\n",
            "user.slice/memory.max": "3000000000\n",
        },
        (1.5, 3_000_000_000),
    ),
    "version 2 without limits": (
        "0::/\n",
        {**V2, "cpu.max": "max 100000\n", "memory.max": "max\n"},
        (None, MACHINE_BYTES),
    ),
    # it mounts its own group as the root; /proc names the host's folders
    "version 1 inside a container": (
        V1_SELF,
        {
            "cpu,cpuacct/cpu.cfs_quota_us": "200000\n",
            "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            "memory/memory.limit_in_bytes": "8000000000\n",
        },
        (2.0, 8_000_000_000),
    ),
    "version 1 without limits": (
        V1_SELF,
        {
            "cpu/cpu.cfs_quota_us": "-1\n",
            "cpu/cpu.cfs_period_us": "100000\n",
            "memory/docker/abc/memory.limit_in_bytes": "9223372036854771712\n",
        },
        (None, MACHINE_BYTES),
    ),
    "moved out of its namespace: only the mount is seen": (
        "0::/../../other\n",
        {**V2, "memory.max": "1000\n", "../../other/memory.max": "5\n"},
        (None, 1000),
    ),
}


@pytest.mark.parametrize(("groups", "files", "left"), LIMITS.values(), ids=LIMITS)
def test_limits_of_control_groups(tree, monkeypatch, groups, files, left):
    found = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    tree({"proc/self/cgroup": groups, **found})
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(total=MACHINE_BYTES))
    assert (cpu_quota(), memory_bytes()) == left


def test_oom_kills_of_the_own_group_come_before_the_machines(tree):
    assert (cpu_quota(), oom_kills()) == (None, None)
    tree({"proc/self/cgroup": "4:memory:/\n0::/job\n", "proc/vmstat": "oom_kill 7\n"})
    assert oom_kills() == 7
    tree({"sys/fs/cgroup/memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 5"})
    assert oom_kills() == 5
    events = "low 0\noom 3\noom_kill 2\noom_group_kill 0\n"
    tree({"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/cgroup.controllers": "memory\n"})
    tree({"sys/fs/cgroup/job/memory.events": events})
    assert oom_kills() == 2


@pytest.mark.parametrize(
    ("mask", "allowed"),
    [
        ("0000004000000000", True),  # CAP_PERFMON
        ("0000000000200000", True),  # CAP_SYS_ADMIN
        ("00000000a80425fb", False),  # what a container gets by default
    ],
)
def test_capabilities_are_read_bit_by_bit(tree, mask, allowed):
    assert profiling_capabilities() == frozenset()
    tree({"proc/self/status": f"CapEff:\t{mask}\n"})
    assert bool(profiling_capabilities()) is allowed


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
def test_the_users_own_allocator_and_tunables_stay_and_what_cannot_be_is_unsupported(monkeypatch):
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.arena_max=1")
    tunables = allocator_settings(RunConfig())["GLIBC_TUNABLES"].split(":")
    assert tunables == ["glibc.malloc.arena_max=1", "glibc.malloc.hugetlb=1"]
    monkeypatch.setenv("LD_PRELOAD", "/usr/lib/libjemalloc.so.2")
    assert allocator_settings(RunConfig(allocator="retain")) == {}
    assert allocator_in_use("retain") == "preloaded"
    monkeypatch.delenv("LD_PRELOAD")
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    assert (allocator_settings(RunConfig()), allocator_in_use("auto")) == ({}, "system")
    with pytest.raises(UnsupportedError, match="allocator='retain'"):
        allocator_in_use("retain")
