"""Models that train calmly: what changes their losses is arithmetic, and not chaos."""

import torch

from bench.training.workloads import ImageInput, classifier, workload_of
from bench.worker.step_setup import resolve

#: What a step of images asks of its workload; the model and the batch are given to the step.
CLASSIFIER = classifier(ImageInput(32, 10), torch.nn.Identity)


def resolved(config, device, precision):
    """What `config`'s own workload becomes on `device`."""
    return resolve(config, device, precision, workload_of(config))


def batch_normed():
    """Convolutions, plain and strided depthwise, with batch norm, as in what is measured."""
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, stride=2, bias=False),
        torch.nn.BatchNorm2d(16),
        torch.nn.ReLU6(inplace=True),
        torch.nn.Conv2d(16, 32, 3, stride=2, groups=16, bias=False),
        torch.nn.BatchNorm2d(32),
        torch.nn.ReLU6(inplace=True),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(32, 1000),
    )


def linear():
    """The least that learns."""
    return torch.nn.Sequential(
        torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten(), torch.nn.Linear(48, 1000)
    )


def two_linear():
    """The first has sizes for fp8, the second has not."""
    layers = torch.nn.Linear(48, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1000)
    return torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten(), *layers)


def ten_classes():
    """Always with the same weights."""
    torch.manual_seed(3)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(32, 10),
    )


def batch_of_ten_classes(seed=0, images=8):
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(images, 3, 16, 16, generator=generator),
        torch.randint(0, 10, (images,), generator=generator),
    )
