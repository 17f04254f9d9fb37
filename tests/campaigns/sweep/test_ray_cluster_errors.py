"""What a user gets wrong about a cluster, each in one line."""

import sys

import pytest
from servers import free_port

import mlproject


@pytest.fixture
def matrix(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text("blocks:\n  - batch_size: 2\n")
    return "tiny.yaml"


def refusal(capsys, *arguments):
    assert mlproject.main(["sweep", *arguments]) == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    return line


def test_ray_that_is_not_installed_is_asked_for(matrix, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    line = refusal(capsys, matrix, "--executor", "ray")
    assert "pip install 'mlproject[ray]'" in line


def test_an_address_where_no_cluster_answers_is_named(matrix, capsys):
    address = f"127.0.0.1:{free_port()}"
    line = refusal(capsys, matrix, "--executor", "ray", "--address", address)
    assert address in line
    assert "ray start --head" in line


def test_an_address_needs_the_executor_that_uses_it(matrix, capsys):
    assert "--executor ray" in refusal(capsys, matrix, "--address", "10.0.0.1:6379")


@pytest.mark.cluster  # another's cluster on this machine would answer
def test_a_machine_without_a_cluster_is_told_so(matrix, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    line = refusal(capsys, matrix, "--executor", "ray")
    assert "address='auto'" in line
