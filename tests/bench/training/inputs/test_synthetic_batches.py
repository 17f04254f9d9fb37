import torch


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
