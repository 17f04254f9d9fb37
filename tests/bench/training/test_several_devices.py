"""How many devices a machine has, and what is said where there are too few."""

import pytest
import torch

from bench.errors import UnsupportedError
from bench.training.devices import open_device
from bench.training.devices.mps import MpsDevice


def test_processes_may_share_a_processor():
    assert open_device("cpu", local_rank=5, devices=64).backend == "cpu"


def test_more_devices_than_the_machine_has_are_refused_with_their_number(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(UnsupportedError) as caught:
        open_device("cuda", local_rank=0, devices=4)
    assert str(caught.value) == (
        "devices=4: torch finds 2 cuda devices on this machine; use devices=2"
    )


def test_there_is_one_mps_device(monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    with pytest.raises(UnsupportedError, match=r"devices=2: torch finds 1 mps device on"):
        open_device("auto", devices=2) if not torch.cuda.is_available() else open_device(
            "mps", devices=2
        )
    assert MpsDevice.count() == 1


def test_a_rank_takes_the_card_of_its_number(monkeypatch):
    current = [0]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current[0])
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: current.__setitem__(0, index))
    assert open_device("cuda", devices=4).torch_device == torch.device("cuda", 0)
    assert open_device("cuda", local_rank=3, devices=4).torch_device == torch.device("cuda", 3)
