"""What is computed once for a user, and what has to be computed anew."""

import pytest

from bench.cost import remembered, step_complexity
from bench.cost.remembered import remembered_complexity
from bench.records.places import cache_folder

ASKED = {"arch": "resnet18", "batch_size": 2, "precision": "fp32", "image_size": 32}


@pytest.fixture
def computed(monkeypatch):
    asked = []

    def compute(**arguments):
        asked.append(arguments)
        return step_complexity(**arguments)

    monkeypatch.setattr(remembered, "step_complexity", compute)
    return asked


def kept():
    return list((cache_folder() / "complexity").glob("*"))


def test_the_same_question_is_answered_once(computed):
    first = remembered_complexity(**ASKED)
    assert remembered_complexity(**ASKED) == first == step_complexity(**ASKED)
    assert computed == [ASKED]


@pytest.mark.parametrize("change", [{"batch_size": 4}, {"cache_bytes": 1}, {"precision": "amp"}])
def test_another_question_is_another_answer(computed, change):
    remembered_complexity(**ASKED)
    assert remembered_complexity(**{**ASKED, **change}) == step_complexity(**{**ASKED, **change})
    assert len(computed) == 2


def test_other_code_and_other_versions_compute_anew(computed, monkeypatch):
    remembered_complexity(**ASKED)
    monkeypatch.setattr(remembered, "code_id", lambda: "another")
    remembered_complexity(**ASKED)
    monkeypatch.setattr(remembered.metadata, "version", lambda name: "0.0")
    remembered_complexity(**ASKED)
    assert len(computed) == 3


def test_a_model_of_the_users_own_is_computed_each_time(computed):
    for _ in range(2):
        remembered_complexity(**{**ASKED, "arch": "crashing_models:small"})
    assert len(computed) == 2
    assert kept() == []


def test_a_damaged_file_is_computed_anew_and_replaced(computed):
    first = remembered_complexity(**ASKED)
    (file,) = kept()
    file.write_text('{"arch": "resnet18"}')
    assert remembered_complexity(**ASKED) == first
    assert remembered_complexity(**ASKED) == first
    assert len(computed) == 2


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(computed, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert remembered_complexity(**ASKED) == remembered_complexity(**ASKED)
    assert len(computed) == 2
