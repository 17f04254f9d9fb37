"""NVIDIA DALI for real on the CPU; of the GPU only what it is asked to do there."""

import sys
from itertools import combinations, product

import pytest
import samples
import torch
from opened_batches import grey_levels, sums, take
from PIL import Image
from test_against_torchvision import stock_by_class

from bench.config import RunConfig
from bench.errors import UserError
from bench.training.inputs import open_batches
from bench.training.inputs.base import Shard
from bench.training.workloads import find_workload

pytestmark = pytest.mark.usefixtures("dali")
MEAN_GREY_LEVELS = 0.5


def apart(image, other):
    """The mean difference in grey levels: half a pixel is rounded up here and to even there."""
    moved = (other.roll(by, (1, 2)) for by in product((-1, 0, 1), repeat=2))
    inner = (slice(None), slice(1, -1), slice(1, -1))
    return min(grey_levels(image, each)[inner].mean().item() for each in moved)


@pytest.mark.parametrize("size", [99, 64])
@pytest.mark.slow
def test_batches_are_torchvisions_to_a_pixel(opened, generated, size):
    batches = opened(data=str(generated), decoder="dali", batch_size=18, image_size=size)
    images, labels = batches.next()
    theirs = stock_by_class(generated, size)
    for image, label in zip(images, labels.tolist(), strict=True):
        assert min(apart(image, other) for other in theirs[label]) <= MEAN_GREY_LEVELS


def ramps(folder):
    """Two classes of one picture each, bright on the right."""
    ramp = Image.linear_gradient("L").rotate(90).convert("RGB")
    for name in ("a", "b"):
        (folder / name).mkdir()
        ramp.save(folder / name / "picture.jpg", quality=95)
    return {"data": str(folder), "decoder": "dali", "augment": True}


def test_augmentation_cuts_differently_in_each_epoch_and_mirrors_half(opened, tmp_path):
    seen = torch.cat([images for images, _ in take(opened(**ramps(tmp_path), batch_size=2), 16)])
    assert len(set(sums([(seen, None)]))) > 28
    rightwards = (seen[..., -1] > seen[..., 0]).all(dim=(1, 2))
    assert 8 < rightwards.sum() < 24


def test_the_seed_and_the_rank_draw_the_augmentation(opened, tmp_path):
    known = ramps(tmp_path)
    drawn = [
        sums(take(opened(shard, **known, batch_size=1, seed=seed), 4))
        for seed, shard in ((0, Shard()), (1, Shard()), (0, Shard(1, 2)))
    ]
    assert all(one != other for one, other in combinations(drawn, 2))


def test_orientation_is_left_as_stored(opened, tmp_path):
    picture = Image.new("RGB", (64, 64))
    picture.paste((255, 255, 255), (0, 0, 64, 32))
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        picture.save(tmp_path / name / "picture.jpg", exif=exif, quality=95)
    images, _ = opened(data=str(tmp_path), decoder="dali", batch_size=2).next()
    assert (images[:, :, :12] > 2).all()
    assert (images[:, :, 20:] < -1).all()


@pytest.mark.parametrize("damage", ["cut", "text", "gone"])
def test_a_file_that_cannot_be_decoded_is_the_users_to_mend(opened, photos, damage):
    batches = opened(data=str(photos), decoder="dali", batch_size=18)
    file = next(photos.glob("*/*.jpg"))
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:3000])
    elif damage == "text":
        file.write_text("not a picture at all\n" * 100)
    else:
        file.unlink()
    with pytest.raises(UserError, match=r"data=.*DALI cannot decode an image \(.+\): replace"):
        take(batches, 6)


def test_whatever_else_dali_says_is_no_fault_of_a_file(opened, generated, monkeypatch):
    batches = opened(data=str(generated), decoder="dali")

    class Exhausted:
        def __next__(self):
            raise RuntimeError("Error in MIXED operator: cudaErrorMemoryAllocation out of memory")

    monkeypatch.setattr(batches, "_batches", Exhausted())
    with pytest.raises(RuntimeError, match="out of memory"):
        batches.next()


def test_without_dali_the_remedy_is_told(opened, generated, monkeypatch):
    monkeypatch.setitem(sys.modules, "nvidia.dali.plugin.pytorch", None)
    with pytest.raises(UserError, match=r"DALI is not installed: pip install nvidia-dali"):
        opened(data=str(generated), decoder="dali")


@pytest.mark.parametrize("augment", [True, False])
def test_on_a_gpu_the_gpu_is_asked_to_decode_and_cut(generated, monkeypatch, augment):
    from nvidia.dali import Pipeline
    from nvidia.dali.plugin import pytorch

    asked = {}

    class Iterator:
        def __init__(self, pipelines, outputs, **options):
            asked["device"] = pipelines[0].device_id

    def set_outputs(self, *nodes):
        asked["nodes"] = [node.device for node in nodes]

    monkeypatch.setattr(pytorch, "DALIGenericIterator", Iterator)
    monkeypatch.setattr(Pipeline, "set_outputs", set_outputs)
    monkeypatch.setattr(
        "bench.training.inputs.dali.Normalise", lambda image, device, channels_last: None
    )
    config = RunConfig(data=str(generated), decoder="dali", augment=augment)
    open_batches(
        config, samples.resolved(workers=1), find_workload("resnet18"), torch.device("cuda", 1)
    )
    assert asked == {"device": 1, "nodes": ["gpu", "gpu"]}
