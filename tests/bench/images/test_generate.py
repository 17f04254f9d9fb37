import itertools

import numpy as np
import pytest
from PIL import Image
from refusals import refusal

from bench.images import generate_image_folder


def contents(folder):
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.glob("*/*"))}


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
