"""What masks hide of attention: products of a query and a key that the mathematics does not need.

A kernel may compute them all the same. The values of a mask are known while a step runs, and on
fake tensors where they follow from constants and buffers, as those of causal masks and sliding
windows do; else how much is hidden is not known.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from fractions import Fraction
from math import prod
from typing import Any, TypeAlias

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map_only
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
_CONSTANTS = op_names("arange eye full linspace ones scalar_tensor zeros")
_LIKE = op_names("full_like new_full new_ones new_zeros ones_like zeros_like")
#: Of these, what hides a pair in an input hides it in the result.
_MASKING = op_names("add baddbmm clone masked_fill sub where _to_copy")
#: Ops of one element each: what an expanded dimension repeats is computed once.
_POINTWISE = _MASKING - {"baddbmm"} | op_names(
    "bitwise_and bitwise_not bitwise_or eq ge gt le logical_and logical_not logical_or lt mul ne "
    "rsub"
)
#: Of one tensor that is followed.
_MOST_ELEMENTS = 2**26


class KnownValues:
    """What is known of the values of fake tensors; a real tensor has its own.

    `exact` has all values of a tensor. `hiding` has those that hide pairs, and 0 for what is not
    known; or the share that they hide, None where that is not known.
    """

    def __init__(self) -> None:
        self.exact: Any = WeakTensorKeyDictionary()
        self.hiding: Any = WeakTensorKeyDictionary()

    def follow(self, call: OpCall) -> None:
        """Note what is known of the results of a call."""
        given = call.tensors()
        if call.func is None or not call.outputs or not (given or call.op in _CONSTANTS):
            return
        changed = [tensor for name in call.mutable for tensor in call.tensors(name)]
        is_fake = all(isinstance(tensor, FakeTensor) for tensor in (*call.outputs, *changed))
        is_exact = call.op in _LIKE or all(self._exact(tensor) is not None for tensor in given)
        values: list[torch.Tensor] | None = None
        hiding: torch.Tensor | Hidden = None
        with _disable_current_modes(), suppress(RuntimeError):  # of transforms of torch.func
            if is_fake and is_exact and torch.Tag.nondeterministic_seeded not in call.func.tags:
                values = self._computed(call, call.func)
            else:
                hiding = self._hiding_after(call, given)
            for fake, value in zip(call.outputs, values or (), strict=bool(values)):
                self.hiding.pop(fake, None)
                self.exact[fake] = value.expand(fake.shape)
        if values is not None:
            return
        hides = isinstance(hiding, torch.Tensor) or hiding != SEEN
        for tensor in changed:
            self._forget(tensor, hides=hides)
        if hides:
            self.hiding[call.outputs[0]] = hiding

    def hidden(self, call: OpCall) -> Hidden:
        """Return what a call of attention hides, or one that masks the scores of attention."""
        arguments = call.arguments
        if not is_attention(call.op):
            masked = [out for out in call.outputs if out in self.hiding and out.dim() > 2]
            return self._share(masked[0]) if masked and call.op in _MASKING else SEEN
        if arguments.get("is_causal", False):
            return causal(arguments["query"].shape[-2], arguments["key"].shape[-2])
        mask = arguments.get("attn_mask", arguments.get("attn_bias"))
        if mask is None or call.op.endswith("_backward"):
            return SEEN  # a backward pass hides what the forward pass did: see `hidden_macs`
        if mask.requires_grad and mask not in self.hiding:
            return SEEN  # what is learned is a bias
        share = self._share(mask)
        if share and isinstance(mask, FakeTensor) and mask.is_floating_point():
            # It lives until the backward pass; its values need not.
            for tensor in [mask, mask._base] if _is_all_of(mask, mask._base) else [mask]:
                self.exact.pop(tensor, None)
                self.hiding[tensor] = share
        return share

    def _exact(self, tensor: torch.Tensor) -> torch.Tensor | None:
        values: torch.Tensor | None = tensor
        return self.exact.get(tensor) if isinstance(tensor, FakeTensor) else values

    def _known(self, tensor: torch.Tensor, out: torch.Tensor) -> torch.Tensor | Hidden:
        """What is known of an input; of a real tensor of scores, nothing."""
        is_real = not isinstance(out, FakeTensor)
        if is_real and tensor.is_floating_point() and tensor.numel() == out.numel():
            return SEEN
        values = self._exact(tensor)
        return self.hiding.get(tensor, SEEN) if values is None else values

    def _hiding_after(self, call: OpCall, given: Sequence[torch.Tensor]) -> torch.Tensor | Hidden:
        """What hides pairs in the result of a call, of which some values are not known."""
        out = call.outputs[0]
        is_view = call.func.is_view and isinstance(out, FakeTensor)  # a real one has its values
        if not ((call.op in _MASKING or is_view) and out.is_floating_point()):
            return SEEN
        if call.op in ("masked_fill", "where") and not isinstance(out, FakeTensor):
            return out.detach() if (out <= _HIDES).any() else SEEN
        known = [self._known(tensor, out) for tensor in given]
        shares = [share for share in known if not isinstance(share, torch.Tensor)]
        if is_view and shares and _is_all_of(out, given[0]):
            return shares[0]
        if any(share != SEEN for share in shares):
            return None
        masks = [mask for mask in known if isinstance(mask, torch.Tensor)]
        is_mask = any(is_view or (m.dim() > 1 and m.shape[-1] == out.shape[-1]) for m in masks)
        if not (is_mask or call.op in ("masked_fill", "where")):
            return SEEN
        func = call.func
        if call.op == "baddbmm":
            func = lambda self, **_: self  # noqa: E731 - what the products are added to
        elif call.mutable:
            func = getattr(getattr(torch.ops.aten, call.op), func._overloadname)
        is_open = any(
            tensor.dtype == torch.bool and not isinstance(values, torch.Tensor)
            for tensor, values in zip(given, known, strict=True)
        )
        tried = [self._computed(call, func, unknown) for unknown in range(1 + is_open)]
        if all(values and not (_once(values[0]) <= _HIDES).any() for values in tried):
            return SEEN
        return None if is_open or tried[0] is None else tried[0][0].expand(out.shape)

    def _computed(self, call: OpCall, func: Any, unknown: int = 0) -> list[torch.Tensor] | None:
        """The results by what is known, else `unknown`; None if they are not to be had."""
        is_once = call.op in _POINTWISE and not func._schema.is_mutable

        def values(tensor: torch.Tensor) -> torch.Tensor:
            known = self._known(tensor, call.outputs[0])
            if not isinstance(known, torch.Tensor):
                known = torch.full((), unknown, dtype=tensor.dtype, device=tensor.device)
                known = known.expand(tensor.shape)
            return _once(known) if is_once else known

        arguments = tree_map_only(torch.Tensor, values, dict(call.arguments))
        size = max(tensor.numel() for tensor in call.outputs)
        try:
            if is_once:
                shapes = (v.shape for v in arguments.values() if isinstance(v, torch.Tensor))
                size = prod(torch.broadcast_shapes(*shapes))  # type: ignore[no-untyped-call]
            if size > _MOST_ELEMENTS and not call.func.is_view:
                return None
            result = func(**arguments)
        except Exception:  # of any kind: then they are not known
            return None
        return [result] if isinstance(result, torch.Tensor) else [*result]

    def _forget(self, tensor: torch.Tensor, *, hides: bool) -> None:
        """Drop what is known of a storage that is written with what is not."""
        storage = tensor.untyped_storage()._cdata
        for known in [*self.exact, *self.hiding, *([] if tensor._base is None else [tensor._base])]:
            if known.untyped_storage()._cdata == storage:
                self.exact.pop(known, None)
                self.hiding.pop(known, None)
                if hides:
                    self.hiding[known] = None

    def _share(self, tensor: torch.Tensor) -> Hidden:
        """The part of a mask's elements that hide their pair."""
        values = self.hiding.get(tensor, self._exact(tensor))
        if values is None or isinstance(values, Fraction):
            return values
        with _disable_current_modes():
            once = _once(values.detach())
            hidden = ~once if once.dtype == torch.bool else once <= _HIDES
            return Fraction(int(hidden.sum()), max(hidden.numel(), 1))


def _is_all_of(view: torch.Tensor, base: torch.Tensor | None) -> bool:
    """Whether a view has each element of its base, all as often."""
    return base is not None and _distinct(view) == _distinct(base)


def _distinct(tensor: torch.Tensor) -> int:
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return prod(length for length, stride in pairs if stride)


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
    ops connect to a masked tensor of the same size is scores, weights or their gradients, so what
    is hidden there is hidden in each product that reads or writes them.
    """
    masked = [item for item in passes if item.hidden != SEEN and not is_attention(item.op)]
    group = _groups(passes) if masked else {}
    hides: defaultdict[int, set[Hidden]] = defaultdict(set)
    for item in masked:
        hides[group.get(value := item.writes[0].value, value)].add(item.hidden)
    total = 0
    attention: dict[int, Hidden] = {}  # by the values that it gives to its backward pass
    for item in passes:
        values = [access.value for access in (*item.reads, *item.writes)]
        if is_attention(item.op) and not item.op.endswith("_backward"):
            attention |= {access.value: item.hidden for access in item.writes}
        if item.role is Role.CONTRACTION and item.macs:
            shares = {item.hidden}.union(
                *(hides.get(group.get(value, value), ()) for value in values)
            )
            if item.op.endswith("_backward"):
                shares.update(attention[value] for value in values if value in attention)
            if None in shares:
                return None
            total += int(item.macs * max(filter(None, shares), default=SEEN))
    return total


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
        elif item.role is Role.POINTWISE and item.writes:
            most = max(access.elements for access in item.writes)
            for access in (*item.writes, *item.reads):
                if most < 2 * access.elements < 4 * most and access.value not in constants:
                    above[top(access.value)] = top(item.writes[0].value)
    return {value: top(value) for value in above}
