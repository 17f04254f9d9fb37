import sys
import warnings

import pytest
import torch
from refusals import refusal
from torch import nn
from torch.nn.functional import cross_entropy
from torchvision.models import GoogLeNetOutputs, InceptionOutputs

from bench.errors import UserError
from bench.training.models import build_model, default_image_size, training_loss


@pytest.fixture
def write_module(tmp_path, monkeypatch):
    """Return a function that writes a module into the current directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())

    def write(name, source):
        monkeypatch.delitem(sys.modules, name, raising=False)
        (tmp_path / f"{name}.py").write_text(source)

    return write


@pytest.mark.parametrize(
    ("arch", "pixels"), [("mobilenet_v3_small", 224), ("googlenet", 224), ("inception_v3", 299)]
)
def test_torchvision_models_are_built_in_silence_to_train_1000_classes(arch, pixels):
    assert default_image_size(arch) == pixels
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = build_model(arch)
    assert model.training
    assert [m for m in model.modules() if isinstance(m, nn.Linear)][-1].out_features == 1000


def test_a_users_model_is_found_in_the_current_directory(write_module):
    write_module(
        "my_nets_a",
        "import torch\nclass Zoo:\n    @staticmethod\n    def tiny():\n"
        "        return torch.nn.Linear(2, 3).eval()\n",
    )
    model = build_model("my_nets_a:Zoo.tiny")
    assert isinstance(model, nn.Linear)
    assert model.training


@pytest.mark.parametrize(
    ("arch", "source", "message"),
    [
        ("no_such_module:tiny", None, "no module named 'no_such_module' here; run from the folder"),
        ("my_nets_b:tiny", "big = 1", "module my_nets_b has no 'tiny'; check the spelling"),
        ("my_nets_b:tiny", "tiny = 1", "tiny is a int, not a callable"),
        ("my_nets_b:tiny", "def tiny(): raise ValueError('bad\\nwidth')", "ValueError: bad width"),
        ("my_nets_b:tiny", "def tiny(): return 'net'", "returned a str; make it return a torch.nn"),
        ("my_nets_b:tiny", "1 / 0", "importing it raised ZeroDivisionError"),
        ("my_nets_b:tiny", "import not_installed_dep", "No module named 'not_installed_dep'"),
        ("my_nets_b:tiny", "def tiny(", "importing it raised SyntaxError"),
        ("resnet5", None, "not a torchvision model"),
    ],
)
def test_a_model_that_cannot_be_built_is_one_line(write_module, arch, source, message):
    if source is not None:
        write_module("my_nets_b", source)
    found = refusal(build_model, arch)
    assert message in found
    assert f"arch={arch!r}" in found


def test_running_out_of_memory_is_not_the_users_mistake(write_module):
    write_module("my_nets_c", "def huge(): raise MemoryError")
    with pytest.raises(MemoryError):
        build_model("my_nets_c:huge")


def test_the_loss_is_the_mean_cross_entropy_and_auxiliary_logits_count_as_in_their_papers():
    logits, labels = torch.tensor([[2.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 1])
    expected = (torch.log1p(torch.exp(torch.tensor(-2.0))) + torch.log(torch.tensor(2.0))) / 2
    torch.testing.assert_close(training_loss(logits, labels), expected)
    labels = torch.tensor([0, 2, 1])
    main, first, second = torch.randn(3, 3, 4)
    parts = [cross_entropy(logits, labels) for logits in (main, first, second)]
    for outputs, expected in (
        (GoogLeNetOutputs(main, second, first), parts[0] + 0.3 * parts[1] + 0.3 * parts[2]),
        (InceptionOutputs(main, first), parts[0] + 0.4 * parts[1]),
        (InceptionOutputs(main, None), parts[0]),
    ):
        torch.testing.assert_close(training_loss(outputs, labels), expected)


def test_a_model_that_returns_no_logits_is_told_so():
    with pytest.raises(UserError, match="returned dict: make it return a tensor of logits"):
        training_loss({"logits": torch.zeros(1, 2)}, torch.zeros(1, dtype=torch.long))
