"""What is known of each of torch's ops, once, and one call of an op: what it reads and writes.

A new op of torch is one line here. An op that is not here is pointwise where torch tags it so; any
other runs as it is, or is refused if it may multiply and add.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bench.cost.traffic import Role
from bench.errors import UserError
from bench.records import Phase
from bench.records.complexity import is_attention, plain_label


@dataclass(frozen=True)
class Op:
    """What one op does; arguments are known by their names.

    `formula` names what counts its multiply-adds (`flops`) or splits it into several passes
    (`splitting`); an op without one has no multiply-adds and is one pass.
    """

    role: Role | None = None  # None: by torch's tags
    formula: str = ""
    flops: int = 1  # elementwise, per output element; a reduction's per input element
    sums_first: bool = False  # a reduction whose other inputs are places
    summed: str = ""  # of a product: the argument whose last dimension is summed over
    bias: str = ""  # the argument that is added to it, None or left out where there is none
    unread: str = ""  # the argument that it takes for its shape alone
    gathered: str = ""  # the argument of which others choose the elements that it reads
    overwrites: bool = False  # its target, without reading it
    allocates: bool = False  # storage without contents


def op_names(text: str) -> frozenset[str]:
    """Return the names that stand in `text`, with spaces or line ends between them."""
    return frozenset(text.split())


def _ops(names: str, role: Role | None = None, **facts: Any) -> dict[str, Op]:
    return dict.fromkeys(names.split(), Op(role, **facts))


def _pointwise(names: str, flops: int = 1, **facts: Any) -> dict[str, Op]:
    return _ops(names, Role.POINTWISE, flops=flops, **facts)


def _products(names: str, summed: str, **facts: Any) -> dict[str, Op]:
    return _ops(names, Role.CONTRACTION, formula="product", summed=summed, **facts)


#: FLOP per element where they are not one. Softmax: maximum, subtract, exponential, add, divide;
#: its backward: multiply, add, subtract, multiply. Layer norm: statistics 3, subtract, scale,
#: weight, bias. RMS norm: square, add, scale, weight. SGD: weight decay, momentum and update are a
#: multiply-add each. AdamW: decay 1, first moment (lerp) 3, second moment 4, root, correction and
#: epsilon 3, scaled quotient 3; Adam adds the decay to the gradient.
OPS: dict[str, Op] = {
    # storage without contents
    **_ops(
        "empty empty_like empty_permuted empty_strided new_empty new_empty_strided", allocates=True
    ),
    # constants
    **_pointwise(
        "arange full full_like new_full new_ones new_zeros ones ones_like scalar_tensor zero zeros "
        "zeros_like",
        flops=0,
        unread="self",
    ),
    **_pointwise("fill copy", flops=0, overwrites=True),
    # elements that go to another place or type
    **_pointwise(
        "_to_copy cat channel_shuffle clone constant_pad_nd flip im2col lift_fresh_copy "
        "native_channel_shuffle pixel_shuffle pixel_unshuffle repeat roll select_backward "
        "slice_backward split_with_sizes_copy stack tril triu",
        flops=0,
    ),
    **_pointwise("embedding", flops=0, gathered="weight"),
    **_pointwise("gather index index_select", flops=0, gathered="self"),
    **_pointwise("nll_loss_backward nll_loss2d_backward", flops=0, unread="self"),
    # on elements, though torch does not tag them so
    **_pointwise("bernoulli exponential normal random uniform", overwrites=True),
    **_pointwise(
        "binary_cross_entropy_backward elu_backward glu glu_backward hardsigmoid_backward "
        "hardswish hardswish_backward hardtanh hardtanh_backward huber_loss_backward "
        "leaky_relu_backward masked_fill mish_backward mse_loss_backward native_dropout "
        "native_dropout_backward rsub smooth_l1_loss_backward softplus_backward"
    ),
    **_ops("lerp addcmul addcdiv", flops=3),
    **_pointwise("_fused_sgd", flops=6),
    **_pointwise("_fused_adam", flops=15),
    **_pointwise("_fused_adamw", flops=14),
    # on rows, of which one fits on the chip
    **_pointwise("_softmax _safe_softmax _log_softmax", flops=5),
    **_pointwise("_softmax_backward_data _log_softmax_backward_data _fused_rms_norm", flops=4),
    **_pointwise("native_layer_norm", flops=7),
    # all of the input before any of the result
    **_ops(
        "all amax amin any argmax argmin binary_cross_entropy binary_cross_entropy_with_logits "
        "count_nonzero huber_loss linalg_vector_norm logsumexp max mean min mse_loss norm prod "
        "smooth_l1_loss std std_mean sum var var_mean _amp_foreach_non_finite_check_and_unscale",
        Role.REDUCTION,
    ),
    **_ops("embedding_dense_backward", Role.REDUCTION, sums_first=True),
    **_ops("nll_loss_forward nll_loss2d_forward", Role.REDUCTION, sums_first=True, gathered="self"),
    # as it is
    **_ops("_embedding_bag _embedding_bag_forward_only", gathered="weight"),
    **_ops(
        "max_pool2d_with_indices_backward max_pool3d_with_indices_backward avg_pool2d_backward "
        "avg_pool3d_backward _adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward",
        unread="self",
    ),
    # multiply-adds
    **_products("mm bmm mv dot vdot", "self"),
    **_products("_scaled_mm", "self", bias="bias"),
    **_products("_addmm_activation", "mat1"),
    **_products("addmm", "mat1", bias="self"),
    **_products("baddbmm", "batch1", bias="self"),
    **_products("addmv", "mat", bias="self"),
    **_products("linear", "input"),
    **_ops("convolution", Role.CONTRACTION, formula="convolution", bias="bias"),
    **_ops("_convolution convolution_overrideable", Role.CONTRACTION, formula="convolution"),
    # one group of rows with each of several matrices, as mixtures of experts have them
    **_ops("_grouped_mm _scaled_grouped_mm", Role.CONTRACTION, formula="grouped"),
    # recurrent layers that are one kernel, of any kind: LSTM, GRU, plain
    **_ops(
        "mkldnn_rnn_layer mkldnn_rnn_layer_backward _cudnn_rnn _cudnn_rnn_backward miopen_rnn "
        "miopen_rnn_backward _lstm_mps lstm_mps_backward",
        Role.CONTRACTION,
        formula="recurrent",
    ),
    # several passes
    **_ops("convolution_backward", formula="convolution_backward"),
    **_ops("linear_backward", formula="linear_backward"),
    **_ops(
        "native_batch_norm _native_batch_norm_legit _batch_norm_with_update cudnn_batch_norm "
        "miopen_batch_norm native_group_norm",
        formula="channel_norm",
    ),
    **_ops(
        "native_batch_norm_backward batch_norm_backward cudnn_batch_norm_backward "
        "miopen_batch_norm_backward native_group_norm_backward",
        formula="channel_norm_backward",
    ),
    **_ops("native_layer_norm_backward _fused_rms_norm_backward", formula="row_norm_backward"),
}

#: Parts of the names of other ops that multiply and add: better no count than a wrong one.
_UNCOUNTED = op_names(
    """
    rnn lstm gru attention conv_ conv1d conv2d conv3d convolution conv_dilated conv_depthwise
    matmul _mm_ addmm addbmm hspmm _smm_ spsolve sparse_semi _linear_ linear_backward fbgemm_linear
    _trilinear_ transformer_encoder cdist pdist euclidean_dist _fft_ linalg_ cholesky
    triangular_solve
    matrix_exp linear_combination lu_with_info lu_solve geqrf ormqr orgqr affine_grid _addr_
    """
)
#: Names with such a part that do not.
_WITHOUT_PRODUCTS = op_names(
    "linalg_cross linalg__powsum _linalg_check_errors fft_fftfreq fft_rfftfreq"
)


@cache
def known_op(name: str) -> Op:
    """Return what is known of an op, by its name without `_foreach_` and a last `_`."""
    if is_attention(name):
        return Op(Role.CONTRACTION, "attention")
    if name.startswith("fsdp."):  # into and out of what its processes send each other
        return Op(Role.POINTWISE, flops=0)
    return OPS.get(name, Op())


def refuse_uncounted(name: str) -> None:
    """Raise `UserError` for an op that has, or may have, multiply-adds but no formula here."""
    if name in OPS:
        return
    has_products = any(part in f"_{name}_" for part in _UNCOUNTED)
    if "." in name or (has_products and name not in _WITHOUT_PRODUCTS):  # "library.op"
        raise UserError(
            f"the model runs {name}, whose FLOP cannot be counted; "
            "use convolutions, linear layers, matrix products or attention"
        )


# Calls

_TORCH_LOG = logging.getLogger("torch._subclasses.fake_tensor")
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd


class OpMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While active, is given every op that torch dispatches; of control flow, the op itself.

    Under `torch.inference_mode` torch itself leaves ops whole that are made of others.
    """

    supports_higher_order_operators = True

    def dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the op `func`; a mode that does more, or answers for it, has its own."""
        return func(*args, **kwargs)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _has_kernel(func, _COMPOSITE):
            devices = (tensor.device.type for tensor in tensors_in(args))
            own = map(torch._C._dispatch_key_for_device, islice(devices, 1))
            if not any(_has_kernel(func, key) for key in own):
                with self:
                    return func._op_dk(_COMPOSITE, *args, **(kwargs or {}))
        return self.dispatch(func, args, kwargs or {})


@cache
def _has_kernel(func: Any, key: Any) -> bool:
    named = isinstance(func, torch._ops.OpOverload) and func.namespace != "prim"
    return named and torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key)


@dataclass(frozen=True)
class OpCall:
    """`name` is as printed (`relu_`); `op` is what it computes (`relu`), one tensor or a list."""

    name: str
    op: str
    pointwise: bool  # as torch tags it
    arguments: Mapping[str, Any]
    mutable: frozenset[str]
    outputs: tuple[torch.Tensor, ...]
    func: Any = None  # of torch

    @property
    def known(self) -> Op:
        """What is known of the op."""
        return known_op(self.op)

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the tensor arguments, without those in lists and those of no dimension.

        This is what torch's profiler reports of a call, too: it prints neither scalars nor lists.
        """
        given = (value for value in self.arguments.values() if isinstance(value, torch.Tensor))
        return tuple(tuple(tensor.shape) for tensor in given if tensor.dim())

    def tensors(self, *names: str) -> list[torch.Tensor]:
        """Return the tensors of these arguments, or of all."""
        asked = names or self.arguments
        return [tensor for name in asked for tensor in tensors_in(self.arguments.get(name))]

    def reads(self) -> list[torch.Tensor]:
        """Return the tensors whose contents the op needs."""
        facts = self.known
        ignored = {facts.unread, facts.gathered} | (self.mutable if facts.overwrites else set())
        names = [name for name in self.arguments if name not in ignored]
        whole = self.tensors(*names) if names else []
        if not facts.gathered:
            return whole
        return [_some_of(self.arguments[facts.gathered], self._chosen()), *whole]

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
        # In the order of the arguments: that of a set differs from process to process.
        values = [value for name, value in self.arguments.items() if name in written]
        return [tensor for value in values for tensor in tensors_in(value)]

    def label(self, phase: Phase) -> str:
        """Return its kind: `depthwise convolution 3x3 stride 2`, `batch_norm`.

        A backward call has the name of the forward one that it belongs to.
        """
        if phase == "optimizer":
            return "optimizer"
        if self.op not in ("convolution", "convolution_backward"):
            return plain_label(self.name)
        weight, groups = self.arguments["weight"], self.arguments["groups"]
        kind = "transposed convolution" if self.arguments["transposed"] else "convolution"
        if groups > 1:
            # The weight is (out, in / groups, *kernel), transposed (in, out / groups, *kernel).
            kind = f"{'depthwise' if weight.shape[1] == 1 else 'grouped'} {kind}"
        words = [kind, "x".join(map(str, weight.shape[2:]))]
        for name in ("stride", "dilation"):
            steps = self.arguments[name]
            if any(step > 1 for step in steps):
                words += [name, "x".join(map(str, steps[:1] if len(set(steps)) == 1 else steps))]
        return " ".join(words)


def bind(
    func: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
) -> OpCall:
    """Return the call of `func` that gave `result`, defaults of `func` left out."""
    names, mutable = _signature(func)
    packet: str = func.overloadpacket.__name__
    name = packet if func.namespace in ("aten", "prims") else f"{func.namespace}.{packet}"
    op = name.removeprefix("_foreach_").rstrip("_")
    return OpCall(
        name=name,
        op=op,
        pointwise=torch.Tag.pointwise in func.tags or name.startswith("_foreach_"),
        arguments={**dict(zip(names, args, strict=False)), **kwargs},
        mutable=mutable,
        outputs=tuple(tensors_in(result)),
        func=func,
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


def first_line(error: Exception) -> str:
    """Return the first line of an error of torch's, or its kind."""
    return next(iter(str(error).splitlines()), type(error).__name__)


@contextmanager
def quiet_torch() -> Iterator[None]:
    """Keep fake tensors from printing the traceback of an error that becomes one line."""
    level = _TORCH_LOG.level
    _TORCH_LOG.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        _TORCH_LOG.setLevel(level)
