"""What the line of a measurement says, from a scripted journal."""

from dataclasses import asdict

import pytest

from bench.config import TimeLimits
from bench.records.journal import Event
from commands.console.output import duration_text
from commands.console.progress import TimeLeft, WorkerProgress

LIMITS = TimeLimits(10, 100, max_seconds=45.0)


def test_the_time_left_is_known_from_the_first_iteration_on():
    left = TimeLeft(LIMITS, began_s=1000.0)
    assert left.seconds(1001.0) is None
    left.warmed(2.0)
    # Both reach their limits; the first iteration is in neither.
    assert left.seconds(1002.0) == pytest.approx(2.0 + 15.0 - 2.0 + 45.0)
    left.warmed(0.1)
    assert left.seconds(1002.1) == pytest.approx(0.0 + 10.0)  # ten of warm-up were to take 1 s
    left.measuring(LIMITS, began_s=1003.0)
    assert left.seconds(1007.0) == pytest.approx(6.0)
    assert left.seconds(1050.0) == 0.0


def test_a_duration_is_in_seconds_minutes_or_hours():
    spoken = [duration_text(seconds) for seconds in (45.0, 119.0, 150.1, 3599.0, 7500.0)]
    assert spoken == ["45 s", "119 s", "3 min", "1 h 0 min", "2 h 5 min"]


def test_a_slow_step_takes_its_least_iterations():
    left = TimeLeft(LIMITS, began_s=0.0)
    left.warmed(20.0)
    assert left.seconds(20.0) == pytest.approx(20.0 + 4 * 20.0)


def test_what_a_worker_has_to_say_is_a_line_and_a_rank_is_no_limit(capsys):
    facts = {**asdict(LIMITS), "rank": 0, "pid": 7}
    events = [
        ("notice", {"text": f"{LIMITS} [of one device]"}),
        *(("warmup_started", facts), ("warmup", {"seconds": 1.0}), ("window_started", facts)),
        *(("tick", {}), ("window_ended", {}), ("probe", {"probe": "matmul"})),
    ]
    with WorkerProgress("resnet18 amp") as progress:
        for at_s, (name, known) in enumerate(events):
            progress.on_event(Event(name, float(at_s), known))
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        f"resnet18 amp: {LIMITS} [of one device]",
        "resnet18 amp: about 54 s left",  # where no terminal shows a bar
    ]
