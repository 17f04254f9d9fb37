import os
import shutil
import signal
import threading
from collections import Counter

import psutil
import pytest
import torch

from bench.errors import UserError
from bench.training.inputs.image_folder import DecodedImages, decode_rgb
from bench.training.inputs.loader import Draw


def take(batches, count):
    return [batches.next() for _ in range(count)]


@pytest.fixture
def loaders():
    """Asks which loader processes run; what other tests have started is none of them."""
    strangers = set(psutil.Process().children())

    def running():
        return [
            process
            for process in psutil.Process().children()
            if process not in strangers
            and process.status() != psutil.STATUS_ZOMBIE
            and "resource_tracker" not in " ".join(process.cmdline())
        ]

    return running


def test_full_batches_in_the_asked_layout(opened, generated, decoder):
    for channels_last in (True, False):
        config = {"data": str(generated), "decoder": decoder}
        workers = int(decoder == "dali")
        batches = opened(config, batch_size=5, workers=workers, channels_last=channels_last)
        for images, labels in take(batches, 4):  # an epoch has three
            assert images.shape == (5, 3, 32, 32)
            assert images.dtype == torch.float32
            assert images.is_contiguous(memory_format=torch.channels_last) == channels_last
            assert labels.shape == (5,)
            assert labels.dtype == torch.int64


@pytest.mark.parametrize(("workers", "persistent"), [(0, True), (1, True), (1, False)])
def test_every_epoch_has_every_image_once_in_a_new_order(opened, generated, workers, persistent):
    config = {"data": str(generated), "persistent_workers": persistent}
    batches = opened(config, batch_size=9, workers=workers)
    epochs = [take(batches, 2) for _ in range(3)]
    orders = []
    for epoch in epochs:
        labels = torch.cat([labels for _, labels in epoch])
        assert Counter(labels.tolist()) == {0: 6, 1: 6, 2: 6}
        orders.append([round(image.sum().item(), 2) for images, _ in epoch for image in images])
    assert len(set(orders[0])) == 18
    assert {frozenset(order) for order in orders} == {frozenset(orders[0])}
    assert len({tuple(order) for order in orders}) == 3


def test_what_would_not_fill_a_batch_is_left_out_of_the_epoch(opened, generated):
    batches = opened({"data": str(generated), "persistent_workers": False}, batch_size=8, workers=1)
    sums = [image.sum().item() for images, _ in take(batches, 4) for image in images]
    assert [len(set(sums[:16])), len(set(sums[16:]))] == [16, 16]


def test_workers_change_nothing_and_the_seed_everything(opened, generated):
    def drawn(seed, workers, persistent=True, threads=1):
        config = {"data": str(generated), "augment": True, "seed": seed}
        config["persistent_workers"] = persistent
        batches = opened(config, workers=workers, threads=threads)
        return torch.cat([images for images, _ in take(batches, 6)])

    first = drawn(0, 0)
    assert torch.equal(first, drawn(0, 0, threads=3))
    assert torch.equal(first, drawn(0, 2))
    assert torch.equal(first, drawn(0, 1, persistent=False))
    assert not torch.equal(first, drawn(1, 0))


def test_without_loader_processes_the_threads_of_the_step_decode(opened, generated, monkeypatch):
    meeting = threading.Barrier(2)

    def decode(file):
        meeting.wait(timeout=60)  # with fewer than two threads nobody comes
        return decode_rgb(file)

    monkeypatch.setattr("bench.training.inputs.image_folder.decode_rgb", decode)
    assert len(take(opened({"data": str(generated)}, workers=0, threads=2), 2)) == 2


def test_augmentation_differs_from_draw_to_draw(generated):
    images = DecodedImages(generated, 64, augment=True)
    seen = [images[Draw(0, seed)][0] for seed in (1, 1, 2)]
    assert torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[0], seen[2])
    plain = DecodedImages(generated, 64, augment=False)
    assert torch.equal(plain[Draw(0, 1)][0], plain[Draw(0, 2)][0])


def test_torchs_own_generator_is_left_alone(opened, generated):
    before = torch.get_rng_state()
    take(opened({"data": str(generated), "augment": True}), 3)
    take(opened({"data": str(generated), "augment": True}, workers=1), 3)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(("workers", "damage"), [(0, "cut off"), (2, "cut off"), (0, "deleted")])
def test_damaged_or_deleted_image_is_named(opened, photos, workers, damage):
    file = photos / "class_001" / "00004.jpg"
    batches = opened({"data": str(photos)}, workers=workers, batch_size=18)
    take(batches, 1)
    if damage == "deleted":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:2000])
    with pytest.raises(UserError) as error:
        take(batches, 9)
    assert "\n" not in str(error.value)
    assert f"{str(file)!r} cannot be decoded" in str(error.value)
    assert "replace or delete it" in str(error.value)


def test_too_few_images_for_a_batch(opened, generated):
    with pytest.raises(UserError) as error:
        opened({"data": str(generated)}, batch_size=19)
    assert "18 images do not fill a batch of 19: give batch_size=18" in str(error.value)
    images, _ = opened({"data": str(generated)}, batch_size=18).next()
    assert len(images) == 18


def test_folder_that_is_none(opened, tmp_path):
    with pytest.raises(UserError, match="no class sub-folders"):
        opened({"data": str(tmp_path)})


def test_more_classes_than_the_models_tell_apart(opened, generated, tmp_path):
    def add_class(number):
        (tmp_path / f"{number:04d}").mkdir()
        (tmp_path / f"{number:04d}" / "a.jpg").hardlink_to(image)

    image = tmp_path / "a.jpg"
    shutil.copy(next(generated.glob("*/*.jpg")), image)
    for number in range(1000):
        add_class(number)
    opened({"data": str(tmp_path)})
    add_class(1000)
    with pytest.raises(UserError, match="1001 classes: give a folder of at most 1000"):
        opened({"data": str(tmp_path)})


def test_close_ends_the_processes(opened, generated, loaders):
    for persistent in (True, False):
        config = {"data": str(generated), "persistent_workers": persistent}
        batches = opened(config, workers=1)
        assert batches.workers == 1
        take(batches, 1)
        assert len(loaders()) >= 1
        batches.close()
        assert loaders() == []
        batches.close()
        with pytest.raises(RuntimeError, match="closed"):
            batches.next()


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="Windows has no SIGKILL")
def test_killed_loader_process_is_told_and_can_be_closed(opened, generated, loaders):
    batches = opened({"data": str(generated)}, workers=1)
    take(batches, 1)
    victim = loaders()[0]

    def kill_and_go_on():
        os.kill(victim.pid, signal.SIGKILL)
        while True:  # batches that were ready come first, however many
            batches.next()

    with pytest.raises(RuntimeError, match="worker"):
        kill_and_go_on()
    batches.close()
    assert not victim.is_running()


def test_fakedata_goes_through_the_loader(opened):
    first, again, other = (
        opened({"data": "fakedata", "seed": seed}, workers=workers)
        for seed, workers in ((0, 0), (0, 1), (1, 0))
    )
    images, labels = first.next()
    assert images.shape == (4, 3, 32, 32)
    assert labels.dtype == torch.int64
    assert torch.equal(images, again.next()[0])
    assert not torch.equal(images, other.next()[0])


@pytest.mark.cuda
def test_pinned_batches_arrive_whole_on_the_gpu(generated, resolved):
    from bench.config import RunConfig
    from bench.training.inputs import open_batches

    def drawn(device, **values):
        batches = open_batches(RunConfig(data=str(generated)), resolved(**values), device)
        taken = [[part.cpu() for part in batches.next()] for _ in range(8)]
        batches.close()
        return taken

    on_gpu = drawn(torch.device("cuda"), backend="cuda", pin_memory=True, workers=2)
    on_cpu = drawn(torch.device("cpu"))
    for (images, labels), (expected, expected_labels) in zip(on_gpu, on_cpu, strict=True):
        torch.testing.assert_close(images, expected)
        assert torch.equal(labels, expected_labels)
