"""Scaling efficiency by hand, and the run that a measurement on several devices is held against."""

from datetime import timedelta

import pytest
import samples

from analysis.runs.groups import on_one_device, scaling_efficiency
from bench.config import RunConfig

ONE = RunConfig(arch="resnet50", batch_size=8)
FOUR = RunConfig(arch="resnet50", batch_size=8, devices=2, nodes=2)


def one(**changes):
    config = changes.pop("config", ONE)
    return samples.run_record(config=config, record_id="one", **changes)


def many(images=8 * 4, **changes):
    # Every iteration of half a second, as `one` has it: 4 devices do 4 times the images at best.
    config = changes.pop("config", FOUR)
    known = {"measurement": samples.measurement(images=images), "record_id": "many"}
    return samples.run_record(config=config, **{**known, **changes})


def test_four_devices_that_do_four_times_the_work_are_perfect():
    assert scaling_efficiency(many(), one()) == pytest.approx(1.0)
    assert scaling_efficiency(many(images=24), one()) == pytest.approx(0.75)


def test_only_a_pair_can_be_compared():
    with pytest.raises(ValueError, match="one is not many on one device"):
        scaling_efficiency(many(), one(config=RunConfig(arch="resnet18", batch_size=8)))
    with pytest.raises(ValueError, match="is not"):
        scaling_efficiency(one(), one())
    with pytest.raises(ValueError, match="two measured windows"):
        scaling_efficiency(many(), one(measurement=None, outcome="oom"))


def card(uuid, name="H200", **changes):
    return samples.environment(
        device=samples.device_info(backend="cuda", name=name, uuid=uuid, **changes)
    )


def test_the_pair_is_the_same_configuration_on_a_device_of_the_same_kind():
    run = many(environment=card("GPU-0"))
    others = [
        one(environment=card("GPU-7", "L4")),
        one(environment=card("GPU-9", power_limit_w=500.0)),
        one(environment=card("GPU-0"), config=RunConfig(arch="resnet50", batch_size=16)),
        samples.failed_record(config=ONE, environment=card("GPU-0")),
    ]
    assert on_one_device(run, others) is None
    pair = one(environment=card("GPU-5"))  # the machine's other card does as well
    assert on_one_device(run, [*others, pair]) is pair


def test_the_same_repeat_goes_before_the_newest():
    run = many(config=FOUR.model_copy(update={"repeat": 2}))
    first = one()
    second = one(config=ONE.model_copy(update={"repeat": 2}))
    newest = one(created=samples.NOW + timedelta(days=1))
    assert on_one_device(run, [first, second, newest]) is second
    assert on_one_device(many(config=FOUR.model_copy(update={"repeat": 9})), [first, newest]) is (
        newest
    )


def test_a_run_on_one_device_is_held_against_none():
    assert on_one_device(one(), [one()]) is None
