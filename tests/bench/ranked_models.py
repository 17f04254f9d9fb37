"""Models that go wrong on rank 1 alone, in the ways that models do."""

import os
import signal

import torch
from crashing_models import _Small


class _OnRank1(_Small):
    """Calls `does` at the third call on rank 1."""

    def __init__(self, does):
        super().__init__()
        self.does = does

    def forward(self, images):
        logits = super().forward(images)
        if self.calls == 3 and os.environ["RANK"] == "1":
            self.does()
        return logits


def out_of_memory():
    # The very message of torch's CPU allocator.
    return _OnRank1(lambda: torch.empty(2**50))


def killed():
    return _OnRank1(lambda: os.kill(os.getpid(), signal.SIGKILL))


def raises():
    def does():
        raise RuntimeError("rank 1 had enough")

    return _OnRank1(does)


def never_starts():
    if os.environ["RANK"] == "1":
        raise ValueError("not here")
    return _Small()
