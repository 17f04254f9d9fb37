"""timm's models: images as they were published with, another size, and what is refused."""

import pytest
import torch
from refusals import refusal

from bench.training.workloads import find_workload

pytestmark = pytest.mark.slow  # timm takes seconds to import


def _outputs(workload):
    """The shape of what the model makes of one of its images; nothing is computed."""
    with torch.device("meta"):
        model, batch = workload.build(), workload.batch(1)
        return tuple(workload.output(model, batch).shape)


@pytest.mark.parametrize(
    ("name", "size", "classes", "mean"),
    [
        ("mobilenetv3_small_050", 224, 1000, (0.485, 0.456, 0.406)),
        ("vit_tiny_patch16_224", 224, 1000, (0.5, 0.5, 0.5)),
        ("vit_tiny_patch16_224.augreg_in21k", 224, 21843, (0.5, 0.5, 0.5)),
        ("vit_small_patch14_dinov2", 518, 1000, (0.485, 0.456, 0.406)),
    ],
)
def test_images_are_those_that_the_model_was_published_with(name, size, classes, mean):
    workload = find_workload(f"timm:{name}")
    assert workload.sample == "image"
    assert workload.image[:3] == (size, classes, mean)
    assert _outputs(workload) == (1, classes)


@pytest.mark.parametrize(
    ("name", "size"), [("resnet18", 96), ("vit_tiny_patch16_224", 96), ("mixer_s32_224", 64)]
)
def test_another_size_is_told_to_models_whose_weights_depend_on_it(name, size):
    workload = find_workload(f"timm:{name}", image_size=size)
    assert workload.image.size == size
    assert _outputs(workload) == (1, 1000)


def test_images_that_are_not_square_need_a_size():
    arch = "timm:vit_base_patch16_sapiens2"
    assert "not square (1024 x 768); give image_size" in refusal(find_workload, arch)
    assert _outputs(find_workload(arch, image_size=64)) == (1, 1000)


@pytest.mark.parametrize(
    ("arch", "options", "words"),
    [
        ("timm:resnet18.of_mine", {}, "timm has no such tag"),
        ("timm:nest_tiny", {"image_size": 100}, "cannot be built for that size"),
        ("timm:resnet18", {"seq_len": 8}, "leave it out"),
    ],
)
def test_what_a_model_does_not_take_is_one_line(arch, options, words):
    assert words in refusal(lambda: find_workload(arch, **options).build())
