"""One call of an aten op, its arguments by name: what it reads, what it writes, and its label.

Where torch has no tag that says it, what an op does follows from the family that its name is in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bench.records import Phase
from bench.records.complexity import plain_label


class OpMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While active, is given every op that torch dispatches; of control flow, the op itself."""

    supports_higher_order_operators = True

    def dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the op `func`; a mode that does more, or answers for it, has its own."""
        return func(*args, **kwargs)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.dispatch(func, args, kwargs or {})


def op_names(text: str) -> frozenset[str]:
    """Return the names that stand in `text`, with spaces or line ends between them."""
    return frozenset(text.split())


#: Make a tensor of constants.
FILLS = op_names(
    """
    arange fill full full_like new_full new_ones new_zeros ones ones_like scalar_tensor zero zeros
    zeros_like
    """
)

#: Copy elements to another place or type, and compute nothing.
MOVES = op_names(
    """
    _to_copy cat channel_shuffle clone constant_pad_nd copy embedding flip gather im2col index
    index_select lift_fresh_copy native_channel_shuffle nll_loss_backward nll_loss2d_backward
    pixel_shuffle pixel_unshuffle repeat roll select_backward slice_backward split_with_sizes_copy
    stack tril triu
    """
)

#: Need a row of their input for each element of it; a row fits on the chip.
ROWWISE = op_names(
    """
    _fused_rms_norm _log_softmax _log_softmax_backward_data _safe_softmax _softmax
    _softmax_backward_data native_layer_norm
    """
)

#: Work on single elements, though torch does not tag them so.
UNTAGGED_POINTWISE = op_names(
    """
    bernoulli binary_cross_entropy_backward elu_backward exponential glu glu_backward
    hardsigmoid_backward hardswish hardswish_backward hardtanh hardtanh_backward
    huber_loss_backward leaky_relu_backward mish_backward mse_loss_backward native_dropout
    native_dropout_backward normal random rsub smooth_l1_loss_backward softplus_backward uniform
    _fused_adam _fused_adamw _fused_sgd
    """
)

#: Need all of their input before any of their result is there.
REDUCTIONS = op_names(
    """
    all amax amin any argmax argmin binary_cross_entropy binary_cross_entropy_with_logits
    count_nonzero huber_loss linalg_vector_norm logsumexp max mean min mse_loss nll_loss_forward
    nll_loss2d_forward norm prod smooth_l1_loss std std_mean sum var var_mean
    _amp_foreach_non_finite_check_and_unscale embedding_dense_backward
    """
)

#: Overwrite their target without reading it.
OVERWRITES = op_names("bernoulli copy exponential fill normal random uniform zero")

#: Return storage without contents.
ALLOCATIONS = op_names("empty empty_like empty_permuted empty_strided new_empty new_empty_strided")

#: Take these arguments for their shape alone.
UNREAD_ARGUMENTS = {
    "max_pool2d_with_indices_backward": {"self"},
    "max_pool3d_with_indices_backward": {"self"},
    "avg_pool2d_backward": {"self"},
    "avg_pool3d_backward": {"self"},
    "_adaptive_avg_pool2d_backward": {"self"},
    "_adaptive_avg_pool3d_backward": {"self"},
    "nll_loss_backward": {"self"},
    "nll_loss2d_backward": {"self"},
    **{op: {"self"} for op in (FILLS | ALLOCATIONS) - {"fill"}},
}

#: Read some elements of this argument, which other arguments choose.
_GATHERED = {
    "_embedding_bag": "weight",
    "_embedding_bag_forward_only": "weight",
    "embedding": "weight",
    "gather": "self",
    "index": "self",
    "index_select": "self",
    "nll_loss_forward": "self",
    "nll_loss2d_forward": "self",
}


@dataclass(frozen=True)
class OpCall:
    """`name` is as printed (`relu_`); `op` is what it computes (`relu`), one tensor or a list."""

    name: str
    op: str
    pointwise: bool  # as torch tags it
    arguments: Mapping[str, Any]
    mutable: frozenset[str]
    outputs: tuple[torch.Tensor, ...]

    @property
    def allocates(self) -> bool:
        """Whether the outputs are storage without contents."""
        return self.op in ALLOCATIONS

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the tensor arguments, without those in lists and those of no dimension.

        This is what torch's profiler reports of a call, too: it prints neither scalars nor lists.
        """
        given = (value for value in self.arguments.values() if isinstance(value, torch.Tensor))
        return tuple(tuple(tensor.shape) for tensor in given if tensor.dim())

    def inputs(self) -> list[torch.Tensor]:
        """Return every tensor argument."""
        return [tensor for value in self.arguments.values() for tensor in tensors_in(value)]

    def reads(self) -> list[torch.Tensor]:
        """Return the tensors whose contents the op needs."""
        ignored = UNREAD_ARGUMENTS.get(self.op, set())
        if self.op in OVERWRITES:
            ignored = ignored | self.mutable
        gathered = _GATHERED.get(self.op)
        whole = [
            tensor
            for name, value in self.arguments.items()
            if name not in ignored and name != gathered
            for tensor in tensors_in(value)
        ]
        if gathered is None:
            return whole
        return [_some_of(self.arguments[gathered], self._chosen()), *whole]

    def _chosen(self) -> int:
        """Elements that a gathering op chooses: one per label, a row per index, or its result."""
        if self.op.startswith("nll_loss"):
            return int(self.arguments["target"].numel())
        if "embedding" in self.op:
            return int(self.arguments["indices"].numel() * self.arguments["weight"].shape[-1])
        return self.outputs[0].numel()

    def mutated(self) -> list[torch.Tensor]:
        """Return the tensor arguments that the op writes."""
        written = self.mutable
        if self.op.startswith("_fused_") and self.arguments.get("grad_scale") is None:
            written = written - {"grads"}  # it unscales them, or only reads them
        return [tensor for name in written for tensor in tensors_in(self.arguments.get(name))]


def bind(
    func: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
) -> OpCall:
    """Return the call of `func` that gave `result`, defaults of `func` left out."""
    names, mutable = _signature(func)
    packet: str = func.overloadpacket.__name__
    name = packet if func.namespace == "aten" else f"{func.namespace}.{packet}"
    op = name.removeprefix("_foreach_").rstrip("_")
    return OpCall(
        name=name,
        op=op,
        pointwise=torch.Tag.pointwise in func.tags or name.startswith("_foreach_"),
        arguments={**dict(zip(names, args, strict=False)), **kwargs},
        mutable=mutable,
        outputs=tuple(tensors_in(result)),
    )


@cache
def _signature(func: torch._ops.OpOverload) -> tuple[tuple[str, ...], frozenset[str]]:
    arguments = func._schema.arguments
    mutable = {
        argument.name
        for argument in arguments
        if argument.alias_info is not None and argument.alias_info.is_write
    }
    if torch.Tag.inplace_view in func.tags:
        mutable.clear()  # it changes shape and strides, no element
    return tuple(argument.name for argument in arguments), frozenset(mutable)


def _some_of(tensor: torch.Tensor, count: int) -> torch.Tensor:
    """Return `tensor`, or where fewer elements are read of it a view of as many."""
    if count >= tensor.numel():
        return tensor
    room = tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset()
    return tensor.as_strided((min(count, room),), (1,))


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of an argument or a result, lists included."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)


def label_of(call: OpCall, phase: Phase) -> str:
    """Return the kind of one dispatched call: `depthwise convolution 3x3 stride 2`, `batch_norm`.

    A backward call has the name of the forward one that it belongs to.
    """
    if phase == "optimizer":
        return "optimizer"
    if call.op in ("convolution", "convolution_backward"):
        return _convolution(call)
    return plain_label(call.name)


def _convolution(call: OpCall) -> str:
    weight, groups = call.arguments["weight"], call.arguments["groups"]
    transposed = call.arguments["transposed"]
    kind = "transposed convolution" if transposed else "convolution"
    if groups > 1:
        # The weight is (out, in / groups, *kernel), transposed (in, out / groups, *kernel).
        kind = f"{'depthwise' if weight.shape[1] == 1 else 'grouped'} {kind}"
    words = [kind, _by(weight.shape[2:])]
    for name in ("stride", "dilation"):
        steps = call.arguments[name]
        if any(step > 1 for step in steps):
            words += [name, str(steps[0]) if len(set(steps)) == 1 else _by(steps)]
    return " ".join(words)


def _by(lengths: Sequence[int]) -> str:
    return "x".join(map(str, lengths))
