"""AMD's management library with devices that are not here."""

from types import SimpleNamespace

#: What each function answers, beside the energy.
_ANSWERS = {
    "gpu_driver_info": {"driver_version": "6.12.12"},
    "power_cap_info": {"power_cap": 750_000_000},
    "clock_info": {"clk": 1900, "max_clk": 2100},
    "power_info": {"average_socket_power": "N/A", "current_socket_power": 612},
    "gpu_activity": {"gfx_activity": 98},
    "gpu_vram_usage": {"vram_used": 1000},
}


class ScriptedSmi:
    """`devices` are handles by serial number; what is in `lacking` is answered with N/A."""

    AmdSmiException = RuntimeError
    AmdSmiClkType = SimpleNamespace(GFX="gfx")
    AmdSmiTemperatureType = SimpleNamespace(JUNCTION="junction")
    AmdSmiTemperatureMetric = SimpleNamespace(CURRENT="current")

    def __init__(self, devices, lacking=()):
        self.devices = devices
        self.lacking = set(lacking)
        self.energy = 1_000_000

    def _answer(self, handle, values):
        assert handle == "it"
        return {name: "N/A" if name in self.lacking else value for name, value in values.items()}

    def __getattr__(self, name):
        answers = _ANSWERS.get(name.removeprefix("amdsmi_get_"))
        if answers is None:
            raise AttributeError(name)
        kinds = ("gfx",) if "clock" in name else ()
        return lambda handle, *kind: self._answer(handle, answers if kind == kinds else {})

    def amdsmi_get_processor_handles(self):
        return list(self.devices.values())

    def amdsmi_get_gpu_asic_info(self, handle):
        serials = {device: serial for serial, device in self.devices.items()}
        return {"asic_serial": serials[handle].upper().replace("0X", "0x")}

    def amdsmi_get_temp_metric(self, handle, kind, metric):
        assert (kind, metric) == ("junction", "current")
        return self._answer(handle, {"temperature": 71})["temperature"]

    def amdsmi_get_energy_count(self, handle):
        counter = {"energy_accumulator": self.energy, "counter_resolution": 15.3}
        return self._answer(handle, counter)
