"""Models whose code does more than compute: it sets torch's switches, or has unusual weights."""

import torch
from torch import nn


class Head(nn.Module):
    """Calls `does` in its forward pass, and makes ten logits of an image."""

    def __init__(self, body=None, does=lambda: None):
        super().__init__()
        self.body = body or nn.Identity()
        self.head = nn.Linear(8, 10)
        self.does = does

    def forward(self, images):
        if self.training:
            self.does()
        return self.head(self.body(images.flatten(1)[:, :8]))


def set_switches():
    """Set what many training scripts set, and what some do."""
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.fp32_precision = "tf32"
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    torch.set_num_threads(1 if torch.get_num_threads() > 1 else 2)


class Step:
    """A user's own, whose batches have torch's default type."""

    def __init__(self):
        self.model = Head()

    def batch(self, samples):
        return torch.ones(samples, 8)

    def loss(self, output, batch):
        return output.square().mean()


class Typed(Step):
    """Its weights have a type of their own, and so have its batches."""

    def __init__(self, dtype):
        super().__init__()
        self.model, self.dtype = nn.Linear(8, 10).to(dtype), dtype

    def batch(self, samples):
        return torch.ones(samples, 8, dtype=self.dtype)


def double():
    return Typed(torch.float64)


def half():
    return Typed(torch.bfloat16)


def sets_switches():
    step = Step()
    set_switches()
    torch.set_default_dtype(torch.float64)
    return step


def sets_switches_in_its_step():
    return Head(does=set_switches)


class SetsBack(nn.Module):
    """In the flags of torch that leave TF32 on unless told otherwise."""

    def __init__(self):
        super().__init__()
        self.head = Head()

    def forward(self, images):
        with torch.backends.cudnn.flags(enabled=True, benchmark=True, deterministic=True):
            return self.head(images)


class Volume(nn.Module):
    """A convolution in three dimensions after one in two."""

    def __init__(self):
        super().__init__()
        self.flat, self.deep = nn.Conv2d(3, 4, 3), nn.Conv3d(4, 10, 1)
        Volume.newest = self

    def forward(self, images):
        return self.deep(self.flat(images).unsqueeze(2)).mean((2, 3, 4))


class Spectrum(nn.Module):
    """Multiplies by complex weights."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8, dtype=torch.complex64))

    def forward(self, values):
        return torch.fft.ifft(torch.fft.fft(values) * self.weight).real


class Table(nn.Module):
    """Looks rows up whose gradient is sparse."""

    def __init__(self):
        super().__init__()
        self.rows = nn.Embedding(4, 8, sparse=True)

    def forward(self, values):
        return values + self.rows((values[:, 0] > 0).long())


def volume():
    return Volume()


def spectrum():
    return Head(Spectrum())


def table():
    return Head(Table())
