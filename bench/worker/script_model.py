"""What a script that is not ours trains: found among the objects of its process, never changed."""

from __future__ import annotations

import gc
import hashlib
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Any, Literal, NamedTuple

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data.dataloader import _BaseDataLoaderIter

from bench.config import RunConfig, Sample
from bench.config.resolved import MathMode
from bench.cost.estimate import calls_of, counts_of
from bench.cost.fake_step import sizes_bytes
from bench.cost.step_tracer import LiveStepTracer
from bench.errors import UnsupportedError, UserError, one_line
from bench.machine import value_or_none
from bench.machine.limits import allocator_in_use
from bench.records import Complexity, MemoryFootprint, ResolvedConfig
from bench.records.complexity import DEFAULT_CACHE_BYTES, CallWork
from bench.training.devices import Device, open_device
from bench.training.step import math_mode_of, weight_modes

#: DistributedDataParallel and torch.compile hold the model under these names, and nothing else.
_WRAPPED = ("module", "_orig_mod")
_AUTOCAST: dict[torch.dtype | None, MathMode] = {torch.bfloat16: "bf16", torch.float16: "fp16"}
#: Switches of `torch.backends`.
_CONVOLUTIONS, _PRODUCTS = "cudnn.conv.fp32_precision", "cuda.matmul.fp32_precision"
#: The modules that show what holds for them; others do where a model has none of these.
_OF_KIND: Mapping[str, type[torch.nn.Module]] = {
    _CONVOLUTIONS: torch.nn.modules.conv._ConvNd,
    _PRODUCTS: torch.nn.Linear,
    "cudnn.rnn.fp32_precision": torch.nn.RNNBase,
}
#: Modules that take a batch of sequences, or one sequence without a batch.
_OF_SEQUENCES = (
    torch.nn.RNNBase,
    torch.nn.MultiheadAttention,
    torch.nn.TransformerEncoderLayer,
    torch.nn.TransformerDecoderLayer,
)
_WHOLE = (torch.int32, torch.int64)
#: What objects have that join the samples of another input: graphs and sparse matrices.
_GRAPHS = ("edge_index", "num_nodes", "nnz")
_PLAIN = (str, bytes, int, float, complex, type(None), torch.dtype, torch.device, torch.Tensor)


@dataclass(frozen=True)
class Given:
    """What one call is given: its batch, how many samples that has, and the shape of one.

    `samples` is None where no dimension is surely theirs.
    """

    batch: Any
    samples: int | None
    shape: tuple[Any, ...]

    @property
    def is_tensor(self) -> bool:
        """Whether the batch is a tensor, which has samples of one shape."""
        return isinstance(self.batch, torch.Tensor)


class StepSize(NamedTuple):
    """What a step was given: samples, the shapes that one has, and tokens, 0 of other samples."""

    samples: int
    shapes: tuple[Any, ...]
    tokens: int


#: Of inputs with names those whose first dimension is the batch, whatever others have.
_NAMED = ("input_ids", "pixel_values", "inputs_embeds", "input_values", "input_features")


def _given(args: Any, kwargs: Any) -> Given | None:
    """Return the batch of a call, None where it is given no tensor with dimensions."""
    first = args[0] if args else None
    batch = first if isinstance(first, torch.Tensor) and first.dim() > 1 else None
    if batch is not None and len(args) == 1 and not kwargs:
        return _of_tensor(batch)
    if batch is None:
        named = first if isinstance(first, Mapping) else kwargs
        tokens = next((named[name] for name in _NAMED if name in named), None)
        if isinstance(tokens, torch.Tensor):
            return _of_tensor(tokens)
        for value in (*args, *kwargs.values()):
            if isinstance(value, torch.nn.utils.rnn.PackedSequence):
                return Given(value.data, int(value.batch_sizes[0]), tuple(value.data.shape[1:]))
            if (graphs := getattr(value, "num_graphs", None)) is not None:
                return Given(value, int(graphs), ())
            if isinstance(value, list | tuple) and value and (given := _of_list(value)):
                return given
    tensors = [tensor for tensor in _tensors(args, kwargs) if tensor.dim()]
    tensors.sort(key=lambda tensor: tensor.dim() < 2)
    if not tensors:
        return None
    given = _of_tensor(tensors[0] if batch is None else batch)
    is_image = len(given.shape) == 3 and given.shape[0] in (1, 3)
    return given if is_image or _agree(given, tensors) else replace(given, samples=None)


def _of_tensor(batch: torch.Tensor) -> Given:
    if batch.is_nested:
        return Given(batch, batch.size(0), ())
    return Given(batch, batch.shape[0], tuple(batch.shape[1:]))


def _agree(given: Given, tensors: Iterable[torch.Tensor]) -> bool:
    """Whether the other tensors of a call may belong to a batch of `given.samples`.

    They have as many rows, or are shared by all: one row, a square mask, the state of layers. What
    joins the samples to each other is none of these: a square of them, or what is sparse.
    """
    n = given.samples
    for tensor in tensors:
        if tensor is given.batch or tensor.is_nested:
            continue
        square = tensor.dim() == 2 and tensor.shape[0] == tensor.shape[1]
        state = tensor.dim() == 3 and tensor.shape[1] == n != given.shape[0]
        joins = tensor.layout != torch.strided or (square and tensor.shape[0] == n)
        if joins or not (tensor.shape[0] in (n, 1) or square or state):
            return False
    return True


def _of_list(batch: Sequence[Any]) -> Given | None:
    """Of a list the length is the batch, unless its tensors may be inputs beside each other."""
    if all(isinstance(item, Mapping) for item in batch):
        return Given(batch[0], len(batch), ())
    if not all(isinstance(item, torch.Tensor) for item in batch):
        return None
    shapes = {tuple(item.shape) for item in batch}
    images = all(len(shape) == 3 and shape[0] in (1, 3) for shape in shapes)
    lengths_differ = len(shapes) > 1 == len({(None, *shape[1:]) for shape in shapes})
    is_list, is_flat = isinstance(batch, list), batch[0].dim() == 1
    sure = images or (lengths_differ and (len(batch) > 2 or (is_list and is_flat)))
    if not sure and not is_list:
        return None  # inputs beside each other
    return Given(batch[0], len(batch) if sure else None, tuple(sorted(shapes)))


def _tensors(args: Any, kwargs: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]


def _has_no_batch(module: torch.nn.Module, args: Any) -> bool:
    """Whether a layer is given one sample, as torch allows it."""
    if not args or not isinstance(args[0], torch.Tensor):
        return False
    if isinstance(module, torch.nn.modules.conv._ConvNd):
        return args[0].dim() < module.weight.dim()
    return isinstance(module, _OF_SEQUENCES) and args[0].dim() < 3


def _is_of_graph(given: Given, tensors: Iterable[torch.Tensor]) -> bool:
    """Whether one of them may be edges, pairs of numbers of nodes, or the nodes' groups."""
    if not given.is_tensor or given.batch.dim() > 2:
        return False
    if given.batch.dim() == 2 and not given.batch.is_floating_point():
        return False
    plain = (tensor for tensor in tensors if type(tensor) is torch.Tensor)
    numbers = [tensor for tensor in plain if tensor is not given.batch and tensor.dtype in _WHOLE]
    pairs = any(tensor.dim() == 2 and tensor.shape[0] == 2 != given.samples for tensor in numbers)
    return pairs or any(map(_numbers_groups, numbers))


def _numbers_groups(numbers: torch.Tensor) -> bool:
    """Whether rows have the numbers of their groups, in order: 0, 0, 0, 1, 1, 2."""
    if numbers.dim() != 1 or len(numbers) < 3:
        return False
    if numbers.is_cuda and torch.cuda.is_current_stream_capturing():
        return False  # no value is read while a graph is recorded
    steps = numbers.detach().diff()
    return bool((numbers[0] == 0) & (steps.min() == 0) & (steps.max() == 1))


def _reference(batch: Any) -> Callable[[], Any]:
    """What gives the batch as long as somebody holds it."""
    try:
        return weakref.ref(batch)
    except TypeError:
        return lambda: batch


@dataclass
class Batches:
    """What the model is given within one step, seen by hooks on its modules.

    Each call of the module that is called first with a tensor is one forward pass. `size` is that
    of a sample: tokens, or pixels a side.
    """

    device: str
    passes: int = 0
    samples: int = 0
    sample: Sample = "sample"
    size: int | None = None
    autocast: torch.dtype | None = None
    first: torch.nn.Module | None = None
    weights: Counter[MathMode] = field(default_factory=Counter)
    unsure: bool = False
    hook: Any = None
    switches: dict[str, str] = field(default_factory=dict)  # within the step
    sizes: list[StepSize] = field(default_factory=list)  # of each step that ended
    _passes: list[Given] = field(default_factory=list)
    _updated: bool = False  # since the step began
    _seen: list[Callable[[], Any]] = field(default_factory=list)  # the step's batches
    _objects: list[dict[str, Any]] = field(default_factory=list)  # with no tensor to be seen

    def look(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        """Look at one call; a hook before the forward pass, which goes on whatever it is given."""
        try:
            self._look_at_settings(module, args, kwargs)
            if torch.is_grad_enabled():
                self._look_at_batch(module, args, kwargs)
        except Exception:  # a script may give what cannot be asked
            self.unsure = True

    def _look_at_settings(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        for name, kind in _OF_KIND.items():
            if isinstance(module, kind) or name not in self.switches:
                self.switches[name] = str(value_or_none(partial(attrgetter(name), torch.backends)))
        if torch.is_autocast_enabled(self.device):
            self.autocast = torch.get_autocast_dtype(self.device)
        self.weights += weight_modes([module], *_tensors(args, kwargs))

    def _look_at_batch(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        given = _given(args, kwargs)
        if given is None:
            others = (leaf for leaf in tree_leaves((args, kwargs)) if not isinstance(leaf, _PLAIN))
            self._objects += [getattr(leaf, "__dict__", {}) for leaf in others]
            return
        self.unsure |= self._joins_samples(module, given, args, kwargs)
        if self.first not in (None, module):
            return
        graphs = (hasattr(value, name) for value in (*args, *kwargs.values()) for name in _GRAPHS)
        is_graph = "edge_index" in kwargs or (given.is_tensor and any(graphs))
        self.unsure |= is_graph or given.samples is None
        if self._objects and self.first is None:  # what an object holds, or made of that within
            held = (value for fields in self._objects for value in fields.values())
            self.unsure |= not any(value is given.batch for value in held)
        if any(seen() is given.batch for seen in self._seen):
            return  # the batch again, as a closure that is evaluated several times has it
        # after an update within the step it may be the same samples, as a GAN has them
        self.unsure |= self._updated and self.passes > 0
        self.first, shape = module, given.shape
        self._seen.append(_reference(given.batch))
        self.passes += 1
        self.samples += given.samples or 0
        self._passes.append(given)
        if given.is_tensor and len(shape) == 1 and given.batch.dtype in _WHOLE:
            self.sample, self.size = "sequence", shape[0]
        elif len(shape) == 3 and 3 in (shape[0], shape[2]):
            self.sample, self.size = "image", shape[1]

    def _joins_samples(self, module: torch.nn.Module, given: Given, args: Any, kwargs: Any) -> bool:
        """Whether the rows of a call may be parts of one sample: as in a graph, or within vmap."""
        tensors = _tensors(args, kwargs)
        if any(map(torch._C._functorch.is_functorch_wrapped_tensor, tensors)):
            return self.first in (None, module)
        last = self._passes[-1].samples if self._passes else given.samples
        if getattr(module, "batch_first", True) is False:
            # a layer inside may have the batch of the model in its second dimension, and there
            shape: Any = getattr(given.batch, "shape", ())
            is_second = bool(self._passes) and len(shape) == 3 and shape[1] == last != shape[0]
            if self.first in (None, module) or not is_second:
                return True
        if given.samples != last:
            return False
        return _has_no_batch(module, args) or _is_of_graph(given, tensors)

    def updated(self, *_: object) -> None:
        """Note that an optimizer has stepped; a hook of it."""
        self._updated = True

    def compare(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        """Note the size of a later batch; a hook, so it reads shapes and nothing else."""
        given = value_or_none(partial(_given, args, kwargs)) if torch.is_grad_enabled() else None
        if given is not None and not any(seen() is given.batch for seen in self._seen):
            self._passes.append(replace(given, batch=None))  # the script may let go of it
            self._seen.append(_reference(given.batch))

    def ended(self) -> None:
        """Note that a step has ended: what the next one is given is another batch."""
        samples = sum(given.samples or 0 for given in self._passes)
        shapes = (given.shape for given in self._passes)
        tokens = 0
        if self.sample == "sequence":
            tokens = sum((given.samples or 0) * given.shape[0] for given in self._passes)
        self.sizes.append(StepSize(samples, tuple(dict.fromkeys(shapes)), tokens))
        self._passes, self._seen = [], []

    def __str__(self) -> str:
        if self.sample == "step":
            return "samples not known: --samples-per-step says them"
        length = f" of {self.size} tokens" if self.sample == "sequence" else ""
        passes = "one forward pass" if self.passes == 1 else f"{self.passes} forward passes"
        return f"{self.samples} {self.sample}s{length} in {passes}"


class Training:
    """The modules, loaders and optimizers of the step that `optimizers` end."""

    device: Device

    def __init__(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        self._optimizers = list(optimizers)
        kinds = torch.nn.Module, _BaseDataLoaderIter, torch.amp.GradScaler
        # of its type: to ask a proxy for its class may run code of the script
        objects = [item for item in gc.get_objects() if issubclass(type(item), kinds)]
        modules = [item for item in objects if isinstance(item, torch.nn.Module)]
        inner = {id(child) for module in modules for child in module.children()}
        self._groups = [group for optimizer in self._optimizers for group in optimizer.param_groups]
        given = [parameter for group in self._groups for parameter in group["params"]]
        trained = set(map(id, given))
        self.roots = [
            module
            for module in modules
            if id(module) not in inner
            if not trained or any(id(parameter) in trained for parameter in module.parameters())
        ]
        own = [root for root in self.roots if not isinstance(root, torch.fx.GraphModule)]
        self.roots = own or self.roots  # not those that torch.compile makes
        self._models = [_unwrapped(root) for root in self.roots]
        unique = {id(weight): weight for model in self._models for weight in model.parameters()}
        self.parameters = list(unique.values()) or given
        loaders = [item for item in objects if isinstance(item, _BaseDataLoaderIter)]
        self._loader = max(loaders, key=lambda item: item._num_yielded, default=None)
        scalers = [item for item in objects if isinstance(item, torch.amp.GradScaler)]
        self._scales_loss = any(scaler.is_enabled() for scaler in scalers)

    def open_device(self) -> Device:
        """Open the device that holds the parameters; the process's current one stays what it is.

        Raises `UnsupportedError` without parameters.
        """
        if not self.parameters:
            raise UnsupportedError("no module with parameters was found: nothing to measure")
        where = self.parameters[0].device
        with torch.cuda.device(where) if where.type == "cuda" else nullcontext():
            self.device = open_device(where.type)
        return self.device

    @property
    def names(self) -> dict[str, str]:
        """The model with a digest of its modules' classes and parameters, and the optimizer."""
        digest = hashlib.sha256()
        for path, module in chain.from_iterable(model.named_modules() for model in self._models):
            shapes = [tuple(parameter.shape) for parameter in module.parameters(recurse=False)]
            digest.update(f"{path} {type(module).__qualname__} {shapes}\n".encode())
        models, optimizers = (
            "+".join(sorted({type(item).__name__ for item in some})) or "none"
            for some in (self._models, self._optimizers)
        )
        return {"model": f"{models} {digest.hexdigest()[:12]}", "optimizer": optimizers}

    @contextmanager
    def watched(self, samples: int) -> Iterator[Batches]:
        """Look at what the modules are given within the block; `samples`, if not 0, goes first."""
        seen = Batches(self.parameters[0].device.type)
        layers = [layer for root in self.roots for layer in _outside_graphs(root)]
        hooks = [layer.register_forward_pre_hook(seen.look, with_kwargs=True) for layer in layers]
        hooks += [optimizer.register_step_post_hook(seen.updated) for optimizer in self._optimizers]
        try:
            yield seen
        finally:
            for hook in hooks:
                hook.remove()
        seen.ended()
        if seen.first is not None and (samples or not seen.unsure):
            seen.hook = seen.first.register_forward_pre_hook(seen.compare, with_kwargs=True)
        seen.samples = samples or (0 if seen.unsure else seen.samples)
        if not seen.samples:
            seen.sample, seen.samples, seen.size = "step", 1, None

    def resolved(self, seen: Batches, max_seconds: float) -> ResolvedConfig:
        """Return what the script has set."""
        mode, layout = self._math_mode(seen), torch.channels_last
        pixels, tokens = (seen.size if seen.sample == of else None for of in ("image", "sequence"))
        return ResolvedConfig(
            backend=self.device.backend,
            math_mode=mode,
            convolution_fp32=self._fp32_of(seen, _CONVOLUTIONS),
            matmul_fp32=self._fp32_of(seen, _PRODUCTS),
            autocast_dtype=mode if seen.autocast and mode in ("bf16", "fp16") else "none",
            loss_scaling=self._scales_loss,
            native_math=self.device.native_math(mode),
            batch_size=seen.samples,
            image_size=pixels,
            seq_len=tokens,
            sample=seen.sample,
            tokens_per_sample=tokens,
            max_seconds=max_seconds,
            workers=0 if self._loader is None else self._loader._num_workers,
            pin_memory=self._loader is not None and self._loader._pin_memory,
            channels_last=any(
                not parameter.is_contiguous() and parameter.is_contiguous(memory_format=layout)
                for parameter in self.parameters
                if parameter.dim() == 4
            ),
            fused_optimizer=any(group.get("fused") for group in self._groups),
            threads=torch.get_num_threads(),
            allocator=allocator_in_use("auto"),
            depthwise_fp32=False,
        )

    def _math_mode(self, seen: Batches) -> MathMode:
        convolves = any(parameter.dim() > 3 for parameter in self.parameters)
        is_tf32 = self._fp32_of(seen, _CONVOLUTIONS if convolves else _PRODUCTS) == "tf32"
        asked = _AUTOCAST.get(seen.autocast, "tf32" if is_tf32 else "fp32")
        layers = (module for model in self._models for module in model.modules())
        weights = seen.weights or weight_modes(layers)
        return math_mode_of(weights, asked, autocast=seen.autocast is not None)

    def _fp32_of(self, seen: Batches, switch: str) -> Literal["ieee", "tf32"]:
        on_card = self.device.backend == "cuda" and self.device.native_math("tf32")
        now = value_or_none(partial(attrgetter(switch), torch.backends))
        asked = seen.switches.get(switch) or str(now)
        return "tf32" if on_card and asked == "tf32" else "ieee"

    def counted(
        self, step: LiveStepTracer, config: RunConfig, resolved: ResolvedConfig
    ) -> tuple[Complexity, tuple[CallWork, ...]]:
        """Return what the counted step did, and its calls. Raises `UserError` if any is unknown."""
        if step.uncounted:
            ops = "; ".join(f"{op}: {why}" for op, why in step.uncounted.items())
            raise UserError(one_line(f"the step runs {ops}"))
        recorded = step.recorded(step.lasting())
        if not recorded.passes:
            raise UserError("no op of its step was seen: torch.compile has all of it")
        cache_bytes = self.device.info().last_level_cache_bytes or DEFAULT_CACHE_BYTES
        state = tree_leaves([dict(optimizer.state) for optimizer in self._optimizers])
        names = ("batch_size", "image_size", "sample", "tokens_per_sample", "math_mode")
        complexity = Complexity(
            arch=config.arch,
            precision=config.precision,
            parameters=sum(parameter.numel() for parameter in self.parameters),
            activations=None,
            cache_bytes=cache_bytes,
            memory=MemoryFootprint(
                weights_bytes=sizes_bytes(self.parameters),
                gradients_bytes=sizes_bytes(w for w in self.parameters if w.requires_grad),
                optimizer_bytes=sizes_bytes(x for x in state if isinstance(x, torch.Tensor)),
                activations_bytes=step.saved_bytes or 0,
            ),
            method=f"a step of the script, as torch {torch.__version__} dispatched it",
            **{name: getattr(resolved, name) for name in names},
            **counts_of(recorded, cache_bytes),
        )
        return complexity, calls_of(recorded)


def _unwrapped(root: torch.nn.Module) -> torch.nn.Module:
    while len(names := [name for name, _ in root.named_children()]) == 1 and names[0] in _WRAPPED:
        root = next(root.children())
    return root


def _outside_graphs(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """The module and those inside, but for what torch.compile calls: a hook there would be lost."""
    if getattr(module, "_compiled_call_impl", None) is None:
        yield module
        for child in () if hasattr(module, "_orig_mod") else module.children():
            yield from _outside_graphs(child)
