"""What the line of a measurement says, from a scripted journal."""

from dataclasses import asdict

from bench.config import TimeLimits
from bench.records.journal import Event
from commands.console.output import duration_text
from commands.console.progress import WorkerProgress

LIMITS = TimeLimits(10, 100, max_seconds=45.0)


def test_a_duration_is_in_seconds_minutes_or_hours():
    spoken = [duration_text(seconds) for seconds in (45.0, 119.0, 150.1, 3599.0, 7500.0)]
    assert spoken == ["45 s", "119 s", "3 min", "1 h 0 min", "2 h 5 min"]


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
