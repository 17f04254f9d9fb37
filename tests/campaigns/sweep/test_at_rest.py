"""The pause before a run: until the device is idle and as cool as it was at rest."""

import pytest
from fakes import ScriptedClock

from bench.launcher.telemetry import Reading, Source
from campaigns.local import Settler


class ScriptedSource(Source):
    """Readings in order, the last one for ever."""

    def __init__(self, *values):
        super().__init__()
        self._values = list(values)

    def read(self):
        return Reading(self._values.pop(0) if len(self._values) > 1 else self._values[0])


def settled(*values, limit_s=100.0, **at_rest):
    clock = ScriptedClock(0.0)
    settler = Settler([ScriptedSource(*values)], clock, clock.pass_s, **at_rest)
    return settler.settle(limit_s), clock.now_s


IDLE = {"cpu_utilization_percent": 1.0, "gpu_temperature_c": 40.0}
BUSY = IDLE | {"cpu_utilization_percent": 80.0}
HOT = IDLE | {"gpu_temperature_c": 60.0}
WARM = IDLE | {"gpu_temperature_c": 44.0}


@pytest.mark.parametrize("values", [IDLE, {}])  # what a device does not report is not waited for
def test_a_quiet_device_is_believed_after_three_readings(values):
    assert settled(values) == (True, 2.0)


@pytest.mark.parametrize("amiss", [BUSY, HOT])
def test_waits_until_it_is_quiet_for_long_enough(amiss):
    assert settled(IDLE, amiss, amiss, IDLE, amiss, WARM) == (True, 6.0)


@pytest.mark.parametrize("values", [(IDLE, BUSY), (IDLE, HOT)])
def test_gives_up_in_time(values):
    assert settled(*values, limit_s=10.0) == (False, 10.0)


def test_what_is_hot_from_the_beginning_cools_to_where_it_was_before_the_sweep():
    before_the_sweep = {"gpu_temperature_c": 40.0}
    assert settled(HOT, limit_s=10.0, at_rest_c=before_the_sweep) == (False, 10.0)
