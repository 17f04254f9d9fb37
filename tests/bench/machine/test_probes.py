import os

import pytest

from bench.errors import Unknown
from bench.machine.probes import (
    UnknownFactError,
    output_of,
    probe,
    registry_text,
    text_of,
)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (UnknownFactError("nobody tells"), "nobody tells"),
        (ZeroDivisionError("division by zero\nat line 2"), "ZeroDivisionError: division by zero"),
        (KeyError(), "KeyError"),
    ],
)
def test_a_probe_that_raises_gives_its_reason(error, reason):
    def fails(name, *, twice):
        raise error

    assert probe(fails, "it", twice=True) == Unknown(reason)
    assert probe(max, 2, 3) == 3


def test_text_loses_the_device_trees_nul_and_an_unreadable_file_is_named(tmp_path):
    with pytest.raises(UnknownFactError, match="nothing-here: No such file"):
        text_of(tmp_path / "nothing-here")
    (tmp_path / "model").write_bytes(b"Raspberry Pi 5\0")
    assert text_of(tmp_path / "model") == "Raspberry Pi 5"


def test_an_absent_program_is_named_and_a_failing_programs_complaint_is_the_reason(program):
    with pytest.raises(UnknownFactError, match="no program no-such-program-anywhere here"):
        output_of("no-such-program-anywhere")
    program("grumble", "echo 'fatal: bad owner' >&2; echo more >&2; exit 128")
    with pytest.raises(UnknownFactError, match=r"^grumble: fatal: bad owner$"):
        output_of("grumble")
    assert output_of("grumble", accepted_codes=(0, 128)) == ""


def test_a_program_that_hangs_is_left(program):
    program("hang", "exec sleep 60")
    with pytest.raises(UnknownFactError, match=r"hang gave no answer in 0\.1 s"):
        output_of("hang", timeout_s=0.1)


def test_programs_answer_in_the_c_locale_and_without_unset_variables(program, monkeypatch):
    monkeypatch.setenv("GIT_DIR", "/elsewhere")
    program("show", 'echo "$LC_ALL ${GIT_DIR-unset}"')
    assert output_of("show") == "C /elsewhere"
    assert output_of("show", unset=("GIT_DIR",)) == "C unset"


@pytest.mark.skipif(os.name == "nt", reason="there is a registry")
def test_the_registry_is_windows_only():
    with pytest.raises(UnknownFactError, match="no Windows registry"):
        registry_text("HARDWARE", "name")
