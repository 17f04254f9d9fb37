"""Products of 8-bit floats: by hand, against bf16, in the cost model, and in a step's account."""

import copy
from dataclasses import replace

import pytest
import torch
from fakes import Card, ScriptedClock

from analysis.account import parts_of_ops
from analysis.roofs import Roof
from bench.config import RunConfig
from bench.cost.estimate import record_step, step_complexity
from bench.errors import UnsupportedError, UserError
from bench.records import StepSpec
from bench.records.complexity import SCALED_PRODUCT
from bench.records.journal import JournalWriter
from bench.records.profile import CASTS
from bench.training.devices import CpuDevice, CudaDevice, open_device
from bench.training.fp8 import multiply_in_fp8
from bench.training.step import open_precision
from bench.worker.step_setup import StepSetup

#: What both formats have; the largest is their largest number over a power of two.
EXACT = torch.tensor([1.75, -1.5, 1.0, 0.5, -0.25, 0.0, 1.25, -1.75])


def grid(rows, columns, shift):
    """Numbers that fp8 holds, none next to itself."""
    places = torch.arange(rows * columns).mul(3).add(shift).remainder(len(EXACT))
    return EXACT[places].view(rows, columns).clone()


def linear(weight, bias=True):
    layer = torch.nn.Linear(*weight.T.shape, bias=bias)
    layer.weight.data = weight
    assert multiply_in_fp8(layer) == {""}
    return layer


def test_what_fp8_holds_is_multiplied_exactly_forward_and_backward():
    layer, inputs, grad = linear(grid(32, 16, 1)), grid(48, 16, 0), grid(48, 32, 2)
    inputs.requires_grad_()
    outputs = layer(inputs.view(3, 16, 16))
    by_hand = inputs.detach() @ layer.weight.detach().T + layer.bias.detach().bfloat16().float()
    assert (outputs.dtype, outputs.shape) == (torch.bfloat16, (3, 16, 32))
    torch.testing.assert_close(outputs.view(48, 32).float(), by_hand, rtol=2**-8, atol=0)
    outputs.view(48, 32).backward(grad.bfloat16())
    assert torch.equal(inputs.grad, grad @ layer.weight.detach())
    assert torch.equal(layer.weight.grad, grad.T @ inputs.detach())
    assert torch.equal(layer.bias.grad, grad.sum(0))


def test_inputs_and_weights_have_four_significant_bits_and_gradients_three():
    layer = linear(torch.eye(16), bias=False)
    inputs = torch.zeros(16, 16)
    inputs[0, 0], inputs[1, 1], inputs[2, 2] = 448, 17, 19  # of 448 at most: a scale of 1
    inputs.requires_grad_()
    outputs = layer(inputs)
    assert outputs.diagonal()[:3].tolist() == [448, 16, 20]
    grad = torch.zeros(16, 16)
    grad[0, 0], grad[1, 1], grad[2, 2] = 57344, 9, 11
    outputs.backward(grad.bfloat16())
    assert inputs.grad.diagonal()[:3].tolist() == [57344, 8, 12]


@pytest.mark.parametrize("size", [0.0, 1e-20, 3e-7, 1.0, 6e4, 1e30])
def test_no_size_of_numbers_overflows_or_vanishes(size):
    torch.manual_seed(0)
    layer = linear(torch.randn(32, 32), bias=False)
    inputs = (size * torch.randn(32, 32)).requires_grad_()
    outputs = layer(inputs)
    exact = inputs.detach() @ layer.weight.detach().T
    assert (outputs.float() - exact).norm() <= 0.06 * exact.norm()
    outputs.backward(torch.full_like(outputs, 3e-5))
    assert torch.isfinite(inputs.grad).all()


def gradients(model, inputs):
    with torch.autocast("cpu", torch.bfloat16):
        loss = torch.nn.functional.cross_entropy(model(inputs), torch.arange(len(inputs)) % 48)
    loss.backward()
    return loss.detach(), [parameter.grad for parameter in model.parameters()]


def test_a_model_has_the_gradients_of_bf16_but_for_what_three_bits_round():
    torch.manual_seed(0)
    plain = torch.nn.Sequential(
        torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 48)
    )  # fmt: skip
    in_fp8, inputs = copy.deepcopy(plain), torch.randn(96, 64)
    multiply_in_fp8(in_fp8)
    (loss, ours), (exact, theirs) = gradients(in_fp8, inputs), gradients(plain, inputs)
    assert float(loss) == pytest.approx(float(exact), rel=0.01)
    apart = [float((a - b).norm() / b.norm()) for a, b in zip(ours, theirs, strict=True)]
    assert all(0.0 < one < 0.15 for one in apart), apart
    odd = inputs[:50]  # rows that no multiple of 16 is: as without fp8
    in_fp8.zero_grad(), plain.zero_grad()
    for a, b in zip(gradients(in_fp8, odd)[1], gradients(plain, odd)[1], strict=True):
        assert torch.equal(a, b)


class Users(torch.nn.Linear):
    """A linear layer of somebody's own."""


def test_layers_of_other_sizes_types_and_classes_stay_as_they_are():
    pytest.importorskip("transformers")
    from transformers.pytorch_utils import Conv1D

    codes = torch.nn.Linear(32, 32)
    codes.weight = torch.nn.Parameter(torch.zeros(32, 32, dtype=torch.uint8), requires_grad=False)
    model = torch.nn.ModuleDict(
        {
            "plain": torch.nn.Linear(32, 48),
            "short": torch.nn.Linear(32, 48).bfloat16(),
            "transposed": Conv1D(48, 32),
            "classes": torch.nn.Linear(32, 1000),
            "inputs": torch.nn.Linear(28, 32),
            "long": torch.nn.Linear(32, 32).double(),
            "users": Users(32, 32),
            "codes": codes,
            "convolution": torch.nn.Conv2d(16, 16, 1),
        }
    )
    assert multiply_in_fp8(model) == {"plain", "short", "transposed"}
    inputs, layer = torch.randn(16, 32), model["transposed"]
    with torch.no_grad():
        layer.weight.mul_(50)
    outputs = layer(inputs)
    exact = inputs @ layer.weight.detach() + layer.bias.detach()
    assert (outputs - exact).norm() < 0.06 * exact.norm()
    outputs.sum().backward()
    assert layer.weight.grad.shape == (32, 48)


def test_only_a_device_that_multiplies_in_fp8_takes_it(monkeypatch):
    card = Card(ScriptedClock())
    for device in (open_device("cpu"), card):
        needs = rf"'fp8': not on this {device.backend} device; .* compute capability 8\.9 or more"
        with pytest.raises(UnsupportedError, match=needs):
            open_precision("fp8", device)
    capabilities = {(8, 6): False, (8, 9): True, (9, 0): True, (12, 0): True}
    for capability, native in capabilities.items():
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, found=capability: found)
        assert CudaDevice.native_math(card, "fp8") is native
    monkeypatch.setattr(torch.version, "hip", "6.4")  # whose 8-bit floats are others
    assert not CudaDevice.native_math(card, "fp8")
    card.modes = ("fp8",)
    assert open_precision("fp8", card).math_mode == "fp8"


def test_the_products_of_a_step_and_what_they_add_by_hand():
    """One layer of 48 x 64 on 16 rows; the next has 1000 outputs and stays in bf16."""
    spec = StepSpec("small_models:two_linear", 16, "fp8", image_size=8)
    step = record_step(spec)
    calls, sizes_bytes = [call for call in step.calls if call.module == "2"], step.sizes_bytes
    products = [call.work(sizes_bytes) for call in calls if call.op == SCALED_PRODUCT]
    macs = 16 * 48 * 64
    assert [work["flops"] for work in products] == [2 * macs] * 2  # images need no gradient
    scales = 2 * 4
    assert [work["eager_bytes"] for work in products] == [
        16 * 48 + 48 * 64 + scales + 2 * 64 + 2 * 16 * 64,  # a byte a number; bias, result in bf16
        64 * 16 + 16 * 48 + scales + 4 * 64 * 48,  # the gradient of the weights is in fp32
    ]
    casts = [call for call in calls if call.label == CASTS]
    assert {call.op for call in calls} - {call.op for call in casts} == {SCALED_PRODUCT, "sum"}
    by_op = {
        (call.phase, call.op, call.shapes): call.work(sizes_bytes)["eager_bytes"] for call in casts
    }
    weights = ((64, 48),)
    assert by_op["forward", "linalg_vector_norm", weights] == 4 * 64 * 48 + 4
    assert by_op["forward", "_to_copy", weights] == (4 + 1) * 64 * 48
    assert by_op["backward", "clone", ((64, 16),)] == 2 * 16 * 64
    whole = step_complexity(spec)
    assert whole.step_flops == step_complexity(replace(spec, precision="amp-bf16")).step_flops
    left = 3 * 2 * 16 * 64 * 1000
    assert whole.half_share == pytest.approx(left / (left + 2 * 2 * macs))


@pytest.mark.parametrize(("arch", "batch"), [("two_linear", 8), ("linear", 16)])
def test_a_model_without_such_a_layer_is_refused(arch, batch):
    with pytest.raises(UserError, match=r"precision='fp8'.* multiples of 16.*; use amp"):
        step_complexity(StepSpec(f"small_models:{arch}", batch, "fp8"))


@pytest.fixture
def setup_of(monkeypatch, tmp_path):
    """Set up a step on a processor that is taken for one with fp8: torch computes it there too."""
    native = CpuDevice.native_math
    monkeypatch.setattr(
        CpuDevice, "native_math", lambda self, mode: mode == "fp8" or native(self, mode)
    )

    def made(**changes):
        known = {"arch": "small_models:two_linear", "backend": "cpu", "cudnn_benchmark": False}
        known |= {"precision": "fp8", "batch_size": 64, "image_size": 8}
        config = RunConfig(**{**known, **changes})
        return StepSetup(config, JournalWriter(tmp_path / "journal.jsonl"))

    return made


def test_a_step_in_fp8_trains_as_in_amp_and_its_account_has_the_casts(setup_of):
    losses = {}
    for precision in ("fp8", "amp-bf16"):
        with setup_of(precision=precision).opened() as ready:
            losses[precision] = [float(ready.step()) for _ in range(5)]
    assert losses["fp8"] == pytest.approx(losses["amp-bf16"], rel=0.01)
    assert losses["fp8"] != losses["amp-bf16"]
    setup = setup_of()
    with setup.opened() as ready:
        ready.step()
        ops = ready.profile_ops(1).ops
    resolved = setup.resolved
    assert (resolved.math_mode, resolved.autocast_dtype) == ("fp8", "bf16")
    assert resolved.departure("fp8") is None
    assert setup.complexity().math_mode == "fp8"
    spent_s = sum(op.exclusive_s for op in ops if op.label == CASTS)
    parts = {part.name: part for part in parts_of_ops(ops, Roof(1e15, 1e12, half_flops_per_s=5e14))}
    assert parts[CASTS].time_s == pytest.approx(spent_s) != 0
    assert parts[CASTS].kind == "ops"
    of_ops_s = sum(op.exclusive_s for op in ops)
    assert sum(part.time_s for part in parts.values()) == pytest.approx(of_ops_s)


def test_a_step_that_has_nothing_for_fp8_is_refused_before_it_runs(setup_of):
    with pytest.raises(UserError, match=r"precision='fp8'"), setup_of(batch_size=8).opened():
        pass
