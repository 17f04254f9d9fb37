"""Small batches on the CPU by the settings that a person gives."""

import torch

from bench.config import RunConfig
from bench.training.devices import open_device
from bench.training.inputs import Shard, open_batches
from bench.training.step import Fp32
from bench.training.workloads import workload_of
from bench.worker.step_setup import resolve

SMALL = {"backend": "cpu", "batch_size": 4, "image_size": 32, "threads": 1, "workers": 0}


def opened_batches(shard=Shard(), **settings):  # noqa: B008
    """Batches of `shard`."""
    config = RunConfig(**{**SMALL, **settings})
    device = open_device(config.backend)
    workload = workload_of(config)
    resolved = resolve(config, device, Fp32(), workload)
    return open_batches(config, resolved, workload, device.torch_device, shard)


def take(batches, count):
    return [batches.next() for _ in range(count)]


def sums(taken):
    """Each image by its sum, which differs among the generated ones."""
    return [round(image.sum().item()) for images, _ in taken for image in images]


def grey_levels(image, other):
    """How far two normalised images, or batches, are from each other in grey levels of 255."""
    return ((image - other) * torch.tensor((0.229, 0.224, 0.225)).view(3, 1, 1) * 255).abs()
