"""The report's tables of machines: what a run took of its own, its sensors, and which it was."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.report.tables.run_columns import CONFIGURATION, NUMBERED, metric
from analysis.runs.placed import PlacedRun
from analysis.runs.quantities import percent, three_digits
from analysis.table import (
    Column,
    Table,
    make_table,
    number,
    scaled,
    text,
)
from bench.config import ENERGY, common_sample, energy_metric
from bench.records import CLOCK_SETTING, POWER_LIMIT, Environment


def processes_table(runs: Sequence[PlacedRun]) -> Table:
    """What `/usr/bin/time -v` says of each run's process and its loaders, and peak memory."""
    return make_table(
        "processes",
        "Process times and peak memory, of the whole process with its start",
        (run for run in runs if {"real_s", "peak_memory_mb"} & run.metrics.keys()),
        NUMBERED,
        CONFIGURATION,
        metric("real_s", "real (s)"),
        metric("user_s", "user (s)"),
        metric("system_s", "system (s)"),
        number("cores_busy", "cores busy, mean", _cores_busy),
        metric("max_rss_mb", "max RSS (MB)"),
        metric("peak_memory_mb", "peak on the device (MB)"),
        sparse=True,
    )


def _cores_busy(run: PlacedRun) -> float | None:
    """(user + system) / real."""
    times_s = [run.metrics.get(name) for name in ("user_s", "system_s")]
    known = [time_s for time_s in times_s if time_s is not None]
    real_s = run.metrics.get("real_s")
    return sum(known) / real_s if real_s and len(known) == len(times_s) else None


def telemetry_table(runs: Sequence[PlacedRun]) -> Table:
    """Means over each run's window of what its device's sensors said, and its energy."""

    def device(name: str, heading: str, *series: str) -> Column[PlacedRun]:
        """The mean of the first of `series` that the run has: the GPU's before the processor's."""

        def mean(run: PlacedRun) -> float | None:
            means = (run.metrics.get(f"{one}_mean") for one in series)
            return next((value for value in means if value is not None), None)

        return number(name, heading, mean)

    others = common_sample(run.sample for run in runs if ENERGY in run.metrics)
    columns: list[Column[PlacedRun]] = [
        device("power_w", "power (W)", "gpu_power_w", "cpu_package_power_w"),
        device("clock_mhz", "clock (MHz)", "gpu_sm_clock_mhz", "cpu_frequency_mhz"),
        device("temperature_c", "temperature (°C)", "gpu_temperature_c",
               "cpu_temperature_c"),
        device("utilisation_percent", "utilisation (%)", "gpu_utilization_percent",
               "cpu_utilization_percent"),
        number("other_processes_cores", "cores of other programs",
               lambda run: scaled(run.metrics.get("other_cpu_percent_mean"), 1e-2)),
        number("stolen_cores", "cores given to other guests",
               lambda run: scaled(run.metrics.get("stolen_cpu_percent_mean"), 1e-2)),
        number("power_limited_share", "at its power limit", _power_limited_share, percent),
        number("throttled_share", "throttled", _throttled_share, percent),
        metric("energy_j", "energy (J)"),
        metric(energy_metric("image"), "J/image"),
        metric(ENERGY, f"J/{others}"),
    ]  # fmt: skip
    return make_table(
        "telemetry",
        "Means over the window of what the device's sensors said, and energy",
        (run for run in runs if any(column.value(run) is not None for column in columns)),
        NUMBERED,
        CONFIGURATION,
        *columns,
        sparse=True,
    )


def _throttled_share(run: PlacedRun) -> float | None:
    """Share of the samples with the most frequent reason to throttle; 0 where there was none."""
    shares = run.record.telemetry.throttle_share if run.record.telemetry else None
    if shares is None:
        return None
    chosen = (POWER_LIMIT, CLOCK_SETTING)
    return max((share for name, share in shares.items() if name not in chosen), default=0.0)


def _power_limited_share(run: PlacedRun) -> float | None:
    """Share of the samples at the power limit, or None where it was never reached or not read."""
    shares = run.record.telemetry.throttle_share if run.record.telemetry else None
    return (shares or {}).get(POWER_LIMIT)


def environments_table(runs: Sequence[PlacedRun]) -> Table:
    """Facts in rows, environments in columns; a fact that no machine has is left out.

    Environments that differ in a fact are columns of their own, numbered if they share a label.
    """
    known = [run.record.environment for run in runs if run.record.environment]
    found = {(one.label, tuple(_facts(one).values())): _facts(one) for one in known}
    labels = [label for label, _ in found]
    headings = [
        label if labels.count(label) == 1 else f"{label} ({labels[: index + 1].count(label)})"
        for index, label in enumerate(labels)
    ]
    fact: Column[str] = text("fact", "", str)
    columns: list[Column[str]] = [
        Column(heading, (heading,), facts.get, wraps_em=12)
        for heading, facts in zip(headings, found.values(), strict=True)
    ]
    names = [
        name
        for name in dict.fromkeys(name for facts in found.values() for name in facts)
        if any(facts[name] is not None for facts in found.values())
    ]
    return make_table("environments", "Environments", names, fact, *columns)


def _facts(env: Environment) -> dict[str, object]:
    device, commit = env.device, env.git_commit
    changed = " (changed)" if env.git_dirty else ""
    return {
        "device": device.name,
        "backend": device.backend,
        "device UUID": device.uuid,
        "device cores": device.cores,
        "device memory (GB)": _digits(device.memory_bytes, 1e9),
        "last-level cache (MB)": _digits(device.last_level_cache_bytes, 1e6),
        "compute capability": device.compute_capability,
        "driver": device.driver,
        "power limit (W)": _digits(device.power_limit_w),
        "PCIe": device.pcie,
        "operating system": f"{env.os}, kernel {env.kernel}, {env.machine}",
        "processor": env.cpu_model,
        "processor's numbers": env.cpu_signature,
        "processor cores usable": env.cpu_cores_usable,
        "memory (GB)": _digits(env.memory_bytes, 1e9),
        "storage": env.storage,
        "Python": env.python,
        "PyTorch": env.torch,
        "torchvision": env.torchvision,
        "CUDA": env.cuda,
        "cuDNN": env.cudnn,
        "NCCL": env.packages.get("nccl"),
        "variables": env.variables_set,
        "container": env.container,
        "virtualisation": env.virtualization,
        "cloud": env.cloud_provider,
        "machine type": env.cloud_machine_type,
        "zone": env.cloud_zone,
        "power": env.power_source,
        "commit": None if commit is None else commit[:12] + changed,
    }


def _digits(value: float | None, unit: float = 1.0) -> str | None:
    return None if value is None else three_digits(value / unit)
