"""Several devices as one source: sums where they add up, nothing where one cannot tell."""

from bench.launcher.telemetry import Reading, Sampler, SeveralDevices, Source


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
    found = together(Card(100.0, 5.0), Card(200.0, 7.0, frozenset({"SwThermal"}))).read()
    assert found.values == {"gpu_power_w": 100.0, "rank1_gpu_power_w": 200.0}
    assert found.energy_j == 12.0
    assert found.throttle_reasons == {"SwThermal"}


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


def test_the_sampler_reads_them_as_the_device():
    clock = iter(range(100))
    sampler = Sampler(clock=lambda: float(next(clock)))
    source = together(Card(100.0, 5.0), Card(200.0, 7.0))
    sampler.add(source)
    for _ in range(4):
        sampler.sample_now()
    found = sampler.telemetry(1.5, 8.5)
    assert found.energy_j == 0.0
    assert {series.name for series in found.series} == {"gpu_power_w", "rank1_gpu_power_w"}
    assert {series.source for series in found.series} == {"nvml"}
