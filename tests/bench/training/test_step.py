"""The training step trains: the same function under every knob, and by hand."""

import math
import os
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fakes import Card, QueueingDevice, ScriptedClock
from refusals import refusal
from small_models import CLASSIFIER, batch_of_ten_classes, resolved, ten_classes
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from bench.config import RunConfig
from bench.cost.estimate import step_complexity
from bench.errors import UnsupportedError
from bench.records import StepSpec
from bench.records.journal import JournalWriter
from bench.training.devices import CpuDevice, CudaDevice, MpsDevice, open_device
from bench.training.step import (
    LEARNING_RATE,
    WEIGHT_DECAY,
    AmpFp16,
    Fp32,
    GraphedStep,
    NvtxPhases,
    Phases,
    Tf32,
    TrainingStep,
    keep_depthwise_in_fp32,
    make_optimizer,
    math_mode_of,
    open_precision,
    weight_modes,
)
from bench.worker.step_setup import StepSetup


def stored(dtype, trained=torch.float32):
    """A frozen layer of codes with an adapter, as quantised bases have them."""
    base, adapter = torch.nn.Linear(64, 64), torch.nn.Linear(64, 2, dtype=trained)
    codes = torch.zeros(64, 64).to(dtype)
    base.weight = torch.nn.Parameter(codes, requires_grad=False)
    return torch.nn.Sequential(base, adapter)


@pytest.mark.parametrize(
    ("model", "inputs", "mode"),
    [
        (stored(torch.uint8), [], "fp32"),
        (stored(torch.int8), [torch.ones(1, dtype=torch.bfloat16)], "bf16"),
        (stored(torch.float8_e4m3fn, torch.bfloat16), [], "bf16"),
        (stored(torch.bfloat16), [], "bf16"),  # the base computes most
        (torch.nn.Sequential(torch.nn.Embedding(99, 9), torch.nn.Linear(2, 2).bfloat16()), [],
         "bf16"),
        (torch.nn.Embedding(9, 9).double(), [], "fp64"),
        (torch.nn.Linear(2, 2, dtype=torch.complex64), [], "fp32"),
        (torch.nn.Flatten(), [], "fp32"),
    ],
)  # fmt: skip
def test_the_type_that_computes_decides_and_not_that_of_storage(model, inputs, mode):
    weights = weight_modes(model.modules(), *inputs)
    assert math_mode_of(weights, "fp32", autocast=False) == mode
    under_autocast = math_mode_of(weights, "fp16", autocast=True)
    assert under_autocast == ("fp64" if mode == "fp64" else "fp16")


def test_one_step_is_sgd_by_hand():
    model, reference = ten_classes(), ten_classes()
    images, labels = batch_of_ten_classes()
    names = []

    class Names(Phases):
        def phase(self, name):
            names.append(name)
            return super().phase(name)

    optimizer = make_optimizer(model, "sgd", fused=True)
    loss = TrainingStep(CLASSIFIER, model, optimizer, Fp32(), phases=Names())(
        lambda: (images, labels)
    )
    by_hand = functional.cross_entropy(reference(images), labels)
    gradients = torch.autograd.grad(by_hand, list(reference.parameters()))
    assert float(loss) == pytest.approx(by_hand.item())
    for new, old, gradient in zip(
        model.parameters(), reference.parameters(), gradients, strict=True
    ):
        # First step of SGD with momentum: the buffer is the gradient itself.
        expected = old - LEARNING_RATE * (gradient + WEIGHT_DECAY * old)
        torch.testing.assert_close(new, expected)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert names == ["data", "forward", "backward", "optimizer"]


@pytest.fixture
def fresh_memory_is_nan():
    torch.use_deterministic_algorithms(True)  # which fills what nothing has written
    assert torch.utils.deterministic.fill_uninitialized_memory
    yield
    torch.use_deterministic_algorithms(False)


def test_a_first_step_that_overflows_leaves_the_fused_optimizer_as_the_plain_one(
    fresh_memory_is_nan,
):
    images, labels = torch.full((8, 4), 3e4), torch.zeros(8, dtype=torch.int64)
    losses = {}
    for fused in (True, False):
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 3)
        step = TrainingStep(
            CLASSIFIER, model, make_optimizer(model, "sgd", fused=fused), AmpFp16("cpu")
        )
        batches = iter([(images, labels), *[(images / 3e4, labels)] * 5])
        losses[fused] = [float(step(lambda batches=batches: next(batches))) for _ in range(6)]
    assert losses[True] == pytest.approx(losses[False])
    assert all(map(math.isfinite, losses[True][1:]))
    assert losses[True][-1] < losses[True][1]


def test_where_the_fused_optimizer_cannot_scale_it_is_left_out_or_refused(monkeypatch):
    apple = QueueingDevice(ScriptedClock())
    apple.fuses_loss_scaling = MpsDevice.fuses_loss_scaling
    for device, fused in ((apple, False), (Card(ScriptedClock()), True)):
        precision = open_precision("amp-fp16", device)
        found = resolved(RunConfig(precision="amp-fp16"), device, precision)
        assert found.fused_optimizer is fused
    monkeypatch.setattr(CpuDevice, "fuses_loss_scaling", False)
    asked = {"precision": "amp-fp16", "fused_optimizer": "true", "cudnn_benchmark": False}
    config = RunConfig(arch="small_models:linear", backend="cpu", batch_size=1, **asked)
    setup = StepSetup(config, JournalWriter(Path(os.devnull)))
    with (
        pytest.raises(UnsupportedError, match=r"fused_optimizer=true.*fused_optimizer=auto"),
        setup.opened(),
    ):
        pass


def test_two_half_batches_accumulate_to_the_whole():
    whole, halves = ten_classes(), ten_classes()
    images, labels = batch_of_ten_classes()
    TrainingStep(CLASSIFIER, whole, make_optimizer(whole, "sgd", fused=False), Fp32())(
        lambda: (images, labels)
    )
    parts = iter([(images[:4], labels[:4]), (images[4:], labels[4:])])
    step = TrainingStep(
        CLASSIFIER, halves, make_optimizer(halves, "sgd", fused=False), Fp32(), grad_accum_steps=2
    )
    step(lambda: next(parts))
    for one, other in zip(whole.parameters(), halves.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_tf32_is_on_only_in_its_own_mode_whatever_was_set_before():
    Tf32().apply()
    assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    assert torch.backends.cudnn.conv.fp32_precision == "tf32"
    Fp32().apply()
    assert torch.backends.cuda.matmul.fp32_precision == "ieee"
    assert torch.backends.cudnn.conv.fp32_precision == "ieee"
    assert not torch.backends.cuda.matmul.allow_tf32
    assert not torch.backends.cudnn.allow_tf32


def test_what_is_not_here_is_refused_with_a_remedy(monkeypatch):
    cpu, card = open_device("cpu"), Card(ScriptedClock())
    with pytest.raises(UnsupportedError, match=r"precision='tf32'.*use fp32 or amp"):
        open_precision("tf32", cpu)
    for name in ("fp32", "amp", "amp-bf16", "amp-fp16"):
        open_precision(name, cpu)
    card.modes = ("fp32", "tf32")
    open_precision("tf32", card)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    assert not CudaDevice.native_math(card, "tf32")  # its roof would be fp32's
    monkeypatch.delenv("NVIDIA_TF32_OVERRIDE")
    assert CudaDevice.native_math(card, "tf32")
    missing = "mps" if not torch.backends.mps.is_available() else "cuda"
    with pytest.raises(UnsupportedError, match=rf"backend='{missing}'.*use backend="):
        open_device(missing)
    with pytest.raises(UnsupportedError, match="cuda_graphs"):
        GraphedStep(None, Fp32(), QueueingDevice(ScriptedClock()))


@pytest.mark.parametrize(
    ("modes", "amp"),
    [
        (("fp32", "fp16"), "fp16"),  # T4
        (("fp32", "fp16", "tf32", "bf16"), "bf16"),  # H100
        (("fp32", "bf16"), "bf16"),  # a processor without fp16
        (("fp32",), "fp32"),  # and one with neither
    ],
)
def test_amp_is_what_the_device_computes_natively_and_emulation_is_asked_for_by_name(modes, amp):
    card = Card(ScriptedClock())
    card.modes = modes
    found = resolved(RunConfig(precision="amp"), card, open_precision("amp", card))
    assert (found.math_mode, found.native_math) == (amp, True)
    assert found.autocast_dtype == ("none" if amp == "fp32" else amp)
    assert found.depthwise_fp32 is False
    assert found.departure("amp") == ("amp-in-fp32" if amp == "fp32" else None)
    for name in ("amp-bf16", "amp-fp16"):
        asked = resolved(RunConfig(precision=name), card, open_precision(name, card))
        mode = name.removeprefix("amp-")
        assert (asked.math_mode, asked.native_math) == (mode, mode in modes)
        assert (asked.departure(name) is None) == (mode in modes)


@pytest.mark.parametrize(
    ("variables", "native"),
    [
        ({}, {"bf16": True, "fp16": True}),
        ({"ONEDNN_MAX_CPU_ISA": "AVX2"}, {"bf16": False, "fp16": False}),
        ({"DNNL_MAX_CPU_ISA": "avx512_core"}, {"bf16": False, "fp16": False}),
        ({"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}, {"bf16": True, "fp16": False}),
        ({"ONEDNN_MAX_CPU_ISA": "DEFAULT"}, {"bf16": True, "fp16": True}),
    ],
)
def test_a_processor_has_the_instructions_that_the_kernels_may_use(monkeypatch, variables, native):
    here = ("avx512_bf16", "avx512_fp16")
    monkeypatch.setattr("bench.training.devices._capability", here.__contains__)
    for name in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert {mode: open_device("cpu").native_math(mode) for mode in native} == native
    assert open_device("cpu").native_math("fp32")


class ScriptedGraph:
    """What torch.cuda is asked for around a capture; a replay does nothing."""

    def __init__(self, monkeypatch):
        self.modes, self.card = [], Card(ScriptedClock())
        self.card.supports_cuda_graphs = True
        stream = SimpleNamespace(wait_stream=lambda other: None)
        for name in ("Stream", "current_stream"):
            monkeypatch.setattr(torch.cuda, name, lambda: stream)
        monkeypatch.setattr(torch.cuda, "stream", self._context)
        monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay=lambda: None))
        monkeypatch.setattr(torch.cuda, "graph", self._capture)

    @contextmanager
    def _context(self, stream):
        yield

    @contextmanager
    def _capture(self, graph, capture_error_mode):
        self.modes.append(capture_error_mode)
        yield


@pytest.mark.parametrize("reuses_batch", [False, True])
def test_a_graph_reads_a_copy_of_each_batch_unless_it_is_always_the_same(monkeypatch, reuses_batch):
    captured, seen = ScriptedGraph(monkeypatch), []

    def step(next_batch):
        seen.append(next_batch()[0])
        return torch.tensor(1.0)

    graphed = GraphedStep(step, Fp32(), captured.card, reuses_batch=reuses_batch)
    first = torch.ones(2)
    graphed(lambda: (first, torch.zeros(2)))
    assert captured.modes == ["thread_local"]  # a loader's thread may allocate at the same time
    assert (seen[-1] is first) == reuses_batch
    graphed(lambda: (first if reuses_batch else first + 1, torch.zeros(2)))
    assert float(seen[-1][0]) == (1.0 if reuses_batch else 2.0)


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ("CUDA error: operation not permitted when stream is capturing", UnsupportedError),
        ("operation failed due to a previous error during capture", UnsupportedError),
        ("CUDA error: an illegal memory access was encountered", RuntimeError),
    ],
)
def test_a_step_that_cannot_be_captured_is_unsupported(monkeypatch, message, error):
    captured = ScriptedGraph(monkeypatch)

    def waits(next_batch):
        if captured.modes:
            raise RuntimeError(message)

    with pytest.raises(error, match="cuda_graphs=false" if error is UnsupportedError else message):
        GraphedStep(waits, Fp32(), captured.card, reuses_batch=True)(lambda: (torch.ones(2),))


def test_ranges_for_nvidias_profilers_are_iterations_and_within_them_phases(monkeypatch):
    said = []
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", said.append)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: said.append("end"))
    phases = NvtxPhases()
    with phases.phase("data"):  # warm-up
        pass
    phases.clear()
    for _ in range(2):
        with phases.phase("data"), suppress(KeyError), phases.phase("forward"):
            raise KeyError
        phases.lap()
    iteration = ["iteration", "data", "forward", "end", "end", "end"]
    assert said == ["iteration", "data", "end", "end", *iteration * 2]


@pytest.mark.parametrize(
    ("built_for", "capability", "runs"),
    [
        (["sm_75", "sm_80", "sm_90", "sm_120"], (9, 0), True),
        (["sm_75", "sm_80", "sm_90", "sm_120"], (8, 9), True),  # Ada runs Ampere's
        (["sm_75", "sm_80", "sm_90", "sm_120"], (7, 0), False),  # V100
        (["sm_75", "sm_80", "sm_90"], (12, 0), False),
        (["sm_75", "sm_80", "compute_90"], (12, 0), True),
        (["sm_90a"], (9, 0), True),
        (["gfx90a", "gfx942"], (9, 4), True),
        ([], (9, 0), True),  # a build that does not say
    ],
)
def test_a_card_that_torch_has_no_kernels_for_is_refused(monkeypatch, built_for, capability, runs):
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: built_for)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "Tesla V100")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    if runs:
        assert CudaDevice().torch_device.index == 0
    else:
        with pytest.raises(UnsupportedError, match=r"none for Tesla V100.*older CUDA"):
            CudaDevice()


def test_the_default_configuration_is_the_fast_one():
    device = open_device("cpu")
    found = resolved(RunConfig(), device, Fp32())
    assert (found.batch_size, found.channels_last, found.max_seconds) == (16, True, 30.0)
    assert found.workers == 0
    assert resolved(RunConfig(max_seconds="none"), device, Fp32()).max_seconds == "none"
    assert resolved(RunConfig(arch="inception_v3"), device, Fp32()).image_size == 299
    card = Card(ScriptedClock())
    assert resolved(RunConfig(), card, Fp32()).max_seconds == 600.0
    card.modes = ("fp32", "tf32", "bf16", "fp16")
    card.channels_last = lambda mode: CudaDevice.channels_last(card, mode)
    for precision in ("fp32", "tf32", "amp", "amp-fp16"):  # the layout of tensor cores
        found = resolved(RunConfig(precision=precision), card, open_precision(precision, card))
        assert found.channels_last is (precision != "fp32")


@pytest.fixture
def rich_machine(monkeypatch):
    """A machine with four cards and an Apple GPU."""
    current = [0]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current[0])
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: current.__setitem__(0, index))
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_90"])
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (9, 0))
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)


def test_processes_share_a_processor_and_take_the_card_of_their_number(rich_machine):
    assert open_device("cpu", local_rank=5, devices=64).backend == "cpu"
    assert open_device("auto", devices=4).torch_device == torch.device("cuda", 0)
    assert open_device("cuda", local_rank=3, devices=4).torch_device == torch.device("cuda", 3)
    for number, backend in ((4, "cuda"), (1, "mps")):
        message = refusal(open_device, backend, devices=5, error=UnsupportedError)
        assert message == f"devices=5: torch finds {number} here for backend={backend}; use that"


# What runs in fp32 beside autocast, and what it costs in the model of a step's traffic


class Convolutions(TorchDispatchMode):
    """The type that each convolution is computed in, in their order."""

    def __init__(self):
        super().__init__()
        self.types = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.convolution.default:
            self.types.append(args[0].dtype)
        return func(*args, **(kwargs or {}))


class Users(torch.nn.Conv2d):
    """A convolution of somebody's own."""


def test_only_strided_depthwise_convolutions_are_kept():
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, stride=2),  # strided
        torch.nn.Conv2d(16, 16, 3, groups=16),  # depthwise
        torch.nn.Conv2d(16, 32, 3, groups=4, stride=2),  # grouped
        torch.nn.Sequential(torch.nn.Conv2d(32, 64, 3, groups=32, stride=(1, 2))),  # both
        Users(64, 64, 3, groups=64, stride=2),
        torch.nn.Conv2d(64, 8, 1),
    )
    modules, weights = dict(model.named_modules()), dict(model.named_parameters())
    assert keep_depthwise_in_fp32(model)
    assert dict(model.named_modules()) == modules
    assert all(weights[name] is weight for name, weight in model.named_parameters())
    with torch.autocast("cpu", dtype=torch.bfloat16), Convolutions() as seen:
        output = model(torch.randn(2, 3, 64, 64))
    low, high = torch.bfloat16, torch.float32
    assert seen.types == [low, low, low, high, low, low]
    assert output.dtype == low


@pytest.mark.slow
def test_the_cost_model_counts_the_fp32_copies():
    known = {"batch_size": 4, "image_size": 32, "precision": "amp"}
    spec = StepSpec("small_models:batch_normed", **known)
    plain, kept = (
        step_complexity(replace(spec, depthwise_fp32=choice)) for choice in (False, True)
    )
    assert kept.step_flops == plain.step_flops
    assert kept.eager_bytes > plain.eager_bytes
    assert kept.memory.activations_bytes > plain.memory.activations_bytes


@pytest.mark.slow
def test_a_layer_kept_in_fp32_compiles_into_one_graph():
    layer = torch.nn.Conv2d(4, 4, 3, stride=2, groups=4)
    keep_depthwise_in_fp32(layer)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    images = torch.randn(1, 4, 8, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(compiled(images), layer(images))
        assert layer(images).dtype == torch.bfloat16  # as the layers beside it expect


@pytest.mark.parametrize(("model", "in_use"), [("batch_normed", True), ("linear", False)])
def test_what_was_in_use_says_whether_the_model_has_any(tmp_path, model, in_use):
    config = RunConfig(
        arch=f"small_models:{model}",
        backend="cpu",
        precision="amp-bf16",
        batch_size=1,
        cudnn_benchmark=False,  # of this process: other tests' stays
    )
    setup = StepSetup(config, JournalWriter(tmp_path / "journal.jsonl"))
    with setup.opened() as ready:
        assert ready.resolved.depthwise_fp32 is in_use
    assert setup.resolved == ready.resolved


@pytest.mark.parametrize(
    ("precision", "asked", "on_a_cpu", "elsewhere"),
    [
        ("amp-bf16", "auto", True, False),
        ("amp-bf16", "true", True, True),
        ("amp-bf16", "false", False, False),
        ("fp32", "auto", False, False),
    ],
)
def test_auto_keeps_them_under_amp_on_a_cpu(monkeypatch, precision, asked, on_a_cpu, elsewhere):
    device = open_device("cpu")
    known = RunConfig(precision=precision, depthwise_fp32=asked), device
    assert resolved(*known, open_precision(precision, device)).depthwise_fp32 is on_a_cpu
    monkeypatch.setattr(device, "prefers_fp32_depthwise", False)
    assert resolved(*known, open_precision(precision, device)).depthwise_fp32 is elsewhere
