"""The checks of a device that is met for the first time, on a processor as far as that can be."""

import json

import pytest

from campaigns.first_contact import CHECKS, first_contact

ANSWERED = ("precisions", "profile")


@pytest.mark.long
def test_a_processor_answers_what_it_can_and_the_records_are_read(
    tmp_path, monkeypatch, mlproject_command
):
    for name in CHECKS.keys() - {*ANSWERED, "counters"}:
        monkeypatch.delitem(CHECKS, name)
    answers = {one.check: one for one in first_contact("cpu", tmp_path, 9.0)}
    assert {name: one.passed for name, one in answers.items()} == {
        **dict.fromkeys(ANSWERED, True),
        "counters": None,
    }
    assert "NVIDIA" in answers["counters"].seen
    code, printed, _ = mlproject_command("report", "--records", tmp_path, "--no-log")
    assert code == 0
    assert "resnet18" in printed


def test_what_raises_has_failed_and_what_there_is_no_time_for_is_not_answered(
    tmp_path, monkeypatch, capsys, mlproject_command
):
    def broken(contact):
        raise ValueError("no")

    monkeypatch.setitem(CHECKS, "roofs", ("a clean verdict", broken))
    answer = next(first_contact("cpu", tmp_path, 9.0))
    assert str(answer) == "FAIL  roofs: expected a clean verdict; ValueError: no"
    code, printed, _ = mlproject_command(
        "doctor", "--measure", "--minutes", "0", "--backend", "cpu", "--format", "json"
    )
    assert code == 0
    rows = json.loads(printed)
    assert [row["check"] for row in rows] == list(CHECKS)
    assert {row["passed"] for row in rows} == {None}
    assert mlproject_command("doctor", "--minutes", "1")[0] == 2
