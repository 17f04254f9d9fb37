import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import psutil
import pytest
import torch
from opened_batches import opened_batches, sums, take
from refusals import refusal

from bench.errors import UserError
from bench.training.inputs import Draw
from bench.training.inputs.image_folder import DecodedImages, decode_rgb
from bench.training.workloads import ImageInput


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


# the step itself loads, or processes that stay or end with an epoch
@pytest.mark.parametrize(
    "loader", [{"workers": 0}, {"workers": 1}, {"workers": 1, "persistent_workers": False}]
)
def test_every_epoch_has_every_image_once_in_a_new_order(opened, generated, loader):
    layout = "true" if loader["workers"] else "false"
    batches = opened(data=str(generated), batch_size=9, channels_last=layout, **loader)
    epochs = [take(batches, 2) for _ in range(3)]
    for epoch in epochs:
        assert Counter(torch.cat([labels for _, labels in epoch]).tolist()) == {0: 6, 1: 6, 2: 6}
    orders = [sums(epoch) for epoch in epochs]
    assert len(set(orders[0])) == 18
    assert {frozenset(order) for order in orders} == {frozenset(orders[0])}
    assert len({tuple(order) for order in orders}) == 3
    images, labels = epochs[0][0]
    assert (images.dtype, labels.dtype) == (torch.float32, torch.int64)
    assert (images.shape, labels.shape) == ((9, 3, 32, 32), (9,))
    assert images.is_contiguous(memory_format=torch.channels_last) == (layout == "true")


@pytest.mark.slow
def test_workers_change_nothing_and_the_seed_everything(opened, generated):
    def drawn(**settings):
        batches = opened(data=str(generated), augment=True, **settings)
        return torch.cat([images for images, _ in take(batches, 6)])

    first = drawn()
    for other in ({"threads": 3}, {"workers": 2}, {"workers": 1, "persistent_workers": False}):
        assert torch.equal(first, drawn(**other))
    assert not torch.equal(first, drawn(seed=1))


def test_without_loader_processes_the_threads_of_the_step_decode(opened, generated, monkeypatch):
    meeting = threading.Barrier(2)

    def decode(file):
        meeting.wait(timeout=300)  # a single thread would wait in vain
        return decode_rgb(file)

    monkeypatch.setattr("bench.training.inputs.image_folder.decode_rgb", decode)
    assert len(take(opened(data=str(generated), threads=2), 2)) == 2


def test_augmentation_differs_from_draw_to_draw(generated):
    images = DecodedImages(generated, ImageInput(64, 1000), augment=True)
    seen = [images[Draw(0, seed)][0] for seed in (1, 1, 2)]
    assert torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[0], seen[2])
    plain = DecodedImages(generated, ImageInput(64, 1000), augment=False)
    assert torch.equal(plain[Draw(0, 1)][0], plain[Draw(0, 2)][0])


@pytest.mark.parametrize("settings", [{}, {"augment": True}, {"augment": True, "workers": 1}])
def test_torchs_own_generator_is_left_alone(opened, generated, settings):
    before = torch.get_rng_state()
    take(opened(data=str(generated) if settings else "synthetic", **settings), 3)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(("workers", "damage"), [(0, "cut off"), (2, "cut off"), (0, "deleted")])
def test_damaged_or_deleted_image_is_named(opened, photos, workers, damage):
    file = photos / "class_001" / "00004.jpg"
    batches = opened(data=str(photos), workers=workers, batch_size=18)
    take(batches, 1)
    if damage == "deleted":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:2000])
    message = refusal(take, batches, 9)
    assert f"{str(file)!r} cannot be decoded" in message
    assert "replace or delete it" in message


def test_folders_that_do_not_fill_a_batch_or_have_too_many_classes(opened, generated, tmp_path):
    def add_class(number):
        (tmp_path / f"{number:04d}").mkdir()
        (tmp_path / f"{number:04d}" / "a.jpg").hardlink_to(image)

    with pytest.raises(UserError, match="no class sub-folders"):
        opened(data=str(tmp_path))
    with pytest.raises(UserError, match="18 images do not fill a batch of 19"):
        opened(data=str(generated), batch_size=19)
    assert len(opened(data=str(generated), batch_size=18).next()[0]) == 18
    image = tmp_path / "a.jpg"
    shutil.copy(next(generated.glob("*/*.jpg")), image)
    for number in range(1000):
        add_class(number)
    opened(data=str(tmp_path))
    add_class(1000)
    with pytest.raises(UserError, match="1001 classes: give a folder of at most 1000"):
        opened(data=str(tmp_path))


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="Windows has no SIGKILL")
def test_close_ends_the_processes_and_a_killed_one_is_told(opened, generated, loaders):
    for persistent in (True, False):
        batches = opened(data=str(generated), persistent_workers=persistent, workers=1)
        take(batches, 1)
        assert len(loaders()) == 1
        batches.close()
        assert loaders() == []
        batches.close()
        with pytest.raises(RuntimeError, match="closed"):
            batches.next()
    batches = opened(data=str(generated), workers=1)
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
        opened(data="fakedata", seed=seed, workers=workers).next()
        for seed, workers in ((0, 0), (0, 1), (1, 0))
    )
    assert first[0].shape == (4, 3, 32, 32)
    assert first[1].dtype == torch.int64
    assert torch.equal(first[0], again[0])
    assert not torch.equal(first[0], other[0])


@pytest.mark.cuda
def test_pinned_batches_arrive_whole_on_the_gpu(opened, generated):
    def on_host(**where):  # at once: a batch on a GPU holds until the next
        batches = opened(data=str(generated), **where)
        return [[part.cpu() for part in batches.next()] for _ in range(8)]

    on_gpu, on_cpu = on_host(backend="cuda", pin_memory="true", workers=2), on_host()
    for (images, labels), (expected, expected_labels) in zip(on_gpu, on_cpu, strict=True):
        torch.testing.assert_close(images, expected)
        assert torch.equal(labels, expected_labels)


# Loader processes under every way of starting them


SCRIPT = """
import multiprocessing, sys
from opened_batches import opened_batches

if __name__ == "__main__":
    multiprocessing.set_start_method(sys.argv[2])
    batches = opened_batches(data=sys.argv[1], augment=True, workers=1)
    print(batches.next()[0].sum().item())
    batches.close()
"""


@pytest.mark.long  # every process imports torch
@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_a_process_that_is_started_in_any_way_loads_the_same(generated, tmp_path, method):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script), str(generated), method],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(Path(__file__).parent)])},
        capture_output=True,
        text=True,
        check=True,
    )
    expected = opened_batches(data=str(generated), augment=True).next()[0].sum().item()
    assert (float(done.stdout), done.stderr) == (expected, "")
