"""One AMD GPU by amdsmi: load, memory, power, clock, heat, energy. Untested on a device."""

from __future__ import annotations

from functools import partial
from typing import Any

from bench.launcher.telemetry.base import Gauge, Reading, Source
from bench.machine.gpu_drivers import amd_clock_mhz, amd_device, number_of
from bench.machine.probes import reason_of

_NOT_READ = "not read from AMD GPUs"


def _power_w(smi: Any, card: Any) -> float:
    power = smi.amdsmi_get_power_info(card)
    average = power.get("average_socket_power", "N/A")
    return number_of(power["current_socket_power"] if average == "N/A" else average)


def _temperature_c(smi: Any, card: Any) -> float:
    kind, now = smi.AmdSmiTemperatureType.JUNCTION, smi.AmdSmiTemperatureMetric.CURRENT
    return number_of(smi.amdsmi_get_temp_metric(card, kind, now))


def _energy_j(smi: Any, card: Any) -> float:
    counter = smi.amdsmi_get_energy_count(card)
    count = counter.get("energy_accumulator", counter.get("power", "N/A"))
    return number_of(count) * number_of(counter["counter_resolution"]) / 1e6  # microjoules


_READERS = {
    "gpu_utilization_percent": lambda smi, card: number_of(
        smi.amdsmi_get_gpu_activity(card)["gfx_activity"]
    ),
    # amdsmi calls it MB and counts MiB, as torch reads it too
    "gpu_memory_used_mb": lambda smi, card: (
        number_of(smi.amdsmi_get_gpu_vram_usage(card)["vram_used"]) * 2**20 / 1e6
    ),
    "gpu_power_w": _power_w,
    "gpu_sm_clock_mhz": lambda smi, card: amd_clock_mhz(smi, card, "clk", "cur_clk"),
    "gpu_temperature_c": _temperature_c,
}


class AmdSource(Source):
    """Samples the device of a record's `uuid`; `smi` is the initialised module `amdsmi`.

    Raises `UnknownFactError` where amdsmi does not know the device.
    """

    name = "amdsmi"
    measures_device = True

    def __init__(self, smi: Any, uuid: str) -> None:
        super().__init__(
            dict.fromkeys(("throttle_share", "slowed_share", "foreign_processes"), _NOT_READ)
        )
        self._smi = smi
        self._card = amd_device(smi, uuid)
        self._gauges: dict[str, Gauge] = {
            name: partial(reader, smi, self._card) for name, reader in _READERS.items()
        }

    def read(self) -> Reading:
        """Read the energy counter first, as its instant matters most."""
        energy_j = None
        try:
            energy_j = _energy_j(self._smi, self._card)
        except Exception as error:
            self.missing["energy_j"] = reason_of(error)
        return Reading(self._read_gauges(self._gauges), energy_j)
