import io
import shutil

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image
from refusals import refusal

from bench import images
from bench.images import IMAGE_EXTENSIONS, check_image_folder, images_by_class


def refused(path):
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
    assert "No such file" in refused("~nosuchuser/images")
    assert "mlproject dataset generate" in refused(tmp_path / "nowhere")
    assert "Not a directory" in refused(first_image(photos))
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "stray.jpg").write_bytes(b"")
    assert "no class sub-folders" in refused(tmp_path / "empty")
    for number in range(7):
        (photos / f"empty_{number}").mkdir()
    assert "no images in 7 of 10 classes, first empty_0" in refused(photos)
    (photos / "class_000" / "gone.jpg").symlink_to(photos / "gone.jpg")
    assert "gone.jpg: No such file" in refused(photos)


def test_splits_are_not_classes_but_classes_may_be_called_so(generated, tmp_path):
    for split in ("train", "val"):
        shutil.copytree(generated, tmp_path / "splits" / split)
        shutil.copytree(generated / "class_000", tmp_path / "classes" / split)
    assert f"give {str(tmp_path / 'splits' / 'train')!r}" in refused(tmp_path / "splits")
    assert check_image_folder(tmp_path / "splits" / "train").classes == 3
    assert check_image_folder(tmp_path / "classes").classes == 2


def test_damaged_and_unreadable_files_are_counted_and_the_first_named(photos, monkeypatch):
    def locked(file):
        raise PermissionError(13, "Permission denied")

    (photos / "class_001" / "00002.jpg").write_bytes(b"")
    (photos / "class_002" / "00000.jpg").write_text("not an image")
    message = refused(photos)
    assert "2 of 18 files" in message
    assert str(photos / "class_001" / "00002.jpg") in message
    assert "replace or delete" in message
    monkeypatch.setattr(images, "_look_into", locked)
    assert f"{str(first_image(photos))!r} (Permission denied)" in refused(photos)


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
        assert str(file) in refused(folder)
    else:
        assert check_image_folder(folder).images == 1


def test_data_behind_the_end_is_accepted_and_a_size_beyond_reason_refused(photos):
    whole = bytearray(first_image(photos).read_bytes())
    first_image(photos).write_bytes(whole + b"a maker's own appendix")
    assert check_image_folder(photos).images == 18
    at = whole.index(b"\xff\xc0") + 5  # height and width of the frame header
    whole[at : at + 4] = b"\xff\xff\xff\xff"
    first_image(photos).write_bytes(whole)
    assert "exceeds limit" in refused(photos)


def test_large_folders_are_sampled_evenly(photos, monkeypatch):
    monkeypatch.setattr(images, "CHECKED_FILES", 3)
    assert check_image_folder(photos).checked == 3
    (photos / "class_002" / "00000.jpg").write_bytes(b"")
    assert "1 of 3 files" in refused(photos)
