"""torch's compiler stays away from a plain step, and is whole for whatever asks for it."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

POSTPONE = """
import sys
from bench.training.postponed_compiler import postpone_compiler
postpone_compiler()
"""
STEPS = """
import sys, torch, torchvision
torch.manual_seed(0)
model = torchvision.models.resnet18(num_classes=10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
images = torch.randn(2, 3, 32, 32)
def step():
    loss = model(images).square().sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()
losses = [step() for _ in range(3)]
with torch.profiler.profile() as profiler:
    step()
"""
OF_HELD = "held.counters; asked = sys.modules[held.__name__]"
PARTS = "['torch._dynamo.eval_frame', 'torch._dynamo.utils', 'torch._inductor.utils']"


def printed(*lines):
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_steps_and_a_profile_import_no_compiler_and_are_the_same():
    ask = f"print(losses, [hasattr(sys.modules.get(name), '__file__') for name in {PARTS}])"
    losses, _, whole = printed(STEPS, ask).rpartition(" [")
    assert whole == "True, True, True]"  # or torch has changed, and nothing is to be postponed
    assert printed(POSTPONE, STEPS, ask) == f"{losses} [False, False, False]"


COUNT = """
from bench.config import RunConfig
from bench.cost import config_complexity
config = RunConfig(arch="resnet18", backend="cpu", image_size=64, batch_size=2)
print(config_complexity(config).model_dump_json())
"""


def test_a_count_on_fake_tensors_imports_no_compiler_and_is_the_same(tmp_path, monkeypatch):
    whole = "import torch._dynamo, torch._inductor"
    ask = f"import sys; print([hasattr(sys.modules.get(name), '__file__') for name in {PARTS}])"
    found = []
    for number, before in enumerate([whole, ""]):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / str(number)))  # counted, not read
        found.append(printed(before, COUNT, ask).splitlines())
    assert found[0] == [found[1][0], "[True, True, True]"]
    assert found[1][1] == "[False, False, False]"


def test_a_fake_tensor_with_symbols_has_the_compilers_own_source():
    fake = """
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
with FakeTensorMode(shape_env=ShapeEnv()) as mode:
    print(mode.from_tensor(torch.ones(3, 4)).shape, mode.from_tensor(torch.tensor(5)).item())
"""
    assert printed(POSTPONE, fake) == printed(fake)


def test_what_compiles_later_has_the_compiler_and_asks_it_again():
    compiled = """
asked = torch._dynamo.disable
print(torch.compile(lambda x: 2 * x, backend="eager")(torch.ones(2)).tolist())
print(asked is torch._dynamo.disable, torch._dynamo.disable.__module__)
step()
wrapped = [
    made is function
    for function in left_alone
    if (made := vars(function).get("__dynamo_disable")) is not None
]
print(len(wrapped) > 0, any(wrapped))
"""
    watch = """
from bench.training import postponed_compiler
left_alone = []
class Kept(list):
    def append(self, function):
        left_alone.append(function)
        super().append(function)
postponed_compiler._left_alone = Kept()
"""
    assert printed(POSTPONE, watch, STEPS, compiled).splitlines() == [
        "[2.0, 2.0]",
        "False torch._dynamo.decorators",
        "True False",
    ]


@pytest.mark.parametrize(
    "asking",
    [
        "import torch._dynamo.testing as asked",
        "from torch._dynamo import source as asked",
        "import torchvision; from torch._dynamo import utils as held; " + OF_HELD,
        "import torch._dynamo.utils as held; " + OF_HELD,
        "import torch._inductor.compile_fx as asked",
        "import torch; asked = torch._inductor.utils",
    ],
)
def test_any_other_import_finds_the_whole_package(asking):
    check = """
import sys
assert sys.modules[asked.__name__] is asked, asked
assert asked.__spec__.origin == asked.__file__
import torch
package = asked.__name__.rpartition(".")[0]
assert type(sys.modules[package]) is type(sys)
from torchvision.ops.roi_align import is_compile_supported
print(torch._dynamo.is_compiling(), is_compile_supported("cpu"))
"""
    assert printed(POSTPONE, asking, check) == "False True"
