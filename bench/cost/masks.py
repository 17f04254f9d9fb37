"""What masks hide of attention: products of a query and a key that the mathematics does not need.

A kernel may compute them all the same. The scores that are known while a step runs show what is
hidden. On fake tensors values of masks are known where they follow from constants and buffers, as
those of causal masks and sliding windows do; else how much is hidden is not known.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from contextlib import suppress
from fractions import Fraction
from itertools import count
from math import prod
from typing import Any, TypeAlias

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.weak import WeakTensorKeyDictionary

from bench.cost.op_table import OpCall, op_names
from bench.cost.traffic import Pass, Role
from bench.records.complexity import is_attention

#: The part of all pairs that is hidden, exact; None where it is not known.
Hidden: TypeAlias = Fraction | None
SEEN = Fraction(0)
UNKNOWN_MASK = "how much a mask of attention hides depends on data, or it is too large to look at"
#: What is added to hide a pair is no more than this: its exponential is 0 in every type. Of 1e4,
#: which many add, bf16 makes 9,984.
_HIDES = -9e3
#: They put a value where a mask says, or places.
_FILLS = op_names("fill index_fill index_put masked_fill scatter where")
#: Of these, what hides a pair in an input hides it in the result.
_MASKING = _FILLS | op_names("add baddbmm clone copy div mul sub _to_copy _unsafe_view")
#: Ops of one element each: what an expanded dimension repeats is computed once.
_POINTWISE = op_names(
    "add bitwise_and bitwise_not bitwise_or clone div eq fill ge gt le logical_and logical_not "
    "logical_or lt masked_fill mul ne rsub sub _to_copy where"
)
#: Their results are least where each input is at an end of its range.
_MULTILINEAR = op_names("add clone mul sub _to_copy")
_SOFTMAX = op_names("_softmax _safe_softmax")
#: Of one tensor that is followed.
_MOST_ELEMENTS = 2**26


class KnownValues:
    """What is known of the values of fake tensors; a real tensor has its own.

    `exact` has all values of a tensor. `hiding` has those that hide pairs, and 0 for what is not
    known; None where it is not known whether they do.
    """

    def __init__(self) -> None:
        self.exact: Any = WeakTensorKeyDictionary()
        self.hiding: Any = WeakTensorKeyDictionary()

    def follow(self, call: OpCall) -> None:
        """Note what is known of the results of a call."""
        changed = [tensor for name in call.mutable for tensor in call.tensors(name)]
        is_fake = all(isinstance(tensor, FakeTensor) for tensor in (*call.outputs, *changed))
        if not (is_fake and call.func and call.outputs) or (changed and not changed[0].numel()):
            return
        unread = {call.known.unread, *(call.mutable if call.known.overwrites else ())}
        given = [v for name in call.arguments if name not in unread for v in call.tensors(name)]
        bases = (tensor._base for tensor in changed)
        rest = [base for base in bases if base is not None and base.numel() > changed[0].numel()]
        is_exact = torch.Tag.nondeterministic_seeded not in call.func.tags and (
            call.known.allocates or not any(map(self._is_open, (*given, *rest)))
        )
        results: list[torch.Tensor] | None = None
        with _disable_current_modes(), suppress(RuntimeError):  # of transforms of torch.func
            if not is_exact:
                results = self._masked(call, [*given, *rest])
            elif all(map(self._lay_out, changed)):
                results = self._computed(call, call.func)
            is_constant = is_exact and not (given or rest)
            if is_constant and results is None and self._lowest(call, call.func) > _HIDES:
                results = []  # too large to keep, and it hides nothing
            if is_exact and results:
                self.exact.update(zip(call.outputs, results, strict=True))
                return
            if results == [] and any(_share(self._known(base)) for base in rest):
                results = None
        for tensor in changed:
            self._note(tensor, None if results == [] else self.hiding)
        for place, made in enumerate(call.outputs if results != [] else ()):
            self.hiding[made] = results and results[place]

    def hidden(self, call: OpCall) -> Hidden:
        """Return what a call of attention hides, or one that masks the scores of attention."""
        arguments = call.arguments
        if not is_attention(call.op):
            if call.op in _SOFTMAX:
                scores = arguments["self"]
                is_mask = scores.dim() > 2 and (not self._is_open(scores) or scores in self.hiding)
                return _share(self._known(scores)) if is_mask else SEEN
            hiding = [out for out in call.outputs if out in self.hiding and out.dim() > 2]
            return _share(self.hiding[hiding[0]]) if hiding and call.op in _MASKING else SEEN
        if arguments.get("is_causal", False):
            return causal(arguments["query"].shape[-2], arguments["key"].shape[-2])
        mask = arguments.get("attn_mask", arguments.get("attn_bias"))
        if mask is None or call.op.endswith("_backward"):
            return SEEN  # a backward pass hides what the forward pass did: see `hidden_macs`
        is_bias = mask.requires_grad and self._is_open(mask) and mask not in self.hiding
        return SEEN if is_bias else _share(self._known(mask))

    def _is_open(self, tensor: torch.Tensor) -> bool:
        return isinstance(tensor, FakeTensor) and tensor not in self.exact

    def _known(self, tensor: torch.Tensor) -> torch.Tensor | None:
        is_fake = isinstance(tensor, FakeTensor)
        return self.exact.get(tensor, self.hiding.get(tensor)) if is_fake else tensor

    def _masked(self, call: OpCall, given: Sequence[torch.Tensor]) -> list[torch.Tensor] | None:
        """The results of a call of which not all is known: what hides pairs, empty if nothing does.

        None if that is not known.
        """
        func = call.func
        if not (call.op in _MASKING or func.is_view) or not call.outputs[0].is_floating_point():
            return []
        unknown = [tensor for tensor in given if self._known(tensor) is None]
        if any(tensor in self.hiding for tensor in unknown):
            return None
        factor = call.arguments.get("other", 0) if call.op == "mul" else 0
        is_scaled = isinstance(factor, (int, float)) and factor <= _HIDES
        if len(unknown) == len(given) and not (is_scaled or call.op in _FILLS):
            return []
        if call.op == "baddbmm":
            func = lambda self, **_: self  # noqa: E731 - what the products are added to
        elif call.mutable:
            func = getattr(getattr(torch.ops.aten, call.op), func._overloadname)
        if call.op in _MULTILINEAR | _FILLS and self._lowest(call, func) > _HIDES:
            return []
        # Data may say where it hides, or be multiplied with what does.
        is_open = any(call.op == "mul" or not tensor.is_floating_point() for tensor in unknown)
        tried = [self._computed(call, func, value) for value in range(1 + is_open)]
        if all(made and not any(map(_share, made)) for made in tried):
            return []
        return None if is_open else tried[0]

    def _lowest(self, call: OpCall, func: Any) -> float:
        """No result of a call is less; found without a tensor of the results' size."""

        def ends(tensor: torch.Tensor) -> torch.Tensor:
            known = self._known(tensor)
            if known is None or not known.numel():
                return torch.arange(2, device=tensor.device).to(tensor.dtype)
            return torch.stack(torch.aminmax(_once(known)))

        place = count()
        arguments = tree_map_only(
            torch.Tensor, lambda v: ends(v).reshape(-1, *[1] * next(place)), dict(call.arguments)
        )
        if call.op in _MULTILINEAR:
            return float(func(**arguments).min())
        numbers = (v for v in tree_leaves(arguments) if isinstance(v, (int, float, torch.Tensor)))
        return min(float(torch.as_tensor(number).min()) for number in numbers)

    def _computed(self, call: OpCall, func: Any, unknown: int = 0) -> list[torch.Tensor] | None:
        """The results by what is known, else `unknown`; None if they are not to be had."""
        is_once = call.op in _POINTWISE and not func._schema.is_mutable

        def values(tensor: torch.Tensor) -> torch.Tensor:
            known = self._known(tensor)
            if known is None:
                known = torch.full((), unknown, dtype=tensor.dtype, device=tensor.device)
                known = known.expand(tensor.shape)
            return _once(known) if is_once else known

        if call.known.allocates:  # it is written before it is read
            return [torch.zeros((), dtype=v.dtype).expand(v.shape) for v in call.outputs]
        arguments = tree_map_only(torch.Tensor, values, dict(call.arguments))
        size = max(tensor.numel() for tensor in call.outputs)
        if call.op in ("view", "_unsafe_view") and "size" in arguments and size <= _MOST_ELEMENTS:
            func = torch.reshape  # what is expanded may have no view
            arguments = {"input": arguments["self"], "shape": arguments["size"]}
        try:
            if is_once:
                shapes = (v.shape for v in arguments.values() if isinstance(v, torch.Tensor))
                size = prod(torch.broadcast_shapes(*shapes))  # type: ignore[no-untyped-call]
            if size > _MOST_ELEMENTS and not call.func.is_view:
                return None
            result = func(**arguments)
        except Exception:  # of any kind: then they are not known
            return None
        made = [result] if isinstance(result, torch.Tensor) else result
        return [value.expand(out.shape) for value, out in zip(made, call.outputs, strict=True)]

    def _lay_out(self, tensor: torch.Tensor) -> bool:
        """Give a storage that is written memory of its layout; what is expanded has less, else."""
        base = tensor if tensor._base is None else tensor._base
        before, size_bytes = self._known(base), tensor.untyped_storage().nbytes()
        held = [self.exact[v].untyped_storage() for v in (tensor, base) if v in self.exact]
        if len(held) == 2 and held[0]._cdata == held[1]._cdata and held[0].nbytes() == size_bytes:
            return True
        if base.numel() <= _MOST_ELEMENTS:
            memory = torch.UntypedStorage(size_bytes)  # type: ignore[no-untyped-call]
            self._note(tensor, self.exact, memory)
            self.exact[base].copy_(torch.zeros(()) if before is None else before)
        return base.numel() <= _MOST_ELEMENTS

    def _note(self, tensor: torch.Tensor, known: Any, memory: Any = None) -> None:
        """Drop what is known of a storage; what is `known` then is in `memory`, or None."""
        storage = tensor.untyped_storage()._cdata
        for view in [tensor._base, tensor, *self.exact, *self.hiding]:
            if view is not None and view.untyped_storage()._cdata == storage:
                self.exact.pop(view, None)
                self.hiding.pop(view, None)
                if known is not None:
                    place = memory, view.storage_offset(), view.shape, view.stride()
                    known[view] = memory and torch.empty(0, dtype=view.dtype).set_(*place)


def _share(values: torch.Tensor | None) -> Hidden:
    """The part of a mask's elements that hide their pair."""
    if values is None:
        return None
    with _disable_current_modes():
        once = _once(values.detach())
        hidden = ~once if once.dtype == torch.bool else once <= _HIDES
        return Fraction(int(hidden.sum()), max(hidden.numel(), 1))


def _once(tensor: torch.Tensor) -> torch.Tensor:
    """A view of the elements that are distinct: an expanded dimension repeats the same ones."""
    for dimension, stride in enumerate(tensor.stride()):
        tensor = tensor.narrow(dimension, 0, 1) if stride == 0 and tensor.numel() else tensor
    return tensor


def causal(queries: int, keys: int) -> Fraction:
    """Return what a causal mask hides: queries see the keys up to their own number."""
    seen = min(queries, keys)
    pairs = queries * keys
    return Fraction(pairs - seen * (seen + 1) // 2 - (queries - seen) * keys, pairs or 1)


def hidden_macs(passes: Sequence[Pass]) -> int | None:
    """Return the multiply-adds of `passes` that masks hide; None where a mask is not known.

    Attention that a model computes op by op is products and small ops in between. Whatever small
    ops connect to a masked tensor of about its size is scores, weights or their gradients, so what
    is hidden there is hidden in each product that reads or writes them. A fused kernel's backward
    pass reads the sums of rows that its forward pass wrote; of its four products those count as
    hidden, too, whose gradients nothing reads: of a query, key or value that is not trained.
    """
    read = {access.value for item in passes for access in item.reads}
    masked = [item for item in passes if item.hidden != SEEN and not _is_backward(item)]
    group = _groups(passes) if masked else {}
    hides: defaultdict[int, set[Hidden]] = defaultdict(set)  # elements, by group
    for item in masked:
        for access in item.writes[1:] or item.writes:  # a fused kernel's first is its output
            elements = item.hidden and item.hidden * access.elements
            hides[group.get(access.value, access.value)].add(elements)
    total = 0
    for item in passes:
        if not item.macs:
            continue
        shares = {item.hidden}
        for access in (*item.reads, *item.writes):
            found = hides.get(group.get(access.value, access.value), ())
            shares |= {hidden and hidden / max(access.elements, 1) for hidden in found}
        if None in shares:
            return None
        hidden = max(filter(None, shares), default=SEEN)
        if _is_backward(item):
            hidden = 1 - (1 - hidden) * _asked(item, read)
        total += int(item.macs * hidden)
    return total


def _is_backward(item: Pass) -> bool:
    return is_attention(item.op) and item.op.endswith("_backward")


def _asked(item: Pass, read: Collection[int]) -> Fraction:
    """The part of the products of attention's backward pass whose gradients something reads."""
    query, key, value = (access.value in read for access in item.writes[:3])
    width, depth = (access.elements for access in item.writes[1:3])
    asked = width * (query + key) + depth * ((query or key) + value)
    return Fraction(asked, 2 * (width + depth)) if asked else Fraction(1)  # no model is around it


def _groups(passes: Sequence[Pass]) -> dict[int, int]:
    """Values by the group that small ops on tensors of about one size connect them to."""
    above: dict[int, int] = {}
    constants: set[int] = set()

    def top(value: int) -> int:
        while above.setdefault(value, value) != value:
            value = above[value]
        return value

    for item in passes:
        if constants.issuperset(access.value for access in item.reads):
            constants.update(access.value for access in item.writes)
            continue
        parts = [access for access in item.reads if access.view == "rest"]
        is_small = item.role is Role.POINTWISE or item.op.startswith("index_put")
        if item.writes and (is_small or parts):
            most = max(access.elements for access in item.writes)
            like = (a for a in (*item.writes, *item.reads) if most < 2 * a.elements < 4 * most)
            for access in (*like, *parts):
                if access.value not in constants:
                    above[top(access.value)] = top(item.writes[0].value)
    return {value: top(value) for value in above}
