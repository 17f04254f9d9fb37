"""What the loader gives beside torchvision's own ImageFolder pipeline, on the same files.

The tolerance is one grey level of 255: both round each of two passes of the same filter. A decoder
other than Pillow's may add one more, which is why two are allowed where the two builds can differ.
"""

import numpy as np
import pytest
import torch
from opened_batches import grey_levels
from PIL import Image
from torchvision.datasets.folder import pil_loader
from torchvision.transforms import (
    CenterCrop,
    Compose,
    Normalize,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
    ToTensor,
)

from bench.errors import UserError
from bench.training.inputs import Draw, image_folder
from bench.training.inputs.image_folder import (
    DecodedImages,
    centre_cut,
    decode_rgb,
    list_images,
    random_cut,
)
from bench.training.workloads import ImageInput

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
GREY_LEVELS = 2
PIXELS = np.random.default_rng(0).integers(0, 256, (90, 120, 3), dtype=np.uint8)


def smooth(mode="RGB", size=(200, 150)):
    """A picture with gradients and edges, so that a shift by half a pixel shows."""
    small = Image.fromarray(PIXELS[:9, :12])
    return small.resize(size, Image.Resampling.BICUBIC).convert(mode)


def stock(size, augment=False):
    if augment:
        cut = [RandomResizedCrop(size), RandomHorizontalFlip()]
    else:
        cut = [Resize(round(size * 256 / 224)), CenterCrop(size)]
    return Compose([*cut, ToTensor(), Normalize(MEAN, STD)])


def stock_by_class(folder, size):
    """torchvision's pictures of each class."""
    made = {}
    for file, label in list_images(folder, 1000):
        made.setdefault(label, []).append(stock(size)(pil_loader(file)))
    return made


@pytest.mark.parametrize(("size", "channels_last"), [(112, "true"), (99, "false")])
@pytest.mark.slow
def test_batches_are_within_two_grey_levels_of_torchvisions(opened, generated, size, channels_last):
    images, labels = opened(
        data=str(generated), batch_size=18, image_size=size, channels_last=channels_last
    ).next()
    theirs = stock_by_class(generated, size)
    for image, label in zip(images, labels.tolist(), strict=True):
        assert min(grey_levels(image, other).max() for other in theirs[label]) <= GREY_LEVELS


@pytest.mark.parametrize("seed", range(6))
def test_augmentation_is_what_torchvision_draws_under_the_same_seed(generated, seed):
    images = DecodedImages(generated, ImageInput(96, 1000), augment=True)
    ours, _ = images[Draw(seed, seed)]
    torch.manual_seed(seed)
    theirs = stock(96, augment=True)(pil_loader(list_images(generated, 1000)[seed][0]))
    levels = Normalize(MEAN, STD)(ours.permute(2, 0, 1) / 255)
    assert grey_levels(levels, theirs).max() <= GREY_LEVELS


@pytest.mark.parametrize(
    "size", [(40, 30), (30, 40), (256, 256), (300, 31), (31, 300), (1600, 1200), (257, 256)]
)
def test_pictures_of_any_shape_are_cut_like_torchvisions(size):
    picture = smooth(size=size)
    cut = centre_cut(torch.from_numpy(np.array(picture)), 56)
    theirs = CenterCrop(56)(Resize(64)(picture))
    assert cut.shape == (56, 56, 3)
    assert np.abs(cut.numpy().astype(int) - np.asarray(theirs)).max() <= 1
    small = torch.zeros(2, 3, 3, dtype=torch.uint8)
    assert random_cut(small, 32, 0).shape == (32, 32, 3)


def written(tmp_path, name, picture, **options):
    file = tmp_path / name
    picture.save(file, **options)
    return str(file)


ODD_FILES = {
    "greyscale": ("a.jpg", "L", {"format": "JPEG"}),
    "CMYK": ("a.jpg", "CMYK", {"format": "JPEG"}),
    "progressive": ("a.jpg", "RGB", {"format": "JPEG", "progressive": True}),
    "full chroma": ("a.jpg", "RGB", {"format": "JPEG", "subsampling": 0, "quality": 96}),
    "restart markers": ("a.jpg", "RGB", {"format": "JPEG", "restart_marker_blocks": 2}),
    "PNG named .jpg": ("a.jpg", "RGB", {"format": "PNG"}),
    "PNG with alpha": ("a.png", "RGBA", {"format": "PNG"}),
    "PNG with a palette": ("a.png", "P", {"format": "PNG"}),
    "WebP": ("a.webp", "RGB", {"format": "WEBP"}),
}


@pytest.mark.parametrize("kind", ODD_FILES)
def test_every_kind_of_file_is_decoded_as_pillow_does(tmp_path, monkeypatch, kind):
    name, mode, options = ODD_FILES[kind]
    file = written(tmp_path, name, smooth(mode), **options)
    theirs = np.asarray(pil_loader(file)).astype(int)
    if (mode, options["format"]) == ("RGB", "JPEG"):  # for simplejpeg, which is faster
        monkeypatch.setattr(image_folder, "pil_loader", None)
    ours = decode_rgb(file)
    assert ours.dtype == torch.uint8
    assert np.abs(ours.numpy() - theirs).max() <= 1


def test_pillow_decodes_what_simplejpeg_does_not_and_forgives_what_it_forgives(
    tmp_path, monkeypatch
):
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees, and left as stored
    file = tmp_path / "a.jpg"
    smooth().save(file, exif=exif)
    content = file.read_bytes()
    end = content.index(b"\xff\xdb")  # the first quantisation table
    # bytes that do not belong between two segments are a warning to libjpeg
    file.write_bytes(content[:end] + b"\x00\x00\x00" + content[end:])
    theirs = np.asarray(pil_loader(str(file)))
    assert np.array_equal(decode_rgb(str(file)).numpy(), theirs)
    assert theirs.shape == (150, 200, 3)
    monkeypatch.setattr(image_folder, "decode_jpeg", None)
    assert np.array_equal(decode_rgb(str(file)).numpy(), theirs)


@pytest.mark.parametrize("kind", ["cut in half", "empty", "nothing but a mark", "no picture"])
def test_damaged_files_are_refused_in_one_line_that_names_them(photos, kind):
    images = DecodedImages(photos, ImageInput(32, 1000), augment=False)
    file = photos / "class_000" / "00000.jpg"
    whole = file.read_bytes()
    file.write_bytes(
        {
            "cut in half": whole[: len(whole) // 2],
            "empty": b"",
            "nothing but a mark": b"\xff\xd8\xff",
            "no picture": b"\xff\xd8\xff\xe0" + b"no picture" * 40,
        }[kind]
    )
    with pytest.raises((OSError, SyntaxError)) as theirs:
        pil_loader(str(file))
    found = images[Draw(0, 0)]
    assert isinstance(found, UserError)
    assert "\n" not in str(found)
    reason = " ".join(str(theirs.value).split())
    assert f"{str(file)!r} cannot be decoded ({reason})" in str(found)
