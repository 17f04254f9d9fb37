"""The plan of an acceptance, its time limit, and what it says of what did not fit."""

from itertools import product

import pytest
import samples
from fakes import ScriptedClock

from bench.records.journal import Event
from campaigns import acceptance


@pytest.mark.parametrize(
    ("gflops", "expected"),
    [
        ({"fp32": 200}, ("fp32",)),  # amp is fp32 there
        ({"fp32": 200, "bf16": 900}, ("fp32", "amp")),
        ({"fp32": 200, "fp16": 900}, ("fp32", "amp")),
        (
            {"fp32": 200, "tf32": 400, "bf16": 900, "fp16": 900},
            ("fp32", "tf32", "amp", "amp-fp16"),
        ),
        ({"fp32": 200, "bf16": 900, "fp16": 220}, ("fp32", "amp")),  # fp16 is emulated
        ({"fp32": 200, "bf16": 150, "fp16": 190}, ("fp32",)),  # both are
    ],
)
def test_every_arithmetic_of_the_device_once(gflops, expected):
    assert acceptance.precisions(roofs(gflops)) == expected


def roofs(gflops):
    """Roofs by precision."""
    found = (samples.ceiling(math_mode=one, peak_flops_per_s=1e9 * gflops[one]) for one in gflops)
    return samples.ceilings_record(ceilings=tuple(found))


@pytest.fixture
def machine(monkeypatch):
    """A machine whose ceilings take 40 s and whose every run takes 100 s."""
    clock = ScriptedClock()
    measured = []

    def ceilings(backend, folder, on_event):
        clock.pass_s(40.0)
        return roofs({"fp32": 200, "bf16": 900})

    def run(config, folder, on_event):
        measured.append(config)
        for _ in range(100):
            clock.pass_s(1.0)
            try:
                on_event(Event("tick", clock(), {}))
            except KeyboardInterrupt:
                return samples.failed_record("interrupted", "interrupted from outside", config)
        return samples.run_record(config)

    monkeypatch.setattr(acceptance, "launch_ceilings", ceilings)
    monkeypatch.setattr(acceptance, "launch_measurement", run)
    return clock, measured


def test_it_ends_in_time_and_names_what_did_not_fit(machine, tmp_path):
    clock, measured = machine
    begin_s = clock()
    done = acceptance.accept(
        "cpu", tmp_path, limit_s=480.0, announce=lambda line: None, clock=clock
    )
    assert clock() - begin_s <= 480.0
    assert len(done.runs) + len(done.not_measured) == 16
    assert [run.outcome for run in done.runs].count("interrupted") == 1
    assert done.runs[-1].outcome == "interrupted"
    assert measured[0].arch == "resnet18"
    assert {config.batch_size for config in measured} == {4}


def test_with_time_enough_everything_is_measured(machine, tmp_path):
    clock, measured = machine
    done = acceptance.accept(
        "cpu",
        tmp_path,
        limit_s=1e5,
        announce=lambda line: None,
        clock=clock,
        architectures=["resnet18", "vgg16"],
        batch_sizes=[8, 2],
    )
    assert done.not_measured == []
    found = [(config.batch_size, config.arch, config.precision) for config in measured]
    assert found == list(product((2, 8), ("resnet18", "vgg16"), ("fp32", "amp")))
