"""This machine before a sweep: at rest, and its roofs known; and a sweep's time limit."""

import math
from types import SimpleNamespace

import pytest
import samples
from fakes import ScriptedClock

from bench.config import RunConfig
from bench.launcher.telemetry import Reading, Source
from campaigns import local
from campaigns.local import Settler
from campaigns.plan import Plan, SweepOrder, SweepWatch


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


# Roofs before a sweep: measured once, and they decide on precisions; and a sweep's time limit


def roofs(gflops):
    """Roofs by precision."""
    found = (samples.ceiling(math_mode=one, peak_flops_per_s=1e9 * gflops[one]) for one in gflops)
    return samples.ceilings_record(ceilings=tuple(found))


@pytest.mark.parametrize(
    ("gflops", "expected"),
    [
        ({"fp32": 200}, ("fp32",)),  # amp is fp32 there
        ({"fp32": 200, "bf16": 900}, ("fp32", "amp", "amp-bf16")),
        ({"fp32": 200, "fp16": 900}, ("fp32", "amp", "amp-fp16")),
        (
            {"fp32": 200, "tf32": 400, "bf16": 900, "fp16": 900},
            ("fp32", "tf32", "amp", "amp-bf16", "amp-fp16"),
        ),
        ({"fp32": 200, "bf16": 900, "fp16": 220}, ("fp32", "amp", "amp-bf16")),  # fp16 is emulated
        ({"fp32": 200, "bf16": 150, "fp16": 190}, ("fp32",)),  # both are
        ({"fp32": 200, "bf16": 900, "fp8": 1800}, ("fp32", "fp8", "amp", "amp-bf16")),
    ],
)
def test_only_the_arithmetic_that_the_device_has_is_planned(gflops, expected):
    record = roofs(gflops)
    assert local.precisions(record) == expected
    runs = [
        RunConfig(backend=backend, precision=precision)
        for precision in ("fp32", "tf32", "fp8", "amp-bf16", "amp-fp16")
        for backend in ("auto", "cpu")
    ]
    kept = planned(runs, record)
    assert kept == [run for run in runs if run.precision in expected]


def planned(runs, roofs):
    plan = Plan(tuple(runs), {}, ())
    return [*local.in_precisions(plan, {"cpu": roofs}, (samples.environment(),)).runs]


@pytest.mark.parametrize(
    ("gflops", "kept"),
    [
        ({"fp32": 200, "bf16": 900, "fp16": 900}, ["amp", "amp-fp16"]),
        ({"fp32": 200, "fp16": 900}, ["amp"]),
        ({"fp32": 200}, []),
    ],
)
def test_what_amp_is_is_not_planned_beside_it(gflops, kept):
    runs = [RunConfig(precision=precision) for precision in ("amp", "amp-bf16", "amp-fp16")]
    assert [run.precision for run in planned(runs, roofs(gflops))] == kept


def test_roofs_are_measured_where_none_are_known(monkeypatch, tmp_path):
    known, new = roofs({"fp32": 200}), roofs({"fp32": 100})
    monkeypatch.setattr(local, "find_ceilings", lambda _, name: {"cpu": known}.get(name))
    monkeypatch.setattr(local, "launch_ceilings", lambda *_: new)
    monkeypatch.setattr(local, "device_names", lambda backend: ())
    delivered = []
    found = local.measure_roofs(
        ["cpu", "cuda"], tmp_path, lambda _, record: delivered.append(record), print, print
    )
    assert found == {"cpu": known, "cuda": new}
    assert delivered == [new]


@pytest.mark.parametrize(
    ("limit_s", "states"),
    [
        (math.inf, ["measured", "measured", "measured"]),
        (150.0, ["measured", "left over", "left over"]),
        (-1.0, ["left over", "left over", "left over"]),
    ],
)
def test_what_does_not_fit_into_the_time_is_left_over(monkeypatch, tmp_path, limit_s, states):
    clock = ScriptedClock()

    def measure(config, folder, on_event, deadline_s):  # each takes 100 s
        end_s = clock() + 100
        clock.pass_s(min(100.0, deadline_s - clock() + 1))
        if clock() < end_s:
            return samples.failed_record("interrupted", "interrupted from outside", config)
        return samples.run_record(config)

    monkeypatch.setattr(local, "launch_measurement", measure)
    monkeypatch.setattr("campaigns.local.time", SimpleNamespace(perf_counter=clock))
    runs = tuple(RunConfig(backend="cpu", campaign="c", repeat=n) for n in (1, 2, 3))
    order = SweepOrder(Plan(runs, {}, ()), "c", tmp_path, False, 0.0, deadline_s=clock() + limit_s)
    delivered = []
    swept = local.LocalExecutor((samples.environment(),)).sweep(
        order, lambda _, record: delivered.append(record.outcome), SweepWatch()
    )
    turns = list(swept)
    assert [turn.state for turn in turns] == states
    assert {turn.reason for turn in turns if turn.state == "left over"} <= {"time was up"}
    assert delivered == ["ok", "ok", "ok"][: states.count("measured")] + ["interrupted"] * (
        limit_s == 150.0
    )


def test_ctrl_c_after_a_window_ends_the_sweep_and_keeps_the_run(monkeypatch, tmp_path):
    def measure(config, folder, on_event, deadline_s):
        folder.is_interrupted = True
        return samples.run_record(config)

    monkeypatch.setattr(local, "launch_measurement", measure)
    runs = tuple(RunConfig(backend="cpu", campaign="c", repeat=n) for n in (1, 2))
    order = SweepOrder(Plan(runs, {}, ()), "c", tmp_path, False, 0.0, deadline_s=math.inf)
    swept = local.LocalExecutor((samples.environment(),)).sweep(
        order, lambda folder, record: None, SweepWatch()
    )
    assert next(swept).outcome == "ok"
    with pytest.raises(KeyboardInterrupt):
        next(swept)
