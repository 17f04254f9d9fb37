"""The processor: its name, its caches, and the cores that this process may use."""

from __future__ import annotations

import math
import platform
from contextlib import suppress
from functools import partial

import psutil

from bench.machine import (
    UnknownFactError,
    output_of,
    probe,
    registry_text,
    sysctl,
    system_path,
    text_of,
    value_or_none,
)
from bench.machine.limits import cpu_quota, memory_bytes
from bench.records import DeviceInfo


def others_cpu_s() -> float:
    """Return the CPU time that all other processes have used since the machine started.

    This process's own is left out, as is that of its descendants; counted in ticks of 10 ms.
    """
    times, own_s = psutil.cpu_times()._asdict(), 0.0
    not_busy = ("idle", "iowait", "steal", "guest", "guest_nice")  # guests are in user time too
    me = psutil.Process()
    for process in (me, *me.children(recursive=True)):
        with suppress(psutil.Error):  # it has ended since
            used = process.cpu_times()
            own_s += used.user + used.system
            own_s += getattr(used, "children_user", 0.0) + getattr(used, "children_system", 0.0)
    busy_s: float = sum(s for name, s in times.items() if name not in not_busy)
    return busy_s - own_s


def last_level_cache_bytes() -> int:
    """Return the bytes of all last-level caches usable here, a shared one counted once."""
    system = platform.system()
    if system == "Darwin":
        return _apple_cache_bytes()
    if system != "Linux":
        raise UnknownFactError(f"not read on {system}")
    caches: dict[int, dict[str, int]] = {}
    for cpu in _allowed_cpus():
        for index in system_path(f"sys/devices/system/cpu/cpu{cpu}/cache").glob("index*"):
            if text_of(index / "type") != "Instruction":
                shared = caches.setdefault(int(text_of(index / "level")), {})
                size = int(text_of(index / "size").removesuffix("K"))  # drivers/base/cacheinfo.c
                shared[text_of(index / "shared_cpu_list")] = 1024 * size
    if not caches:
        raise UnknownFactError("the kernel lists no caches")
    return sum(caches[max(caches)].values())


def _apple_cache_bytes() -> int:
    """Return the L3 of an Intel Mac, or the clusters' L2, as Apple publishes no more."""
    if l3 := value_or_none(lambda: int(sysctl("hw.l3cachesize"))):
        return l3
    total = 0
    for level in range(int(sysctl("hw.nperflevels"))):
        cores = int(sysctl(f"hw.perflevel{level}.physicalcpu"))
        per_cluster = int(sysctl(f"hw.perflevel{level}.cpusperl2"))
        clusters = math.ceil(cores / per_cluster)
        total += clusters * int(sysctl(f"hw.perflevel{level}.l2cachesize"))
    return total


#: The lines of /proc/cpuinfo that name a processor's generation.
_X86_NUMBERS = ("cpu family", "model", "stepping")
_ARM_NUMBERS = ("CPU implementer", "CPU part", "CPU variant")
_CPU_KEY = r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"


def cpu_device_info() -> DeviceInfo:
    """Return the CPU as a device: the cores, memory and last-level cache usable here."""
    return DeviceInfo.of(
        "not asked of a CPU",
        backend="cpu",
        name=probe(cpu_model) or f"{platform.machine()} CPU",
        memory_bytes=probe(memory_bytes),
        last_level_cache_bytes=probe(last_level_cache_bytes),
        max_clock_mhz=probe(_max_clock_mhz),
        cores=probe(usable_physical_cores),
    )


def cpu_model() -> str:
    """Return the maker's name of the processor."""
    system = platform.system()
    if system == "Darwin":
        return sysctl("machdep.cpu.brand_string")
    if system == "Windows":
        return registry_text(_CPU_KEY, "ProcessorNameString")
    # Arm kernels list part numbers only; lscpu has the table of their names.
    for listing in (partial(text_of, "proc/cpuinfo"), partial(output_of, "lscpu")):
        for line in listing().splitlines():
            key, _, value = line.partition(":")
            if key.strip().lower() == "model name" and value.strip(" -"):
                return " ".join(value.split())
    raise UnknownFactError("neither the kernel nor lscpu names the processor")


def cpu_signature() -> str:
    """Return the maker's numbers of the processor, such as `family 25 model 17 stepping 1`.

    The name alone does not identify a processor: a virtual machine may see `AMD EPYC` or
    `Intel(R) Xeon(R) CPU @ 2.20GHz` on several generations, one twice as fast as the other.
    """
    system = platform.system()
    if system == "Darwin":
        return f"family {sysctl('hw.cpufamily')}"
    if system == "Windows":
        return registry_text(_CPU_KEY, "Identifier")
    first, _, _ = text_of("proc/cpuinfo").partition("\n\n")
    lines = (line.partition(":") for line in first.splitlines())
    facts = {key.strip(): " ".join(value.split()) for key, _, value in lines}
    for names in (_X86_NUMBERS, _ARM_NUMBERS):
        if all(facts.get(name) for name in names):
            return " ".join(f"{name.lower().removeprefix('cpu ')} {facts[name]}" for name in names)
    raise UnknownFactError("the kernel shows no numbers of the processor")


def usable_cores() -> int:
    """Return the logical cores this process may keep busy: affinity, then CPU quota, rounded up.

    Rounded up because a quota of 1.5 cores is only used whole by two threads.
    """
    quota = cpu_quota()
    allowed = len(_allowed_cpus())
    return allowed if quota is None else min(allowed, max(1, math.ceil(quota)))


def usable_physical_cores() -> int:
    """Return the physical cores behind `usable_cores`, two hardware threads being one core."""
    seen = set()
    for cpu in _allowed_cpus():
        topology = system_path(f"sys/devices/system/cpu/cpu{cpu}/topology")
        try:
            seen.add((text_of(topology / "physical_package_id"), text_of(topology / "core_id")))
        except UnknownFactError:
            return min(physical_cores(), usable_cores())
    return min(len(seen), usable_cores())


def physical_cores() -> int:
    """Return the machine's physical cores."""
    if cores := psutil.cpu_count(logical=False):
        return cores
    raise UnknownFactError("the system does not distinguish hardware threads from cores")


def _allowed_cpus() -> list[int]:
    affinity = getattr(psutil.Process(), "cpu_affinity", None)  # macOS has none
    return list(affinity()) if affinity else list(range(psutil.cpu_count() or 1))


def _max_clock_mhz() -> float:
    clock = psutil.cpu_freq()
    if clock is None or not clock.max:
        raise UnknownFactError("the system shows no highest clock")
    return float(clock.max)


class PackageEnergy:
    """Cumulative energy of all processor packages."""

    def __init__(self) -> None:
        # Packages only: `psys` holds them again, and intel-rapl-mmio shows the same counters.
        zones = sorted(system_path("sys/class/powercap").glob("intel-rapl:*"))
        packages = [zone for zone in zones if text_of(zone / "name").startswith("package-")]
        if not packages:
            raise UnknownFactError("the kernel shows no RAPL energy counter")
        self._range_uj = {zone: int(text_of(zone / "max_energy_range_uj")) for zone in packages}
        self._last_uj = {zone: int(text_of(zone / "energy_uj")) for zone in packages}
        self._total_uj = 0

    def energy_j(self) -> float:
        """Return joules, of which only differences mean something."""
        for zone, range_uj in self._range_uj.items():
            now_uj = int(text_of(zone / "energy_uj"))
            step_uj = now_uj - self._last_uj[zone]
            # where the register wraps around it counts on
            self._total_uj += step_uj if step_uj >= 0 else step_uj + range_uj
            self._last_uj[zone] = now_uj
        return self._total_uj / 1e6
