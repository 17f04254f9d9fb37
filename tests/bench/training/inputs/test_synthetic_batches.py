import torch

from bench.config import RunConfig
from bench.training.devices import open_device
from bench.training.inputs import open_batches
from bench.training.precision import open_precision
from bench.training.workloads.images import OwnStep
from bench.worker.step_setup import resolve


class Nested:
    """A step whose batch has more than tensors in it."""

    model = torch.nn.Identity()

    def batch(self, n):
        return {"parts": [torch.ones(n), None], "name": "a", "count": n}


def test_the_same_random_tensors_every_time(opened):
    batches = opened(batch_size=64)
    images, labels = batches.next()
    assert (images.shape, images.dtype) == ((64, 3, 32, 32), torch.float32)
    assert abs(images.mean().item()) < 0.02
    assert abs(images.std().item() - 1) < 0.02
    assert labels.dtype == torch.int64
    assert 0 <= labels.min() < labels.max() < 1000
    assert labels.unique().numel() > 40
    again, labels_again = batches.next()
    assert images is again
    assert labels is labels_again


def test_the_seed_decides_and_the_layout_does_not(opened):
    first, planes, other = (
        opened(seed=seed, channels_last=layout).next()
        for seed, layout in ((0, "true"), (0, "false"), (1, "true"))
    )
    assert torch.equal(first[0], planes[0])
    assert torch.equal(first[1], planes[1])
    assert not torch.equal(first[0], other[0])
    assert first[0].is_contiguous(memory_format=torch.channels_last)
    assert planes[0].is_contiguous()


def test_a_users_batch_may_hold_more_than_tensors():
    config, device, workload = RunConfig(batch_size=3), open_device("cpu"), OwnStep("a:b", Nested())
    resolved = resolve(config, device, open_precision("fp32", device), workload)
    batch = open_batches(config, resolved, workload, device.torch_device).next()
    assert torch.equal(batch.pop("parts")[0], torch.ones(3))
    assert batch == {"name": "a", "count": 3}
