"""Runs by columns: the same runs as one by one."""

import math
from datetime import datetime, timedelta, timezone

import numpy as np
import pytest

from tracking.reading import pages as run_columns
from tracking.reading.pages import RunColumns, TrackedRun

NOON = datetime(2026, 11, 23, 12, 0, 0, 123_000, tzinfo=timezone.utc)


def run(number, *, params=None, metrics=None, tags=None, **info):
    known = {
        "name": f"run {number}",
        "status": "FINISHED",
        "start_time": NOON + timedelta(seconds=number),
        "artifact_uri": f"file:///{number}",
    }
    return TrackedRun(
        f"r{number}", params=params or {}, metrics=metrics or {}, tags=tags or {}, **known | info
    )


MIXED = [
    run(1, params={"arch": "resnet18", "a.b": ""}, metrics={"speed": 1.5}, tags={"team": "vision"}),
    run(2),
    run(3, params={"arch": "vgg16"}, metrics={"loss": -math.inf, "speed": 0.0}, tags={"Ü\n": "ß"}),
    run(4, params={"arch": "resnet18"}, tags={"speed": "fast"}, status="RUNNING"),
]


@pytest.mark.parametrize("at_once", [1, 2, 3, 1000])
@pytest.mark.parametrize("count", [0, 1, 4])
def test_columns_hold_every_value_of_every_run(monkeypatch, count, at_once):
    monkeypatch.setattr(run_columns, "_AT_ONCE", at_once)
    found = RunColumns.of(iter(MIXED[:count]))
    assert list(found) == MIXED[:count]
    assert len(found) == count


def test_a_metric_that_is_nan_was_logged():
    [back] = RunColumns.of([run(1, metrics={"loss": math.nan})])
    assert math.isnan(back.metrics["loss"])


def test_columns_tell_what_each_run_has():
    found = RunColumns.of(MIXED)
    texts, which = found.distinct("params.arch")
    assert [texts[each] if each >= 0 else None for each in which] == [
        "resnet18", None, "vgg16", "resnet18",
    ]  # fmt: skip
    assert found.distinct("params.unknown")[1].tolist() == [-1] * 4
    np.testing.assert_array_equal(found.numbers("speed"), [1.5, np.nan, 0.0, np.nan])
    assert np.isnan(found.numbers("unknown")).all()
    assert found.has_text("status", "RUNNING").tolist() == [False, False, False, True]
    assert not found.has_text("status", "KILLED").any()
    assert found.plain("tags.team") == ["vision", None, None, None]
    assert sorted(found.tag_keys()) == ["speed", "team", "Ü\n"]
    assert found.start_times()[0] == np.datetime64("2026-11-23T12:00:01.123")


def test_parts_join_and_come_apart():
    found = RunColumns.joined(
        [RunColumns.of(MIXED[:1]), RunColumns.of([]), RunColumns.of(MIXED[1:])]
    )
    assert list(found) == MIXED
    assert list(found.only(found.of_ids({"r2", "r4", "other"}))) == [MIXED[1], MIXED[3]]
    assert list(RunColumns.joined([RunColumns.of([])])) == []
    only = found.only(found.of_ids({"r2"}))
    assert only.tag_keys() == []  # of runs that are gone


def test_newest_first():
    found = RunColumns.of([run(2, start_time=NOON), run(1, start_time=NOON), run(3)])
    assert found.newest_first().run_ids == ["r3", "r2", "r1"]
    assert found.newest_first(then_by_id=True).run_ids == ["r3", "r1", "r2"]
