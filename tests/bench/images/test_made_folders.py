import io
import itertools
import os
import shutil

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image
from refusals import refusal

from bench import images
from bench.images import (
    IMAGE_EXTENSIONS,
    check_image_folder,
    generate_image_folder,
    images_by_class,
    subset_image_folder,
)


def contents(folder):
    files = sorted(folder.rglob("*.jpg"))
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def refused(out, **wanted):
    return refusal(generate_image_folder, out, **{"classes": 3, "images_per_class": 6, **wanted})


def interrupted(out, after, images_per_class=6):
    """Generate pictures of 3 classes into `out`, interrupted once after some of them."""
    count = itertools.count(1)

    def stop():
        if next(count) == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate_image_folder(out, classes=3, images_per_class=images_per_class, on_image=stop)


@pytest.mark.slow
def test_same_seed_same_pictures(generated, tmp_path):
    for name, seed in (("again", 0), ("other", 1)):
        generate_image_folder(tmp_path / name, classes=1, images_per_class=2, seed=seed)
    first, again, other = (contents(f) for f in (generated, tmp_path / "again", tmp_path / "other"))
    assert first.items() >= again.items()
    assert again.keys() == other.keys()
    assert len(set(first.values()) | set(other.values())) == 18 + 2


def test_files_cost_as_much_as_a_cameras_and_their_spectrum_is_a_photographs(generated):
    images = [Image.open(file) for file in sorted(generated.glob("*/*.jpg"))]
    assert len(images) == 18
    for image in images:
        assert image.format == "JPEG"
        assert not image.info.get("progressive")
        assert [layer[1:3] for layer in image.layer] == [(2, 2), (1, 1), (1, 1)]  # 4:2:0
    assert {image.size for image in images} == {(500, 375), (375, 500)}
    file_bytes = np.array([file.stat().st_size for file in generated.glob("*/*.jpg")])
    assert 95_000 < file_bytes.mean() < 115_000
    assert file_bytes.std() > 10_000
    # Power falls with frequency to the -2, give or take (van der Schaaf and van Hateren, Vision
    # Research 36, 1996); of white noise it would not fall at all.
    slopes = [_slope(image) for image in images]
    assert -3.2 < np.mean(slopes) < -1.8
    assert max(slopes) < -1.2


def _slope(image):
    grey = np.asarray(image.convert("L"), dtype=float)
    side = min(grey.shape)
    window = np.hanning(side)
    grey = (grey[:side, :side] - grey.mean()) * window * window[:, None]
    power = np.abs(np.fft.fft2(grey)) ** 2
    frequency = np.hypot(*np.meshgrid(np.fft.fftfreq(side), np.fft.fftfreq(side)))
    edges = np.geomspace(0.01, 0.45, 12)
    rings = [power[(frequency >= a) & (frequency < b)].mean() for a, b in itertools.pairwise(edges)]
    return np.polyfit(np.log(np.sqrt(edges[1:] * edges[:-1])), np.log(rings), 1)[0]


@pytest.mark.slow
def test_interrupted_folder_is_completed_and_a_whole_one_left_alone(generated, tmp_path):
    out = tmp_path / "out"
    interrupted(out, after=4)
    done = len(list(out.glob("*/*.jpg")))
    assert 4 <= done < 18
    assert not (out / "dataset.json").exists()
    missing = min(contents(generated).keys() - contents(out).keys())
    half = out / f"{missing}.part"
    half.parent.mkdir(exist_ok=True)
    half.write_bytes(b"half a picture")
    assert generate_image_folder(out, classes=3, images_per_class=6) == 18 - done
    assert contents(out) == contents(generated)
    assert (out / "dataset.json").is_file()
    before = {file: file.stat().st_mtime_ns for file in out.rglob("*")}
    assert generate_image_folder(out, classes=3, images_per_class=6) == 0
    assert {file: file.stat().st_mtime_ns for file in out.rglob("*")} == before


def test_other_peoples_folders_and_other_settings_are_left_alone(photos, tmp_path):
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "thesis.tex").write_text("years of work")
    assert "something else" in refused(tmp_path / "work")
    assert "something else" in refused(tmp_path / "work" / "thesis.tex")
    assert "Not a directory" in refused(tmp_path / "work" / "thesis.tex" / "out")
    assert [file.name for file in (tmp_path / "work").iterdir()] == ["thesis.tex"]
    before = contents(photos)
    assert "seed=0, not seed=1" in refused(photos, seed=1)
    assert contents(photos) == before
    interrupted(tmp_path / "half", after=2)
    assert "classes=3, not classes=4" in refused(tmp_path / "half", classes=4)
    for text in ("", "[]", '{"classes": 3'):
        (photos / "dataset.json").write_text(text)
        assert "something else" in refused(photos)


@pytest.mark.parametrize(
    ("name", "value"),
    [("classes", 0), ("classes", 1001), ("images_per_class", 0), ("seed", -1), ("seed", 2**32)],
)
def test_numbers_out_of_range(tmp_path, name, value):
    assert f"{name}={value}: give a number from" in refused(tmp_path / "out", **{name: value})
    assert not (tmp_path / "out").exists()


# A part of another folder


def denied(source, out, **wanted):
    return refusal(subset_image_folder, source, out, **{"images_per_class": 2, **wanted})


def test_takes_as_many_of_each_class_by_link_or_as_copies_that_stand_on_their_own(
    photos, tmp_path, monkeypatch
):
    def refuse(*_):
        raise OSError("A required privilege is not held by the client")  # as Windows says

    for name, seed, copy in (("out", 0, False), ("again", 0, True), ("other", 1, False)):
        if name == "other":
            monkeypatch.setattr(os, "symlink", refuse)
        subset_image_folder(photos, tmp_path / name, images_per_class=2, seed=seed, copy=copy)
    found = check_image_folder(tmp_path / "out")
    assert (found.classes, found.images) == (3, 6)
    assert all(file.is_symlink() for file in (tmp_path / "out").glob("*/*.jpg"))
    assert all(len(list(c.iterdir())) == 2 for c in (tmp_path / "out").glob("class_*"))
    taken = contents(tmp_path / "out")
    assert taken.items() <= contents(photos).items()
    shutil.rmtree(photos)
    assert contents(tmp_path / "again") == taken != contents(tmp_path / "other")


def test_images_in_deeper_folders_of_a_relative_source(photos, tmp_path, monkeypatch):
    for number in range(6):
        deep = photos / "class_000" / str(number)
        deep.mkdir()
        (photos / "class_000" / f"0000{number}.jpg").rename(deep / "same.jpg")
    monkeypatch.chdir(tmp_path)
    subset_image_folder("photos", "a/b/out", images_per_class=6)
    assert check_image_folder("a/b/out").images == 18


def test_interrupted_subset_is_completed_and_other_settings_are_denied(photos, tmp_path):
    whole, out = tmp_path / "whole", tmp_path / "out"
    subset_image_folder(photos, whole, images_per_class=2)
    shutil.copytree(whole, out, symlinks=True)
    (out / "dataset.json").rename(out / "dataset.json.part")
    shutil.rmtree(out / "class_001")
    subset_image_folder(photos, out, images_per_class=2)
    assert contents(out) == contents(whole)
    assert all(file.is_symlink() for file in out.glob("*/*.jpg"))
    assert (out / "dataset.json").exists()
    before = {f: f.lstat().st_mtime_ns for f in out.rglob("*")}
    subset_image_folder(photos, out, images_per_class=2)
    assert {f: f.lstat().st_mtime_ns for f in out.rglob("*")} == before
    assert "images_per_class=2, not images_per_class=3" in denied(photos, out, images_per_class=3)


def test_places_that_would_spoil_something_and_too_few_images(photos, tmp_path):
    before = contents(photos)
    assert "inside the source" in denied(photos, photos / "small")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("keep")
    assert "something else" in denied(photos, tmp_path / "full")
    assert "No such file" in denied(tmp_path / "nowhere", tmp_path / "out")
    assert "images_per_class=0" in denied(photos, tmp_path / "out", images_per_class=0)
    assert contents(photos) == before
    (photos / "class_001" / "00000.jpg").unlink()
    message = denied(photos, tmp_path / "out", images_per_class=6)
    assert "images_per_class=6: give a number from 1 to 5" in message
    assert not (tmp_path / "out").exists()


# What is seen of a folder before it is used


def unusable(path):
    """The one line with which `path` is refused."""
    message = refusal(check_image_folder, path)
    assert repr(str(path)) in message
    return message


def first_image(folder):
    return min(folder.glob("class_*/*.jpg"))


def saved(image, form):
    file = io.BytesIO()
    image.save(file, form)
    return file.getvalue()


@pytest.mark.slow
def test_summary_counts_what_is_there(generated):
    files = list(generated.glob("*/*.jpg"))
    widths = [Image.open(file).width for file in files]
    found = check_image_folder(str(generated))
    assert (found.classes, found.images, found.checked) == (3, 18, 18)
    assert found.mean_bytes == round(sum(file.stat().st_size for file in files) / 18)
    assert found.mean_width == round(sum(widths) / 18)


def test_sees_what_torchvision_sees(photos):
    from torchvision.datasets import ImageFolder
    from torchvision.datasets.folder import IMG_EXTENSIONS

    for name in ("z", "b", "y", "a", "x", "c"):
        (photos / "class_001" / name).mkdir()
        shutil.copy(first_image(photos), photos / "class_001" / name / "UPPER.JPG")
    (photos / "class_001" / "linked").symlink_to(photos / "class_000")
    (photos / "class_002" / "notes.txt").write_text("no image")
    assert IMG_EXTENSIONS == IMAGE_EXTENSIONS
    listed = [
        (str(file), number)
        for number, files in enumerate(images_by_class(photos).values())
        for file, _ in files
    ]
    assert listed == ImageFolder(photos).samples


def test_a_path_that_is_no_image_folder(photos, tmp_path):
    assert "No such file" in unusable("~nosuchuser/images")
    assert "mlproject dataset generate" in unusable(tmp_path / "nowhere")
    assert "Not a directory" in unusable(first_image(photos))
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "stray.jpg").write_bytes(b"")
    assert "no class sub-folders" in unusable(tmp_path / "empty")
    for number in range(7):
        (photos / f"empty_{number}").mkdir()
    assert "no images in 7 of 10 classes, first empty_0" in unusable(photos)
    (photos / "class_000" / "gone.jpg").symlink_to(photos / "gone.jpg")
    assert "gone.jpg: No such file" in unusable(photos)


def test_splits_are_not_classes_but_classes_may_be_called_so(generated, tmp_path):
    for split in ("train", "val"):
        shutil.copytree(generated, tmp_path / "splits" / split)
        shutil.copytree(generated / "class_000", tmp_path / "classes" / split)
    assert f"give {str(tmp_path / 'splits' / 'train')!r}" in unusable(tmp_path / "splits")
    assert check_image_folder(tmp_path / "splits" / "train").classes == 3
    assert check_image_folder(tmp_path / "classes").classes == 2


def test_damaged_and_unreadable_files_are_counted_and_the_first_named(photos, monkeypatch):
    def locked(file):
        raise PermissionError(13, "Permission denied")

    (photos / "class_001" / "00002.jpg").write_bytes(b"")
    (photos / "class_002" / "00000.jpg").write_text("not an image")
    message = unusable(photos)
    assert "2 of 18 files" in message
    assert str(photos / "class_001" / "00002.jpg") in message
    assert "replace or delete" in message
    monkeypatch.setattr(images, "_look_into", locked)
    assert f"{str(first_image(photos))!r} (Permission denied)" in unusable(photos)


@settings(max_examples=30)
@given(share=st.floats(0, 1), form=st.sampled_from(["JPEG", "PNG", "WEBP", "BMP", "PPM", "TIFF"]))
@example(share=0.5, form="JPEG")
@example(share=0.5, form="PNG")
def test_cut_off_file_is_refused_unless_it_decodes(generated, tmp_path, share, form):
    whole = saved(Image.open(first_image(generated)).resize((120, 90)), form)
    folder = tmp_path / "cut"
    (folder / "a").mkdir(parents=True, exist_ok=True)
    file = folder / "a" / "picture.jpg"  # its content counts, not its name
    file.write_bytes(whole[: int(share * len(whole))])
    try:
        Image.open(file).load()
    except Exception:
        assert str(file) in unusable(folder)
    else:
        assert check_image_folder(folder).images == 1


def test_data_behind_the_end_is_accepted_and_a_size_beyond_reason_refused(photos):
    whole = bytearray(first_image(photos).read_bytes())
    first_image(photos).write_bytes(whole + b"a maker's own appendix")
    assert check_image_folder(photos).images == 18
    at = whole.index(b"\xff\xc0") + 5  # height and width of the frame header
    whole[at : at + 4] = b"\xff\xff\xff\xff"
    first_image(photos).write_bytes(whole)
    assert "exceeds limit" in unusable(photos)


def test_large_folders_are_sampled_evenly(photos, monkeypatch):
    monkeypatch.setattr(images, "CHECKED_FILES", 3)
    assert check_image_folder(photos).checked == 3
    (photos / "class_002" / "00000.jpg").write_bytes(b"")
    assert "1 of 3 files" in unusable(photos)
