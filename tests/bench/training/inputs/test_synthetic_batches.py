import pytest
import torch


def test_same_tensors_every_time(opened):
    batches = opened({"data": "synthetic"}, batch_size=8)
    images, labels = batches.next()
    again, labels_again = batches.next()
    assert images is again
    assert labels is labels_again
    assert batches.workers == 0


def test_random_and_of_the_right_kind(opened):
    images, labels = opened({"data": "synthetic"}, batch_size=64, image_size=32).next()
    assert images.shape == (64, 3, 32, 32)
    assert images.dtype == torch.float32
    assert abs(images.mean().item()) < 0.02
    assert abs(images.std().item() - 1) < 0.02
    assert labels.dtype == torch.int64
    assert 0 <= labels.min() < labels.max() < 1000
    assert labels.unique().numel() > 40


def test_seed_decides(opened):
    a, b, c = (opened({"data": "synthetic", "seed": seed}).next() for seed in (0, 0, 1))
    assert torch.equal(a[0], b[0])
    assert torch.equal(a[1], b[1])
    assert not torch.equal(a[0], c[0])


@pytest.mark.parametrize("channels_last", [True, False])
def test_layout(opened, channels_last):
    images, _ = opened({"data": "synthetic"}, channels_last=channels_last).next()
    assert images.is_contiguous(memory_format=torch.channels_last) == channels_last
    assert images.is_contiguous() != channels_last


def test_torchs_own_generator_is_left_alone(opened):
    before = torch.get_rng_state()
    opened({"data": "synthetic"})
    assert torch.equal(torch.get_rng_state(), before)
