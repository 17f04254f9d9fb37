"""The probe of communication, with a team and steps that only take notes."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from bench.config import RunConfig
from bench.records import Job
from bench.records.folders import RecordFolder
from bench.worker.ranks import RankMeasurement


class NotingTeam:
    def __init__(self):
        self.notes = []
        self.local = False

    def barrier(self):
        self.notes.append("barrier")

    @contextmanager
    def no_gradient_sync(self):
        self.local = True
        yield
        self.local = False

    def gather(self, times_s):
        """Another rank took a second longer in its first step and no time in the others."""
        self.mine = times_s
        return [times_s, [times_s[0] + 1.0, *[0.0] * (len(times_s) - 1)]]


@pytest.mark.parametrize("local", [False, True])
def test_steps_begin_together_and_count_as_long_as_the_slowest_takes(tmp_path, local):
    team = NotingTeam()

    def step():
        team.notes.append("local step" if team.local else "whole step")

    device = SimpleNamespace(synchronize=lambda: team.notes.append("idle"))
    folder = RecordFolder.create(tmp_path)
    folder.write(folder.config, Job(config=RunConfig(backend="cpu", devices=2)))
    measurement = RankMeasurement(folder, None, team)
    found = measurement._probe(SimpleNamespace(step=step, device=device), 3, local=local)
    name = "local step" if local else "whole step"
    assert team.notes == ["barrier", name, "idle"] * 4  # the first does not count
    assert found == (team.mine[0] + 1.0, *team.mine[1:])
    assert len(found) == 3
