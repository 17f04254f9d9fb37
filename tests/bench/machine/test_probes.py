import pytest

from bench.errors import Unknown
from bench.machine import UnknownFactError, output_of, probe, registry_text, text_of


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


def test_an_absent_file_or_program_is_named_and_a_failing_programs_complaint_is_the_reason(
    program, tmp_path, monkeypatch
):
    (tmp_path / "model").write_bytes(b"Raspberry Pi 5\0")
    assert text_of(tmp_path / "model") == "Raspberry Pi 5"
    program("grumble", "echo 'fatal: bad owner' >&2; echo more >&2; exit 128")
    program("hang", "exec sleep 60")
    program("show", 'echo "$LC_ALL ${GIT_DIR-unset}"')
    monkeypatch.setenv("GIT_DIR", "/elsewhere")
    assert output_of("show") == "C /elsewhere"
    assert output_of("show", unset=("GIT_DIR",)) == "C unset"
    assert output_of("grumble", accepted_codes=(0, 128)) == ""
    for read, reason in (
        (lambda: text_of(tmp_path / "nothing-here"), "nothing-here: No such file"),
        (lambda: output_of("no-such-program"), "no program no-such-program here"),
        (lambda: output_of("grumble"), "^grumble: fatal: bad owner$"),
        (lambda: output_of("hang", timeout_s=0.1), r"hang gave no answer in 0\.1 s"),
        (lambda: registry_text("SYSTEM", "no-such-name"), "registry"),  # not here, or not in it
    ):
        with pytest.raises(UnknownFactError, match=reason):
            read()
