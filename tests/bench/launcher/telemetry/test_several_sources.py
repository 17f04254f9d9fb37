"""Several devices as one source: sums where they add up, nothing where one cannot tell."""

from bench.launcher.telemetry import Reading, SeveralDevices, Source


class Card(Source):
    name = "nvml"
    measures_device = True

    def __init__(self, power_w, energy_j, reasons=frozenset(), processes=(), missing=None):
        super().__init__(missing)
        self.reading = Reading({"gpu_power_w": power_w}, energy_j, reasons)
        self.processes = processes

    def read(self):
        return self.reading

    def foreign_processes(self):
        return self.processes


def together(*cards):
    source = SeveralDevices()
    for rank, card in reversed(list(enumerate(cards))):  # whichever rank comes first
        source.join(rank, card)
    return source


def test_energy_adds_up_and_quantities_keep_apart():
    source = together(Card(100.0, 5.0), Card(200.0, 7.0, frozenset({"SwThermal"})))
    found = source.read()
    assert found.values == {"gpu_power_w": 100.0, "rank1_gpu_power_w": 200.0}
    assert found.energy_j == 12.0
    assert found.throttle_reasons == {"SwThermal"}
    assert (source.name, source.measures_device) == ("nvml", True)


def test_what_one_device_cannot_tell_all_together_cannot():
    blind = Card(1.0, None, None, None, {"energy_j": "no counter", "gpu_clock": "no clock"})
    source = together(Card(1.0, 5.0), blind)
    found = source.read()
    assert found.energy_j is None
    assert found.throttle_reasons is None
    assert source.foreign_processes() is None
    assert source.missing == {"energy_j": "no counter", "rank1_gpu_clock": "no clock"}


def test_foreign_processes_are_those_of_any_device():
    source = together(Card(1, 1, processes=("5 x", "7 y")), Card(1, 1, processes=("5 x",)))
    assert source.foreign_processes() == ("5 x", "7 y")
