"""The checks of a device that is met for the first time, on a processor as far as that can be."""

import json

import pytest
import samples

from bench.errors import UnsupportedError, UserError
from bench.records import CounterCheck
from bench.records.measurement import Removal
from bench.records.profile import CASTS
from campaigns import first_contact as contacts
from campaigns.first_contact import CHECKS, first_contact

ANSWERED = ("precisions", "profile")


def ask(monkeypatch, *names):
    """These checks alone; items taken out of a dictionary would come back in another order."""
    monkeypatch.setattr(contacts, "CHECKS", {name: CHECKS[name] for name in names})


@pytest.mark.long
def test_a_processor_answers_what_it_can_and_the_records_are_read(
    tmp_path, monkeypatch, mlproject_command
):
    ask(monkeypatch, *ANSWERED, "counters")
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


def check(share, counter="GPM", work="copy", quantity="bytes"):
    return CounterCheck.of(
        "no rights", counter=counter, work=work, quantity=quantity, known=100.0, took_s=2.0,
        counted=None if share is None else 100 * share,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("backend", "by_gpm", "by_tool", "passed"),
    [
        ("cuda", [check(0.98), check(1.04, quantity="flops")], [check(1.01, "ncu")], True),
        ("cuda", [check(0.94)], [check(1.01, "ncu")], False),
        ("cuda", [check(0.0)], [], False),
        ("cuda", [check(0.98)], [check(1.3, "ncu")], False),
        ("cuda", [check(None)], [], None),  # a GPU before Hopper, without rights
        ("cuda", [check(None)], [check(1.01, "ncu")], True),
        ("cpu", [], [check(0.2, "perf"), check(1.02, "perf", quantity="flops")], True),
        ("cpu", [], [check(1.2, "perf", quantity="flops")], False),
        ("cpu", [], [check(0.9, "perf")], None),  # misses alone judge nothing
    ],
)
def test_each_counter_is_held_against_known_work(
    tmp_path, monkeypatch, backend, by_gpm, by_tool, passed
):
    def by(tool, asked):
        assert (tool, asked) == ({"cuda": "ncu", "cpu": "perf"}[backend], backend)
        yield from by_tool
        if not by_tool:
            raise UserError("ERR_NVGPUCTRPERM: run it as root")

    roofs = samples.ceilings_record(counter_checks=tuple(by_gpm))
    monkeypatch.setattr(contacts, "measure_roofs", lambda *_, **__: roofs)
    monkeypatch.setattr(contacts, "count_known_work", by)
    ask(monkeypatch, "known work")
    (answer,) = first_contact(backend, tmp_path, 1.0)
    assert answer.passed is passed
    assert all(one.sentence in answer.seen for one in (*by_gpm, *by_tool))
    assert ("ERR_NVGPUCTRPERM" in answer.seen) is not bool(by_tool)


@pytest.mark.parametrize(
    ("removals", "passed"),
    [
        (
            [
                Removal.of(
                    "", what="host", steps=10, note="", with_s=(2.0,) * 4, without_s=(1.0,) * 4
                )
            ],
            True,
        ),
        ([Removal.of("no graph of this step", what="host")], None),
        ([], False),
    ],
)
def test_what_cannot_be_taken_out_has_not_failed(tmp_path, monkeypatch, removals, passed):
    record = samples.run_record().replaced(removals=tuple(removals))
    monkeypatch.setattr(contacts, "launch_measurement", lambda *_, **__: record)
    monkeypatch.setattr(contacts.Contact, "run", lambda *_, **__: samples.run_record())
    ask(monkeypatch, "without")
    (answer,) = first_contact("cpu", tmp_path, 1.0)
    assert answer.passed is passed
    assert ("no graph of this step" in answer.seen) is (passed is None)


@pytest.mark.parametrize(
    ("loss", "casts_s", "passed"),
    [(7.0, 0.1, True), (6.0, 0.1, False), (7.0, 0.0, False), (None, 0.1, None)],
)
def test_fp8_is_held_against_amp_where_the_device_has_it(
    tmp_path, monkeypatch, loss, casts_s, passed
):
    def run(_, precision, **step):
        ops = samples.op_profile(samples.op_time(CASTS, "forward", casts_s))
        last = loss if precision == "fp8" else 6.9
        return samples.run_record(measurement=samples.measurement(last_loss=last), ops=ops)

    def refuses(*_, **__):
        raise UnsupportedError("not on this device")

    ask(monkeypatch, "fp8")
    for how, answer in ((run, passed), (refuses, None)):
        monkeypatch.setattr(contacts.Contact, "run", how)
        assert next(first_contact("cuda", tmp_path, 1.0)).passed is answer
