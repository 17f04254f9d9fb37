"""How many devices a machine has, and what is said where there are too few."""

import pytest
import torch
from refusals import refusal

from bench.errors import UnsupportedError
from bench.training.devices import open_device


@pytest.fixture(autouse=True)
def _rich_machine(monkeypatch):
    """A machine with four cards and an Apple GPU."""
    current = [0]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current[0])
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: current.__setitem__(0, index))
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_90"])
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (9, 0))
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)


def test_processes_share_a_processor_and_take_the_card_of_their_number():
    assert open_device("cpu", local_rank=5, devices=64).backend == "cpu"
    assert open_device("auto", devices=4).torch_device == torch.device("cuda", 0)
    assert open_device("cuda", local_rank=3, devices=4).torch_device == torch.device("cuda", 3)


@pytest.mark.parametrize(
    ("backend", "message"),
    [
        ("cuda", "devices=5: torch finds 4 cuda devices on this machine; use devices=4"),
        ("mps", "devices=5: torch finds 1 mps device on this machine; use devices=1"),
    ],
)
def test_more_devices_than_the_machine_has_are_refused_with_their_number(backend, message):
    assert refusal(open_device, backend, devices=5, error=UnsupportedError) == message
