import pytest

from bench.doctor import Check, can_measure
from bench.doctor.check import ok
from bench.doctor.suite import run_checks


def test_what_is_not_ok_has_a_remedy():
    assert Check("perf", "warning", "not found", "install it").remedy == "install it"
    for status in ("warning", "missing"):
        with pytest.raises(ValueError, match=r"check perf: .* without a remedy"):
            Check("perf", status, "not found", None)


def test_a_machine_can_measure_unless_something_is_missing():
    fine = [ok("torch", "2.15"), Check("perf", "warning", "not found", "install it")]
    assert can_measure(fine)
    assert not can_measure([*fine, Check("torch", "missing", "not found", "install it")])


def test_a_group_that_fails_does_not_take_the_others_along():
    def broken():
        yield ok("first", "fine")
        raise ImportError("No module named 'mlflow'")

    checks = run_checks({"tracking": broken, "host": lambda: [ok("disk", "plenty")]})
    assert [check.name for check in checks] == ["tracking", "disk"]
    assert checks[0].status == "missing"
    assert checks[0].detail == "the check itself failed: ImportError: No module named 'mlflow'"
