"""docs/tour.md, typed as it stands: its commands work in their order and print what it shows."""

import re
import shlex
from pathlib import Path

import pytest

TOUR = (Path(__file__).parents[1] / "docs" / "tour.md").read_text(encoding="utf-8")
STEPS = re.findall(r"```console\n\$ mlproject (.*)\n((?:.*\n)*?)```", TOUR)
#: So that it takes no ten minutes.
SMALL = ("--image-size", "32", "--max-seconds", "1")


@pytest.mark.long
@pytest.mark.usefixtures("embedded")
def test_the_tour_works_as_it_is_written(mlproject_command):
    assert [command.split()[0] for command, _ in STEPS].count("run") == 2
    for command, shown in STEPS:
        words = shlex.split(command.replace("--repeats 3", "--repeats 2"))
        small = SMALL if words[0] in ("run", "profile") else ()
        code, printed, errors = mlproject_command(*words, *small)
        # with so few iterations the second may be the slower one
        assert code in ((0, 1) if words[0] in ("compare", "report") else (0,)), (command, errors)
        facts = {line.split()[0] for line in f"{printed}{errors}".splitlines() if line.strip()}
        named = set(re.findall(r"^  ([a-z_]+) ", shown, re.MULTILINE)) - {"ended_early"}
        assert named <= facts, command
