"""What is computed once for a user, and what has to be computed again."""

from dataclasses import replace

import pytest

from bench.cost import StepSpec, estimate, step_complexity
from bench.cost.estimate import cached_complexity
from bench.records.folders import cache_folder

SPEC = StepSpec("resnet18", batch_size=2, precision="fp32", image_size=32)
CACHE_BYTES = 2**20


@pytest.fixture
def computed(monkeypatch):
    asked = []

    def compute(spec, *, cache_bytes):
        asked.append((spec, cache_bytes))
        return step_complexity(spec, cache_bytes=cache_bytes)

    monkeypatch.setattr(estimate, "step_complexity", compute)
    return asked


def ask(spec=SPEC, cache_bytes=CACHE_BYTES):
    return cached_complexity(spec, cache_bytes=cache_bytes)


def kept():
    return list((cache_folder() / "complexity").glob("*"))


def test_the_same_question_is_answered_once(computed):
    first = ask()
    assert ask() == first == step_complexity(SPEC, cache_bytes=CACHE_BYTES)
    assert computed == [(SPEC, CACHE_BYTES)]


@pytest.mark.parametrize(
    ("spec", "cache_bytes"),
    [
        (replace(SPEC, batch_size=4), CACHE_BYTES),
        (SPEC, 1),
        (replace(SPEC, precision="amp"), CACHE_BYTES),
    ],
)
def test_another_question_is_another_answer(computed, spec, cache_bytes):
    ask()
    assert ask(spec, cache_bytes) == step_complexity(spec, cache_bytes=cache_bytes)
    assert len(computed) == 2


def test_other_code_and_other_versions_compute_again(computed, monkeypatch):
    ask()
    monkeypatch.setattr(estimate, "code_id", lambda: "another")
    ask()
    monkeypatch.setattr(estimate.metadata, "version", lambda name: "0.0")
    ask()
    assert len(computed) == 3


def test_a_users_own_model_is_computed_each_time(computed):
    for _ in range(2):
        ask(replace(SPEC, arch="crashing_models:small"))
    assert len(computed) == 2
    assert kept() == []


def test_a_damaged_file_is_computed_again_and_replaced(computed):
    first = ask()
    (file,) = kept()
    file.write_text('{"arch": "resnet18"}')
    assert ask() == first
    assert ask() == first
    assert len(computed) == 2


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(computed, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert ask() == ask()
    assert len(computed) == 2
