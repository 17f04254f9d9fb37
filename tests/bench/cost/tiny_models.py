"""Models small enough to count by hand, or awkward in one way each."""

from functools import partial
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


class OfRows(nn.Module):
    """`compute` takes a layer, by default linear, and the 48 numbers of each image as a row."""

    def __init__(self, compute, layer=None):
        super().__init__()
        self.layer = layer or nn.Linear(48, 10)
        self.compute = compute

    def forward(self, images):
        return self.compute(self.layer, images.flatten(1))


spectral = partial(OfRows, lambda linear, rows: linear(torch.fft.fft2(rows).abs()))
looks_at_values = partial(OfRows, lambda linear, rows: linear(rows) * (1 if rows.sum() > 0 else -1))


def scripted():
    return OfRows(lambda linear, rows: linear(rows), torch.jit.script(nn.Linear(48, 10)))


def flexible():
    def attend(linear, rows):
        rows = linear(rows)[None, None]
        return flex_attention(rows, rows, rows)[0, 0]

    return OfRows(attend)


def jagged():
    def nested(linear, rows):
        offsets = torch.tensor([0, 1, len(rows)])
        return linear(torch.nested.nested_tensor_from_jagged(rows, offsets=offsets)).values()

    return OfRows(nested)


def branching():
    def branch(linear, rows):
        return torch.cond(torch.tensor(True), linear, lambda x: linear(2 * x), (rows,))

    return OfRows(branch)


def complex_weights():
    layer = nn.ParameterDict({"weight": torch.randn(48, 10, dtype=torch.complex64)})
    return OfRows(lambda layer, rows: (rows.to(torch.complex64) @ layer["weight"]).abs(), layer)


def sparse_gradient():
    table = nn.Embedding(9, 10, sparse=True)
    return OfRows(lambda table, rows: table(rows[:, 0].long().clamp(0, 8)), table)


class AttentionByHand(nn.Module):
    """Of 3 numbers per pixel: the weights of 256 pixels to each other are by far the largest."""

    def __init__(self):
        super().__init__()
        self.project = nn.Linear(3, 3)

    def forward(self, images):
        pixels = self.project(images.flatten(2).transpose(1, 2))
        return (torch.softmax(pixels @ pixels.transpose(1, 2), -1) @ pixels).mean(1)


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


class Derived:
    """A loss of the derivatives of the model by its inputs, as `derive` has them."""

    sample = "sample"
    derive = staticmethod(torch.func.grad)

    def __init__(self):
        self.model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))

    def batch(self, size):
        return torch.rand(size, 2)

    def loss(self, output, batch):
        weights = dict(self.model.named_parameters())
        value = lambda one: torch.func.functional_call(self.model, weights, (one,)).sum()  # noqa: E731
        return output.mean() + self.derive(value)(batch).square().mean()


class Curved(Derived):
    @staticmethod
    def derive(value):
        return torch.func.vmap(torch.func.hessian(value))


class Taught(Derived):
    def loss(self, output, batch):
        with torch.inference_mode():
            labels = torch.einsum("ni,ji->nj", self.model[0](batch), torch.ones(3, 8))
        return (output - labels.clone()).square().mean()
