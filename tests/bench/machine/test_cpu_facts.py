import os
import subprocess
import sys

import psutil
import pytest
import torch
from worker_processes import output_of

from bench.machine import UnknownFactError, cpu
from bench.machine.cpu import (
    cpu_device_info,
    cpu_model,
    cpu_signature,
    last_level_cache_bytes,
    others_cpu_s,
    usable_cores,
    usable_physical_cores,
)
from bench.training.devices import MpsDevice

posix_only = pytest.mark.skipif(os.name == "nt", reason="shell scripts stand in for programs")
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's files")


@pytest.fixture
def on_macos(monkeypatch):
    monkeypatch.setattr("platform.system", lambda: "Darwin")


@linux_only
def test_this_machines_last_cache_is_what_lscpu_adds_up(monkeypatch):
    monkeypatch.setattr(cpu, "_allowed_cpus", lambda: range(psutil.cpu_count()))
    listing = subprocess.run(
        ["lscpu", "--bytes", "--caches=NAME,ALL-SIZE"], capture_output=True, text=True, check=False
    ).stdout.splitlines()[1:]
    if listing:
        assert last_level_cache_bytes() == int(listing[-1].split()[1])
    else:  # a virtual machine may hide them from both
        with pytest.raises(UnknownFactError):
            last_level_cache_bytes()


GENOA = "cpu family\t: 25\nmodel\t\t: 17\nmodel name\t: AMD EPYC\nstepping\t: 1\n"


@pytest.mark.parametrize(
    ("cpuinfo", "signature"),
    [
        (
            f"{GENOA}\nprocessor : 1\ncpu family : 6\nmodel : 1\nstepping : 7\n",
            "family 25 model 17 stepping 1",
        ),
        (
            "CPU implementer : 0x41\nCPU variant : 0x0\nCPU part : 0xd4f\n",
            "implementer 0x41 part 0xd4f variant 0x0",
        ),
    ],
)
def test_generations_of_one_name_differ_in_their_numbers(tree, on_linux, cpuinfo, signature):
    tree({"proc/cpuinfo": cpuinfo})
    assert cpu_signature() == signature


@posix_only
@pytest.mark.parametrize(
    ("cpuinfo", "name"),
    [
        ("processor : 0\nmodel name\t: AMD  EPYC 9754\nflags : x\n", "AMD EPYC 9754"),
        ("processor : 0\nCPU part\t: 0xd4f\n", "Neoverse-V2"),  # Arm's are lscpu's
    ],
)
def test_the_name_is_the_kernels_or_lscpus(tree, on_linux, program, cpuinfo, name):
    program("lscpu", "echo 'Vendor ID:   ARM'; echo 'Model name:  Neoverse-V2'")
    tree({"proc/cpuinfo": cpuinfo})
    assert cpu_model() == name


@posix_only
def test_a_nameless_processor_is_a_reason_and_still_a_device(tree, on_linux, program):
    program("lscpu", "echo 'Model name:  -'")
    tree({"proc/cpuinfo": "processor : 0\n"})
    with pytest.raises(UnknownFactError, match="neither the kernel nor lscpu"):
        cpu_model()
    with pytest.raises(UnknownFactError, match="no numbers"):
        cpu_signature()
    info = cpu_device_info()
    assert info.name.endswith(" CPU")
    assert 0 < info.memory_bytes <= psutil.virtual_memory().total
    assert info.cores >= 1


def test_a_quota_limits_the_cores_rounded_up(tree, monkeypatch):
    monkeypatch.setattr(cpu, "_allowed_cpus", lambda: [0, 1, 2, 3])
    tree({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cgroup.controllers": ""})
    assert usable_cores() == 4
    for quota, cores in (("150000", 2), ("200000", 2), ("1000", 1), ("900000", 4)):
        tree({"sys/fs/cgroup/cpu.max": f"{quota} 100000\n"})
        assert usable_cores() == cores, quota


def test_two_hardware_threads_are_one_core(tree, monkeypatch):
    files = {}
    for number in range(4):
        topology = f"sys/devices/system/cpu/cpu{number}/topology"
        files[f"{topology}/physical_package_id"] = "0\n"
        files[f"{topology}/core_id"] = f"{number // 2}\n"
    monkeypatch.setattr(cpu, "_allowed_cpus", lambda: [0, 1, 2, 3])
    tree(files)
    assert usable_physical_cores() == 2
    monkeypatch.setattr(cpu, "_allowed_cpus", lambda: [0, 1])
    assert usable_physical_cores() == 1


@linux_only
def test_affinity_limits_the_cores_of_a_real_process():
    ask = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))});"
        "from bench.machine.cpu import usable_cores; print(usable_cores())"
    )
    assert output_of(ask) == "1\n"


SYSCTL = """case "$2" in
machdep.cpu.brand_string) echo "Apple M3 Max" ;;
hw.l3cachesize) echo "sysctl: unknown oid 'hw.l3cachesize'" >&2; exit 1 ;;
hw.nperflevels) echo 2 ;;
hw.perflevel0.physicalcpu) echo 12 ;;
hw.perflevel0.cpusperl2) echo 6 ;;
hw.perflevel0.l2cachesize) echo 16777216 ;;
hw.perflevel1.physicalcpu) echo 4 ;;
hw.cpufamily) echo 1912690738 ;;
hw.perflevel1.cpusperl2) echo 4 ;;
hw.perflevel1.l2cachesize) echo 4194304 ;;
esac"""


@posix_only
def test_apples_processors_and_gpus_tell_by_sysctl_and_ioreg(program, on_macos, monkeypatch):
    program("sysctl", SYSCTL)
    program("ioreg", 'echo "    \\"gpu-core-count\\" = 40"')
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 28_991_029_248)
    assert (cpu_model(), cpu_signature()) == ("Apple M3 Max", "family 1912690738")
    assert last_level_cache_bytes() == 2 * 16 * 2**20 + 4 * 2**20  # of its clusters
    gpu = MpsDevice().info()
    assert (gpu.name, gpu.cores, gpu.memory_bytes) == ("Apple M3 Max", 40, 28_991_029_248)
    assert "system cache" in gpu.missing["last_level_cache_bytes"]
    program("sysctl", '[ "$2" = hw.l3cachesize ] && echo 16777216')
    program("ioreg", "echo nothing")
    assert last_level_cache_bytes() == 16 * 2**20  # an Intel Mac's L3
    gpu = MpsDevice().info()
    assert (gpu.name, gpu.cores) == ("Apple GPU", None)
    assert "gpu-core-count" in gpu.missing["cores"]


BURN = (
    "import sys, time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\nsys.stdin.read()"
)


@pytest.mark.parametrize("reaped", [False, True])
def test_what_this_process_and_its_children_use_is_not_others(monkeypatch, reaped):
    now = psutil.cpu_times()
    monkeypatch.setattr(psutil, "cpu_times", lambda: now)  # nobody used anything since
    before_s = others_cpu_s()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", BURN], **pipes) as child:
        child.stdout.readline()
        if reaped:
            child.communicate()
        assert before_s - others_cpu_s() >= 0.25
        child.stdin.close()


def test_others_are_those_that_are_no_descendants(monkeypatch):
    now = psutil.cpu_times()
    monkeypatch.setattr(psutil, "cpu_times", lambda: now._replace(user=now.user + 5.0))
    busier_s = others_cpu_s()
    monkeypatch.setattr(psutil, "cpu_times", lambda: now._replace(idle=now.idle + 5.0))
    assert busier_s - others_cpu_s() >= 5.0


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
    tree(_files(caches))


def test_the_last_level_counts_each_cache_that_the_allowed_processors_reach_once(
    two_kinds_of_cores, tree, monkeypatch
):
    allowed = [0, 1, 2]
    monkeypatch.setattr(cpu, "_allowed_cpus", lambda: allowed)
    assert last_level_cache_bytes() == 12288 * KIB
    tree(_files([(3, 3, 3, "Unified", "16384K", "3")]))  # of a second socket
    allowed.append(3)
    assert last_level_cache_bytes() == (12288 + 16384) * KIB
    allowed[:] = [7]
    with pytest.raises(UnknownFactError, match="lists no caches"):
        last_level_cache_bytes()
    monkeypatch.setattr("platform.system", lambda: "Windows")
    with pytest.raises(UnknownFactError, match="not read on Windows"):
        last_level_cache_bytes()
