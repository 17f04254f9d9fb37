"""Models small enough to count by hand, or awkward in one way each."""

from threading import Lock

import torch
from torch import nn
from torch.nn.attention.flex_attention import flex_attention
from torch.utils.checkpoint import checkpoint


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


class Spectral(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(48, 10)

    def forward(self, images):
        return self.linear(torch.fft.fft2(images).abs().flatten(1))


class Checkpointed(nn.Module):
    """Four layers, of which a checkpoint has two and keeps their input alone."""

    reentrant = None

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(48, 48, bias=False)
        self.layers = nn.Sequential(nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh())
        self.last = nn.Linear(48, 10, bias=False)

    def forward(self, images):
        hidden = self.first(images.flatten(1))
        if self.reentrant is None:
            return self.last(self.layers(hidden))
        return self.last(checkpoint(self.layers, hidden, use_reentrant=self.reentrant))


class Reentrant(Checkpointed):
    reentrant = True


class NonReentrant(Checkpointed):
    reentrant = False


class SparseBuffer(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("matrix", torch.eye(48).to_sparse())
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, images):
        return torch.sparse.mm(self.matrix, (images.flatten(1) * self.scale).t()).t()


class SparseRows(SparseBuffer):
    def __init__(self):
        super().__init__()
        self.register_buffer("matrix", torch.eye(48).to_sparse_csr())


class SparseGradient(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(9, 10, sparse=True)

    def forward(self, images):
        return self.table(images[:, 0, 0, 0].long().clamp(0, 8))


class Scripted(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.jit.script(nn.Linear(48, 10))

    def forward(self, images):
        return self.linear(images.flatten(1))


class Flexible(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(48, 10)

    def forward(self, images):
        rows = self.linear(images.flatten(1))[None, None]
        return flex_attention(rows, rows, rows)[0, 0]


class Jagged(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(48, 10)

    def forward(self, images):
        offsets = torch.tensor([0, 1, len(images)])
        rows = torch.nested.nested_tensor_from_jagged(images.flatten(1), offsets=offsets)
        return self.linear(rows).values()


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(48, 10)

    def forward(self, images):
        rows = images.flatten(1)
        return torch.cond(torch.tensor(True), self.linear, lambda x: self.linear(2 * x), (rows,))


class ComplexWeights(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(48, 10, dtype=torch.complex64))

    def forward(self, images):
        return (images.flatten(1).to(torch.complex64) @ self.weight).abs()


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
