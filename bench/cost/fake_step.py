"""One training step on fake tensors: every op is dispatched, nothing is computed or allocated."""

from __future__ import annotations

import copy
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, get_args
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeCopyMode,
    FakeTensor,
    FakeTensorMode,
)
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._pytree import tree_leaves, tree_map_only
from typing_extensions import Self

from bench.config import split_arch
from bench.cost.cuda_rules import cuda_rules
from bench.cost.masks import KnownValues
from bench.cost.op_table import OpMode, first_line, quiet_torch
from bench.cost.step_tracer import ASK_VALUE, RecordedCalls, StepTracer, in_recomputation
from bench.errors import UserError, one_line
from bench.records import MemoryFootprint, Phase, StepSpec
from bench.records.complexity import SCALED_PRODUCT
from bench.records.profile import CASTS
from bench.training.fp8 import multiply_in_fp8
from bench.training.step import (
    ARITHMETIC,
    Fp32,
    Phases,
    TrainingStep,
    keep_depthwise_in_fp32,
    make_optimizer,
)
from bench.training.workloads import Workload, find_workload

_ALLOCATE = frozenset({torch.ops.aten.empty.memory_format, torch.ops.aten.empty_strided.default})

#: The fake device: its ops are on every machine, and their shapes are those of any device.
_DEVICE = "cpu"

#: By a word of torch's error: work that depends on values, lengths or functions of Python.
_NOT_COUNTED = ("Sparse", "shape_env", "FlexAttention")
_PHASES: dict[str, Phase] = {phase: phase for phase in get_args(Phase)}


@dataclass(frozen=True)
class RecordedStep(RecordedCalls):
    """What one step did, and what it holds in memory.

    `workload` says what a sample is, `model` has the modules that the calls belong to.
    """

    parameters: int
    activations: int | None
    memory: MemoryFootprint
    workload: Workload
    model: torch.nn.Module


def record_step(
    spec: StepSpec, *, grad_accum_steps: int = 1, beside: AbstractContextManager[Any] | None = None
) -> RecordedStep:
    """Run the training step that is measured on fake tensors, its momentum already there.

    With `grad_accum_steps` it has as many forward and backward passes, each of `spec.batch_size`.
    A mode of torch's `beside` ours sees the same ops.
    Raises `UserError` where the model cannot be built or run at this size.
    """
    fake = FakeTensorMode(allow_fallback_kernels=False)
    known = KnownValues()
    workload, model = fake_workload(spec, fake, known)
    if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
        raise UserError(
            f"arch={spec.arch!r}: TorchScript does not run on fake tensors, so its cost is not "
            "known; use the module without torch.jit.script"
        )
    if spec.depthwise_fp32:
        keep_depthwise_in_fp32(model)
    in_fp8 = multiply_in_fp8(model) if spec.resolved_math_mode == "fp8" else frozenset()
    modules = ModulePaths(model)
    tracer = StepTracer(modules.current, known)
    weights = [*model.parameters(), *model.buffers()]
    autocasts = spec.precision not in ("fp32", "tf32")
    mode = spec.resolved_math_mode if autocasts else "fp32"
    rules = cuda_rules() if spec.backend == "cuda" else nullcontext()
    with _model_errors(spec):
        saved = SavedTensors(tracer, weights)
        hooks = torch.autograd.graph.saved_tensors_hooks(saved.note, lambda tensor: tensor)
        unhooked = patch.object(torch.autograd.graph, "disable_saved_tensors_hooks", saved.unhooked)
        with rules, fake, beside or nullcontext(), modules, tracer, hooks, unhooked:
            # A fused update takes no complex numbers.
            fused = spec.fused_optimizer and not any(p.is_complex() for p in model.parameters())
            optimizer = make_optimizer(model, spec.optimizer, fused=fused)
            state = _optimizer_state(model, optimizer)
            step = TrainingStep(
                workload,
                model,
                optimizer,
                ARITHMETIC.get(mode, Fp32)(_DEVICE),
                grad_accum_steps=grad_accum_steps,
                phases=_Traced(tracer, saved),
            )
            tracer.makes_batch = True
            batch = workload.batch(spec.batch_size)
            tracer.makes_batch = False
            for tensor in (*weights, *state):  # which the step holds from its start
                tracer.values.key(tensor)
            for _ in range(grad_accum_steps):
                step.accumulate(batch)
            gradients_bytes = sizes_bytes(p.grad for p in model.parameters() if p.grad is not None)
            step.update()
            lasting = [*map(tracer.values.read, (*weights, *state))]
    if spec.resolved_math_mode == "fp8":
        _label_casts(tracer, in_fp8, spec)
    return RecordedStep(
        **vars(tracer.recorded(frozenset(access.value for access in lasting if access))),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        activations=sum(saved.elements.values()) if saved.all_noted else None,
        memory=MemoryFootprint(
            weights_bytes=sizes_bytes(model.parameters()) + sum(saved.copies_bytes.values()),
            gradients_bytes=gradients_bytes,
            optimizer_bytes=sizes_bytes(state),
            activations_bytes=sum(saved.sizes_bytes.values()),
            peak_bytes=tracer.values.peak_bytes,
        ),
        workload=workload,
        model=model,
    )


def _label_casts(tracer: StepTracer, layers: frozenset[str], spec: StepSpec) -> None:
    """Give a label of their own to the calls that `layers` in fp8 add to their products.

    Raises `UserError` where no product is in fp8.
    """
    if all(call.op != SCALED_PRODUCT for call in tracer.calls):
        raise UserError(
            f"precision={spec.precision!r}: no linear layer of {spec.arch} has sizes that are "
            f"multiples of 16 at a batch of {spec.batch_size}; use amp, or another batch_size"
        )
    for place, call in enumerate(tracer.calls):
        is_product = call.op == "sum" or any(item.macs for item in call.passes)
        if call.module in layers and not is_product:
            tracer.calls[place] = replace(call, label=CASTS)


class _Traced(Phases):
    """Sets in the tracer which phase of the step runs."""

    def __init__(self, tracer: StepTracer, saved: SavedTensors) -> None:
        self._tracer = tracer
        self._saved = saved

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Record what is dispatched as part of the phase."""
        self._tracer.phase = _PHASES.get(name)
        if name == "backward" and not self._saved.all_noted:
            self._saved.note_living()
        yield
        self._tracer.phase = None


class ModulePaths:
    """While active, follows which modules of `model` run, by their paths in it.

    An op of the forward pass belongs to the innermost module that runs. autograd numbers its nodes
    in the order in which the forward pass makes them: the number of a node that runs says which
    module made it. A sum of gradients of one tensor belongs to the module whose gradient came last.

    Numbers are each thread's own: forward and backward pass must run in one, as on a CPU.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._paths = {id(module): path for path, module in model.named_modules()}
        self._owners = {
            id(parameter): name.rpartition(".")[0] for name, parameter in model.named_parameters()
        }
        self._running: list[str | None] = [None]
        self._first_nodes: list[int] = []
        self._makers: list[str | None] = []

    def __enter__(self) -> Self:
        self._hooks = (
            register_module_forward_pre_hook(self._begin),
            register_module_forward_hook(self._end, always_call=True),
        )
        return self

    def __exit__(self, *error: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def current(self) -> str | None:
        """Return the path of the module that the op belongs to; None outside of the model."""
        if len(self._running) > 1:
            return self._running[-1]
        node: Any = torch._C._current_autograd_node()
        if node is None:
            return None
        owner = self._owners.get(id(getattr(node, "variable", None)))
        if owner is not None:  # it adds to a parameter's gradient
            return owner
        index = bisect_right(self._first_nodes, node._sequence_nr()) - 1
        return self._makers[index] if index >= 0 else None

    def _begin(self, module: torch.nn.Module, args: object) -> None:
        self._running.append(self._paths.get(id(module), self._running[-1]))
        self._note()

    def _end(self, module: torch.nn.Module, args: object, output: object) -> None:
        self._running.pop()
        self._note()

    def _note(self) -> None:
        """The nodes that come now are made by the module that runs now."""
        self._first_nodes.append(torch._C._autograd._get_sequence_nr())
        self._makers.append(self._running[-1])


class SavedTensors:
    """The distinct storages that autograd saves, by their keys, weights left out.

    What the backward pass computes again is not kept between the two passes, so it does not count.
    `elements` has no vectors either: these are not an image's, but the statistics of a batch norm's
    channels, or the labels. `copies_bytes` are copies of weights, such as those cast to 16 bits.
    Transforms of `torch.func` save unseen: then not `all_noted`, and all that the forward pass has
    made and still holds stands for what is saved.
    """

    all_noted = True

    def __init__(self, tracer: StepTracer, weights: Sequence[torch.Tensor]) -> None:
        self._tracer = tracer
        self._given = set(map(tracer.values.key, weights))
        tracer.weights |= self._given
        self.copies_bytes: dict[int, int] = {}
        self.elements: dict[int, int] = {}
        self.sizes_bytes: dict[int, int] = {}

    def note(self, tensor: torch.Tensor) -> torch.Tensor:
        """Note a tensor that is saved, and return it."""
        if in_recomputation(recorded=True):  # hooks run with gradients off
            return tensor
        key = self._tracer.values.key(tensor)
        size_bytes = tensor.untyped_storage().nbytes()
        if not self._tracer.is_weight(tensor):
            self.sizes_bytes[key] = size_bytes
            if tensor.dim() > 1:
                self.elements[key] = size_bytes // tensor.element_size()
        elif key not in self._given:
            self.copies_bytes[key] = size_bytes
        return tensor

    def note_living(self) -> None:
        """Note what the step has made and still holds."""
        for key, value in self._tracer.values.living(made=True).items():
            if key not in self._tracer.weights:
                self.sizes_bytes[key] = self._tracer.values.sizes_bytes[value]

    @contextmanager
    def unhooked(self, reason: str) -> Iterator[None]:
        """Do as torch's context of this kind, which refuses to begin within hooks such as ours."""
        self.all_noted = False
        before = torch._C._autograd._saved_tensors_hooks_get_disabled_error_message()
        torch._C._autograd._saved_tensors_hooks_disable(reason, False)
        try:
            yield
        finally:
            torch._C._autograd._saved_tensors_hooks_enable()
            if before is not None:
                torch._C._autograd._saved_tensors_hooks_disable(before, False)


def _optimizer_state(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> list[torch.Tensor]:
    """Return the tensors that `optimizer` keeps from step to step, made by an unrecorded one."""
    for parameter in filter(lambda parameter: parameter.requires_grad, model.parameters()):
        parameter.grad = torch.empty_like(parameter)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    kept = [value for state in optimizer.state.values() for value in state.values()]
    return [value for value in kept if isinstance(value, torch.Tensor)]


@contextmanager
def _model_errors(spec: StepSpec) -> Iterator[None]:
    try:
        with quiet_torch():
            yield
    except UserError:
        raise
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise UserError(
            f"arch={spec.arch!r}: its step asks for the values of tensors ({error.func}), so its "
            "cost depends on the data; make it depend on shapes alone"
        ) from error
    except Exception as error:
        reason = first_line(error)
        if any(word in reason for word in _NOT_COUNTED):
            raise UserError(
                f"arch={spec.arch!r}: sparse tensors, nested ones and flex_attention are not "
                "counted; use dense tensors (nn.Embedding(sparse=False)), pad the sequences to "
                "one length, and use scaled_dot_product_attention"
            ) from error
        sizes = ("batch_size", "image_size", "seq_len")
        asked = [f"{name}={size}" for name in sizes if (size := getattr(spec, name)) is not None]
        raise UserError(
            f"arch={spec.arch!r} {' '.join(asked)}: its training step cannot run ({reason}); "
            "try another size, or check the model"
        ) from error


def sizes_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes of all elements."""
    return sum(tensor.nbytes for tensor in tensors)


def fake_workload(
    spec: StepSpec, fake: FakeTensorMode, known: KnownValues | None = None
) -> tuple[Workload, torch.nn.Module]:
    """Return the workload that `spec` names, and its model with the fake tensors of `fake`.

    The values of buffers, which no data changes, are put into `known`.
    The state of torch's random numbers is left as it was. Raises `UserError`.
    """
    with torch.random.fork_rng(devices=[]):
        workload = find_workload(spec.arch, image_size=spec.image_size, seq_len=spec.seq_len)
        # A user's module may keep tensors, or look at their values: it is built for real.
        is_own = split_arch(spec.arch)[0] == "own"
        with nullcontext() if is_own else _fake_weights(fake):
            model = workload.build()
    # A generator's state must be a real tensor.
    kept = getattr(workload.step, "__dict__", {}).values()
    memo: dict[int, Any] = {id(v): v for v in kept if isinstance(v, torch.Generator)}
    try:
        with FakeCopyMode(fake):
            # Together: a user's loss may use the weights of the model.
            copied = copy.deepcopy((workload, model), memo)
    except Exception as error:
        raise UserError(
            f"arch={spec.arch!r}: it cannot be copied to fake tensors ({one_line(error)}), so its "
            "cost is not known; keep open files, locks and the like out of its attributes"
        ) from error
    for real in memo.get(id(memo), ()):
        if known and type(real) is torch.Tensor and not real.requires_grad:
            known.exact[memo[id(real)]] = real
    return copied


@contextmanager
def _fake_weights(fake: FakeTensorMode) -> Iterator[None]:
    """Build models with fake weights, also from copies of them, as timm's pruned ones are."""
    with _FakeWeights(fake), FakeCopyMode(fake):
        yield


class _FakeWeights(OpMode):
    """Allocates fake tensors, and leaves small computations on real ones as they are.

    Layers allocate their weights and then fill them; regnets compute their widths with tensors.
    """

    def __init__(self, fake: FakeTensorMode) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._fake = fake

    def dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the op, for real or not."""
        if func in _ALLOCATE:
            with self._fake:
                return func(*args, **kwargs)
        asked = func is ASK_VALUE and isinstance(args[0], FakeTensor)
        if asked and args[0].dtype == torch.bool:
            return False  # an initialiser asks whether to draw again: there is nothing to draw
        given = tree_leaves((args, kwargs))
        if any(isinstance(value, FakeTensor) for value in given):  # a small one into an allocated
            args, kwargs = tree_map_only(torch.Tensor, self._as_fake, (args, kwargs))
        return func(*args, **kwargs)

    def _as_fake(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if isinstance(tensor, FakeTensor) else self._fake.from_tensor(tensor)
