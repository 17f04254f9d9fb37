import pytest

from bench.machine.limits import cgroup_limits, oom_kills, profiling_capabilities

V2 = {"sys/fs/cgroup/cgroup.controllers": "cpu memory\n"}
V1_SELF = "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n0::/\n"
V1_UNLIMITED = "9223372036854771712\n"


def test_the_tightest_limit_up_the_hierarchy_counts(tree):
    root = tree(
        {
            **V2,
            "proc/self/cgroup": "0::/user.slice/job.scope\n",
            "sys/fs/cgroup/user.slice/job.scope/cpu.max": "400000 100000\n",
            "sys/fs/cgroup/user.slice/job.scope/memory.max": "4000000000\n",
            "sys/fs/cgroup/user.slice/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/user.slice/memory.max": "3000000000\n",
        }
    )
    limits = cgroup_limits(root)
    assert limits.cpus == 1.5
    assert limits.memory_bytes == 3_000_000_000


def test_no_limit_is_none(tree):
    root = tree(
        {
            **V2,
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/cpu.max": "max 100000\n",
            "sys/fs/cgroup/memory.max": "max\n",
        }
    )
    assert cgroup_limits(root).cpus is None
    assert cgroup_limits(root).memory_bytes is None


def test_version_1_inside_a_container_whose_path_is_the_hosts(tree):
    # The container mounts its own group as the root; the path in /proc names the host's folders.
    root = tree(
        {
            "proc/self/cgroup": V1_SELF,
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "200000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "8000000000\n",
        }
    )
    assert cgroup_limits(root).cpus == 2.0
    assert cgroup_limits(root).memory_bytes == 8_000_000_000


def test_version_1_without_limits(tree):
    root = tree(
        {
            "proc/self/cgroup": V1_SELF,
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": V1_UNLIMITED,
        }
    )
    assert cgroup_limits(root).cpus is None
    assert cgroup_limits(root).memory_bytes is None


def test_a_process_moved_out_of_its_namespace_sees_the_mount_only(tree):
    root = tree(
        {
            **V2,
            "proc/self/cgroup": "0::/../../other\n",
            "sys/fs/cgroup/memory.max": "1000\n",
            "sys/other/memory.max": "5\n",
        }
    )
    assert cgroup_limits(root).memory_bytes == 1000


def test_a_system_without_control_groups_has_no_limits(tree):
    assert cgroup_limits(tree({})).memory_bytes is None
    assert oom_kills(tree({})) is None


def test_oom_kills_of_the_own_group_come_before_the_machines(tree):
    root = tree(
        {
            **V2,
            "proc/self/cgroup": "0::/job\n",
            "sys/fs/cgroup/job/memory.events": "low 0\noom 3\noom_kill 2\noom_group_kill 0\n",
            "proc/vmstat": "nr_free_pages 1\noom_kill 7\n",
        }
    )
    assert oom_kills(root) == 2


def test_oom_kills_of_version_1_and_of_the_machine(tree):
    root = tree({"proc/self/cgroup": "4:memory:/\n0::/\n", "proc/vmstat": "oom_kill 7\n"})
    assert oom_kills(root) == 7
    tree({"sys/fs/cgroup/memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 5"})
    assert oom_kills(root) == 5


@pytest.mark.parametrize(
    ("mask", "allowed"),
    [
        ("0000004000000000", True),  # CAP_PERFMON
        ("0000000000200000", True),  # CAP_SYS_ADMIN
        ("00000000a80425fb", False),  # what a container gets by default
    ],
)
def test_capabilities_are_read_bit_by_bit(tree, mask, allowed):
    assert bool(profiling_capabilities(tree({"proc/self/status": f"CapEff:\t{mask}\n"}))) is allowed
    assert profiling_capabilities(tree({}) / "nowhere") == frozenset()
