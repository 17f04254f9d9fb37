"""Models that go wrong in the ways that models do."""

import os
import signal

import torch


class _Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Conv2d(3, 4, 3, stride=4), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()
        )
        self.head = torch.nn.Linear(4, 1000)
        self.calls = 0

    def forward(self, images):
        self.calls += 1
        return self.head(self.body(images))


def small():
    return _Small()


class _RaisesLater(_Small):
    def forward(self, images):
        logits = super().forward(images)
        if self.calls == 5:
            raise RuntimeError("the model had enough")
        return logits


class _OutOfMemory(_Small):
    def forward(self, images):
        if self.calls == 3:
            # The very message of torch's CPU allocator.
            torch.empty(2**50)
        return super().forward(images)


class _KillsItself(_Small):
    def forward(self, images):
        if self.calls == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(images)


def raises_later():
    return _RaisesLater()


def out_of_memory():
    return _OutOfMemory()


def kills_itself():
    return _KillsItself()


def doubled_when_asked():
    """Another model under the same name, for whoever sets the variable."""
    model = _Small()
    if os.environ.get("CRASHING_MODELS_DOUBLED"):
        model.body = torch.nn.Sequential(model.body, torch.nn.ReLU())
    return model
