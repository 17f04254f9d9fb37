import sys
import warnings

import pytest
import torch
from refusals import refusal
from torch import nn
from torch.nn.functional import cross_entropy
from torchvision.models import GoogLeNetOutputs, InceptionOutputs

from bench.errors import UserError
from bench.training.workloads import find_workload

SMALL_IMAGES = "import torch\ndef tiny(): return torch.nn.Linear(2, 3)"
NO_LOGITS = (
    "import torch\nclass Net(torch.nn.Module):\n"
    "    def forward(self, images): return {}\ndef tiny(): return Net()"
)
SEGMENTS = (
    "import torch\ndef tiny():\n    net = torch.nn.Conv2d(3, 2, 1)\n    net.num_classes = 5\n"
    "    return net"
)
STEP = """import torch
class tiny:
    model = torch.nn.Linear(4, 2)
    def batch(self, n): return torch.randn(n, 4), torch.randint(2, (n,))
    def loss(self, output, batch): return torch.nn.functional.cross_entropy(output, batch[1])
"""
LOSS = find_workload("resnet18").loss


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
    workload = find_workload(arch)
    assert (workload.sample, *workload.image[:2]) == ("image", pixels, 1000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = workload.build()
    assert model.training
    assert [m for m in model.modules() if isinstance(m, nn.Linear)][-1].out_features == 1000


def test_a_users_model_is_found_in_the_current_directory_and_asked_for_its_classes(write_module):
    write_module(
        "my_nets_a",
        f"{SMALL_IMAGES}\nflat = torch.nn.Flatten\nclass Zoo:\n    @staticmethod\n    def tiny():\n"
        "        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 3)).eval()\n"
        "def stated():\n    net = tiny()\n    net.num_classes = 7\n    return net",
    )
    workload = find_workload("my_nets_a:Zoo.tiny", image_size=8)
    assert workload.image[:2] == (8, 3)
    assert workload.build().training
    assert int(workload.batch(64)[1].max()) == 2
    assert find_workload("my_nets_a:stated").image.classes == 7  # which cannot run here
    before = torch.get_rng_state()
    assert find_workload("my_nets_a:flat", image_size=8).image.classes == 3 * 8**2
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("arch", "source", "message"),
    [
        ("no_such_module:tiny", None, "no module named 'no_such_module' here; run from the folder"),
        ("my_nets_b:tiny", "big = 1", "module my_nets_b has no 'tiny'; check the spelling"),
        ("my_nets_b:tiny", "tiny = 1", "tiny is a int, not a callable"),
        ("my_nets_b:tiny", "def tiny(): raise ValueError('bad\\nwidth')", "ValueError: bad width"),
        ("my_nets_b:tiny", "def tiny(): return 'net'", "returned a str; make it return a torch.nn"),
        ("my_nets_b:tiny", SMALL_IMAGES, "cannot take an image of 224 pixels a side"),
        ("my_nets_b:tiny", NO_LOGITS, "its model returned a dict: make it return logits"),
        ("my_nets_b:tiny", SEGMENTS, "returned a tensor of shape (1, 2, 224, 224): make it return"),
        ("my_nets_b:tiny", STEP + "    model = 'gpt'", "its model is a str; make it a torch.nn"),
        ("my_nets_b:tiny", STEP + "    sample = 'word'", "sample='word': give image, sequence, s"),
        ("my_nets_b:tiny", STEP + "    tokens_per_sample = 0", "tokens_per_sample=0: give a whole"),
        ("my_nets_b:tiny", "1 / 0", "importing it raised ZeroDivisionError"),
        ("my_nets_b:tiny", "import not_installed_dep", "No module named 'not_installed_dep'"),
        ("my_nets_b:tiny", "def tiny(", "importing it raised SyntaxError"),
        ("my_nets_b:tiny", "raise SystemExit(3)", "ended the process"),
        ("my_nets_b:tiny", "def tiny(): exit()", "ended the process"),
        ("bench.nets:tiny", None, "no module named 'bench.nets'"),
        ("resnet5", None, "not a torchvision model"),
    ],
)
def test_a_model_that_cannot_be_built_is_one_line(write_module, arch, source, message):
    if source is not None:
        write_module("my_nets_b", source)
    found = refusal(lambda: find_workload(arch).build())
    assert message in found
    assert f"arch={arch!r}" in found


def test_running_out_of_memory_is_not_the_users_mistake(write_module):
    write_module("my_nets_c", "def huge(): raise MemoryError")
    with pytest.raises(MemoryError):
        find_workload("my_nets_c:huge")


def test_the_loss_is_the_mean_cross_entropy_and_auxiliary_logits_count_as_in_their_papers():
    logits, labels = torch.tensor([[2.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 1])
    expected = (torch.log1p(torch.exp(torch.tensor(-2.0))) + torch.log(torch.tensor(2.0))) / 2
    torch.testing.assert_close(LOSS(logits, (None, labels)), expected)
    labels = torch.tensor([0, 2, 1])
    main, first, second = torch.randn(3, 3, 4)
    parts = [cross_entropy(logits, labels) for logits in (main, first, second)]
    for outputs, expected in (
        (GoogLeNetOutputs(main, second, first), parts[0] + 0.3 * parts[1] + 0.3 * parts[2]),
        (InceptionOutputs(main, first), parts[0] + 0.4 * parts[1]),
        (InceptionOutputs(main, None), parts[0]),
    ):
        torch.testing.assert_close(LOSS(outputs, (None, labels)), expected)
    with pytest.raises(UserError, match="returned dict: make it return a tensor of logits"):
        LOSS({"logits": main}, (None, labels))


def test_a_users_own_step_brings_its_batch_and_its_loss(write_module):
    more = "    sample, tokens_per_sample = 'sequence', 4\n    model.eval()\n"
    as_module = STEP.replace("class tiny:", "class module(torch.nn.Module):").replace(
        "    model = torch.nn.Linear(4, 2)\n",
        "    def __init__(self):\n        super().__init__()\n"
        "        self.model = torch.nn.Linear(4, 2)\n",
    )
    write_module("my_step", STEP + more + as_module)
    assert find_workload("my_step:module").image is None
    workload = find_workload("my_step:tiny")
    assert (workload.sample, workload.tokens_per_sample, workload.image) == ("sequence", 4, None)
    model, batch = workload.build(), workload.batch(3)
    assert model.training
    output = workload.output(model, batch)
    assert output.shape == (3, 2)
    torch.testing.assert_close(workload.loss(output, batch), cross_entropy(output, batch[1]))


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ("    def batch(self, n): return 'text'", "batch(3) returned a str; make it return a tens"),
        ("    def batch(self, n): return 1 / 0", "batch(3) raised ZeroDivisionError"),
        ("    def loss(self, *_): return 0.5", "loss() returned a float; make it return a tensor"),
        (
            "    def loss(self, out, _): return out",
            "loss() returned a tensor of shape (3, 2); make",
        ),
    ],
)
def test_what_a_users_step_makes_is_refused_in_one_line(write_module, made, message):
    write_module("my_step", STEP + made)
    workload = find_workload("my_step:tiny")

    def train():
        batch = workload.batch(3)
        workload.loss(workload.output(workload.build(), batch), batch)

    assert f"arch='my_step:tiny': {message}" in refusal(train)


@pytest.mark.parametrize("form", ["tensor", "tuple", "dict"])
def test_the_model_takes_the_batch_by_its_form(write_module, form):
    forms = {"tensor": "x", "tuple": "(x, 1)", "dict": "{'input': x}"}
    write_module("my_step", STEP + f"    def batch(self, n):\n        x = torch.ones(n, 4)\n"
                 f"        return {forms[form]}\n")  # fmt: skip
    workload = find_workload("my_step:tiny")
    model = workload.build()
    expected = model(torch.ones(2, 4))
    torch.testing.assert_close(workload.output(model, workload.batch(2)), expected)


@pytest.mark.parametrize(
    ("arch", "sizes", "message"),
    [
        ("resnet18", {"seq_len": 64}, "seq_len=64: resnet18 takes no --seq-len; leave it out"),
        ("my_step:tiny", {"image_size": 64}, "image_size=64: my_step:tiny takes no --image-size"),
        ("my_step:tiny", {"seq_len": 64}, "seq_len=64: my_step:tiny takes no --seq-len"),
    ],
)
def test_a_size_that_the_model_has_no_use_for_is_refused(write_module, arch, sizes, message):
    write_module("my_step", STEP)
    assert message in refusal(find_workload, arch, **sizes)
