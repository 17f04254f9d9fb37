"""Models that go wrong in the ways that models do."""

import gc
import os
import signal
import sys
from functools import partial

import torch


class Small(torch.nn.Module):
    """Calls `does` at its forward pass number `at`."""

    def __init__(self, at=0, does=None):
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Conv2d(3, 4, 3, stride=4), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()
        )
        self.head = torch.nn.Linear(4, 1000)
        self.calls, self.at, self.does = 0, at, does

    def forward(self, images):
        self.calls += self.training  # it is asked once, in evaluation, for its number of classes
        if self.training and self.calls == self.at:
            self.does()
        return self.head(self.body(images))


def give_up(reason="the model had enough"):
    raise RuntimeError(reason)


def ask_for_too_much():
    """With the very message of torch's CPU allocator."""
    torch.empty(2**50)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def ask_for_the_collector():
    assert gc.isenabled()


small, leaves_cycles = Small, partial(Small, 2, ask_for_the_collector)
raises_later, out_of_memory = partial(Small, 5, give_up), partial(Small, 3, ask_for_too_much)
#: What comes after two iterations of warm-up, a window of six, and the step whose work is noted.
raises_when_explained, dies_when_explained, exits_when_explained = (
    partial(Small, 10, does) for does in (give_up, die, sys.exit)
)


def doubled_when_asked():
    """Another model under the same name, where the variable is set."""
    model = Small()
    if os.environ.get("CRASHING_MODELS_DOUBLED"):
        model.body = torch.nn.Sequential(model.body, torch.nn.ReLU())
    return model
