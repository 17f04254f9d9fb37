import os
import shutil

from refusals import refusal

from bench.images import check_image_folder, subset_image_folder


def chosen(folder):
    return {str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.rglob("*.jpg"))}


def refused(source, out, **wanted):
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
    taken = chosen(tmp_path / "out")
    assert taken.items() <= chosen(photos).items()
    shutil.rmtree(photos)
    assert chosen(tmp_path / "again") == taken != chosen(tmp_path / "other")


def test_images_in_deeper_folders_of_a_relative_source(photos, tmp_path, monkeypatch):
    for number in range(6):
        deep = photos / "class_000" / str(number)
        deep.mkdir()
        (photos / "class_000" / f"0000{number}.jpg").rename(deep / "same.jpg")
    monkeypatch.chdir(tmp_path)
    subset_image_folder("photos", "a/b/out", images_per_class=6)
    assert check_image_folder("a/b/out").images == 18


def test_interrupted_subset_is_completed_and_other_settings_are_refused(photos, tmp_path):
    whole, out = tmp_path / "whole", tmp_path / "out"
    subset_image_folder(photos, whole, images_per_class=2)
    shutil.copytree(whole, out, symlinks=True)
    (out / "dataset.json").rename(out / "dataset.json.part")
    shutil.rmtree(out / "class_001")
    subset_image_folder(photos, out, images_per_class=2)
    assert chosen(out) == chosen(whole)
    assert all(file.is_symlink() for file in out.glob("*/*.jpg"))
    assert (out / "dataset.json").exists()
    before = {f: f.lstat().st_mtime_ns for f in out.rglob("*")}
    subset_image_folder(photos, out, images_per_class=2)
    assert {f: f.lstat().st_mtime_ns for f in out.rglob("*")} == before
    assert "images_per_class=2, not images_per_class=3" in refused(photos, out, images_per_class=3)


def test_places_that_would_spoil_something_and_too_few_images(photos, tmp_path):
    before = chosen(photos)
    assert "inside the source" in refused(photos, photos / "small")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("keep")
    assert "something else" in refused(photos, tmp_path / "full")
    assert "No such file" in refused(tmp_path / "nowhere", tmp_path / "out")
    assert "images_per_class=0" in refused(photos, tmp_path / "out", images_per_class=0)
    assert chosen(photos) == before
    (photos / "class_001" / "00000.jpg").unlink()
    message = refused(photos, tmp_path / "out", images_per_class=6)
    assert "images_per_class=6: give a number from 1 to 5" in message
    assert not (tmp_path / "out").exists()
