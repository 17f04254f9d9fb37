"""Models that train calmly: what changes their losses is arithmetic, and not chaos."""

import torch


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
