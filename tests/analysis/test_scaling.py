"""Scaling efficiency by hand, and the run that a measurement on several devices is held against."""

from datetime import timedelta

import factories as make
import pytest

from analysis.runs.groups import on_one_device, scaling_efficiency

FOUR = {"devices": 2, "nodes": 2}


def one(**changes):
    return make.run_record("one", **changes)


def many(images=40, **changes):
    """Every iteration of a second, as `one` has it: 4 devices do 4 times the images at best."""
    known = {"settings": FOUR, "measurement": make.measurement(images=images)}
    return make.run_record("many", **{**known, **changes})


def test_four_devices_that_do_four_times_the_work_are_perfect():
    assert scaling_efficiency(many(), one()) == pytest.approx(1.0)
    assert scaling_efficiency(many(images=30), one()) == pytest.approx(0.75)


def test_only_a_pair_can_be_compared():
    with pytest.raises(ValueError, match="one is not many on one device"):
        scaling_efficiency(many(), one(settings={"arch": "vgg16"}))
    with pytest.raises(ValueError, match="is not"):
        scaling_efficiency(one(), one())
    with pytest.raises(ValueError, match="two measured windows"):
        scaling_efficiency(many(), one(measurement=None, outcome="oom"))


def card(uuid, name="H200", **changes):
    return make.environment(device=make.gpu(name=name, uuid=uuid, **changes))


def test_the_pair_is_the_same_configuration_on_a_device_of_the_same_kind():
    run = many(environment=card("GPU-0"))
    others = [
        one(environment=card("GPU-7", "L4")),
        one(environment=card("GPU-9", power_limit_w=500.0)),
        one(environment=card("GPU-0"), batch=16),
        make.failed_record(environment=card("GPU-0")),
    ]
    assert on_one_device(run, others) is None
    pair = one(environment=card("GPU-5"))  # the machine's other card does as well
    assert on_one_device(run, [*others, pair]) is pair


def test_the_same_repeat_goes_before_the_newest():
    run = many(settings={**FOUR, "repeat": 2})
    first, second = one(), one(settings={"repeat": 2})
    newest = one(created=make.NOON + timedelta(days=1))
    assert on_one_device(run, [first, second, newest]) is second
    assert on_one_device(many(settings={**FOUR, "repeat": 9}), [first, newest]) is newest
    assert on_one_device(one(), [one()]) is None
