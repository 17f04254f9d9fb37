"""Models small enough to count by hand, or awkward in one way each."""

from threading import Lock

import torch
from torch import nn


def _logits(features):
    return nn.Sequential(*features, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def conv_relu_conv():
    return _logits([nn.Conv2d(3, 8, 1, bias=False), nn.ReLU(), nn.Conv2d(8, 4, 1, bias=False)])


def conv_norm_relu_conv():
    return _logits(
        [
            nn.Conv2d(3, 8, 1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(inplace=True),
            nn.Conv2d(8, 4, 1, bias=False),
        ]
    )


def biased_conv():
    return _logits([nn.Conv2d(3, 8, 1)])


def frozen_stem():
    model = conv_norm_relu_conv()
    model[0].requires_grad_(False)
    model[1].requires_grad_(False)
    return model


def tied():
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 48))
    model[3].weight = model[1].weight
    return model


def other_norms():
    return _logits(
        [
            nn.ConvTranspose2d(3, 8, 2, stride=2, groups=1),
            nn.GroupNorm(2, 8),
            nn.InstanceNorm2d(8, affine=True),
            nn.BatchNorm2d(8, affine=False),
        ]
    )


class Einsum(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(48, 10))

    def forward(self, images):
        return torch.einsum("bi,ij->bj", images.flatten(1), self.weight)


class AttentionByHand(nn.Module):
    """Of 3 numbers per pixel: the weights of 256 pixels to each other are by far the largest."""

    def __init__(self):
        super().__init__()
        self.project = nn.Linear(3, 3)

    def forward(self, images):
        pixels = self.project(images.flatten(2).transpose(1, 2))
        return (torch.softmax(pixels @ pixels.transpose(1, 2), -1) @ pixels).mean(1)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.LSTM(12, 8, batch_first=True)

    def forward(self, images):
        return self.cell(images.permute(0, 2, 1, 3).flatten(2))[0][:, -1]


class LooksAtValues(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(48, 10)

    def forward(self, images):
        logits = self.linear(images.flatten(1))
        return logits if logits.sum() > 0 else -logits


class DrawsItself:
    """A training step whose batches are of a generator of its own."""

    def __init__(self):
        self.model = nn.Linear(4, 2)
        self.generator = torch.Generator().manual_seed(1)

    def batch(self, n):
        return torch.rand(n, 4, generator=self.generator, device="cpu")

    def loss(self, output, batch):
        return output.mean()


class HoldsALock(DrawsItself):
    def __init__(self):
        super().__init__()
        self.lock = Lock()
