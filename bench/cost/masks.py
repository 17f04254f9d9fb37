"""What masks hide of attention: products of a query and a key that the mathematics does not need.

A kernel may compute them all the same. The values of a mask are known while a step runs, and on
fake tensors where they follow from constants alone, as those of causal masks and sliding windows
do; else how much is hidden is not known.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from fractions import Fraction
from itertools import zip_longest
from math import prod
from typing import Any, TypeAlias

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map_only
from torch.utils.weak import WeakTensorKeyDictionary

from bench.cost.op_table import OpCall, op_names, tensors_in
from bench.cost.traffic import Pass, Role
from bench.records.complexity import is_attention

#: The part of all pairs that is hidden, exact; None where it is not known.
Hidden: TypeAlias = Fraction | None
SEEN = Fraction(0)
#: What is added to hide a pair is no more than this: its exponential is 0 in every type.
_HIDES = -1e4
_CONSTANTS = op_names("arange eye full linspace ones scalar_tensor zeros")
_LIKE = op_names("full_like new_full new_ones new_zeros ones_like zeros_like")
UNKNOWN_MASK = "how much a mask of attention hides depends on data, or it is too large to look at"
#: Ops of one element each: what an expanded dimension repeats is computed once.
_REPEATS = op_names("add bitwise_and bitwise_not bitwise_or eq ge gt le logical_and logical_not "
                    "logical_or lt masked_fill mul ne rsub sub where _to_copy")  # fmt: skip
#: Of one tensor that is followed.
_MOST_ELEMENTS = 2**26


class KnownValues:
    """The values of fake tensors that follow from constants alone; a real tensor has its own."""

    def __init__(self) -> None:
        self._values: Any = WeakTensorKeyDictionary()
        self._too_large: Any = WeakTensorKeyDictionary()
        self._shares: Any = WeakTensorKeyDictionary()

    def of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return the values of `tensor`, or None where they are not known."""
        known: torch.Tensor | None = tensor
        if isinstance(tensor, FakeTensor):
            known = self._values.get(tensor)
        return known

    def follow(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], call: OpCall
    ) -> None:
        """Compute the results of a call whose inputs are known."""
        given = [*tensors_in([*args, *kwargs.values()])]
        changed = [tensor for name in call.mutable for tensor in tensors_in(call.arguments[name])]
        if func.is_view and given[0] in self._shares and _is_all_of(call.outputs[0], given[0]):
            self._shares[call.outputs[0]] = self._shares[given[0]]
        elif given or call.op in _CONSTANTS:
            with _disable_current_modes():
                values = {id(tensor): self.of(tensor) for tensor in given}
                if call.op in _LIKE:  # it asks for a shape alone
                    like = torch.empty((), dtype=given[0].dtype)
                    values[id(given[0])] = like.expand(given[0].shape)
                elif call.op in _REPEATS and not changed:
                    values = {key: value if value is None else _once(value)
                              for key, value in values.items()}  # fmt: skip
                shapes = [value.shape for value in values.values() if value is not None]
                is_known = len(shapes) == len(values) and _is_known(func, call, changed)
                if is_known and _elements(func, call, shapes) <= _MOST_ELEMENTS:
                    real_args, real_kwargs = tree_map_only(
                        torch.Tensor, lambda tensor: values[id(tensor)], (args, kwargs)
                    )
                    with suppress(Exception):  # of any kind: then they are not known
                        results = tensors_in(func(*real_args, **real_kwargs))
                        for fake, result in zip(call.outputs, results, strict=True):
                            self._values[fake] = result.expand(fake.shape)
                        return
                elif is_known or any(tensor in self._too_large for tensor in given):
                    self._too_large.update(dict.fromkeys(call.outputs, True))
        for tensor in changed:
            self._forget(tensor)

    def _forget(self, tensor: torch.Tensor) -> None:
        """Drop what is known of a storage that is written with what is not."""
        storage = tensor.untyped_storage()._cdata
        for known in [*self._values]:
            if known.untyped_storage()._cdata == storage:
                del self._values[known]

    def hidden(self, call: OpCall) -> Hidden:
        """Return what a call of attention hides, or one that masks the scores of attention."""
        arguments = call.arguments
        if is_attention(call.op):
            if arguments.get("is_causal", False):
                return causal(arguments["query"].shape[-2], arguments["key"].shape[-2])
            mask = arguments.get("attn_mask", arguments.get("attn_bias"))
            return SEEN if mask is None else self._share(mask)
        if call.op == "masked_fill" and self._is_hiding(arguments["value"]):
            return (
                self._share(arguments["mask"], hidden_where=True)
                if _is_scores(arguments["self"])
                else SEEN
            )
        if call.op == "where" and "other" in arguments and self._is_hiding(arguments["other"]):
            return self._share(arguments["condition"]) if _is_scores(arguments["self"]) else SEEN
        if call.op == "add" and len(added := call.tensors("self", "other")) == 2:
            mask, scores = sorted(added, key=torch.Tensor.numel)
            is_mask = mask.shape[-2:] == scores.shape[-2:] and mask.numel() < scores.numel()
            if is_mask and _is_scores(scores) and not mask.requires_grad:
                if mask in self._too_large:
                    return None
                return self._share(mask) or SEEN  # what is added may be any bias
        return SEEN

    def _is_hiding(self, value: Any) -> bool:
        """Whether this value, where it takes the place of a score, hides the pair."""
        known = self.of(value) if isinstance(value, torch.Tensor) else value
        with _disable_current_modes():
            return known is not None and getattr(known, "ndim", 0) == 0 and float(known) <= _HIDES

    def _share(self, mask: torch.Tensor, *, hidden_where: bool = False) -> Hidden:
        """The part of a mask's elements that hide their pair."""
        if mask in self._shares:
            share: Fraction = self._shares[mask]
            return share
        known = self.of(mask)
        if known is None:
            return None
        with _disable_current_modes():
            once = _once(known.detach())
            hidden = once == hidden_where if once.dtype == torch.bool else once <= _HIDES
            share = Fraction(int(hidden.sum()), max(hidden.numel(), 1))
        if isinstance(mask, FakeTensor) and mask.is_floating_point():
            # Masks live until the backward pass; their values need not.
            whole = [mask, mask._base] if _is_all_of(mask, mask._base) else [mask]
            for tensor in whole:
                self._shares[tensor] = share
                self._values.pop(tensor, None)
        return share


def _is_all_of(view: torch.Tensor, base: torch.Tensor | None) -> bool:
    """Whether a view has each element of its base, all as often."""
    return (
        base is not None and _distinct(view) == _distinct(base) and view.numel() % base.numel() == 0
    )


def _distinct(tensor: torch.Tensor) -> int:
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return prod(length for length, stride in pairs if stride)


def _is_known(func: Any, call: OpCall, changed: Sequence[torch.Tensor]) -> bool:
    """Whether a call of known values has known results: it draws nothing and is all fake."""
    is_fake = all(isinstance(tensor, FakeTensor) for tensor in (*call.outputs, *changed))
    return bool(call.outputs) and is_fake and torch.Tag.nondeterministic_seeded not in func.tags


def _elements(func: Any, call: OpCall, shapes: Sequence[torch.Size]) -> int:
    """How many elements a call computes of values of these shapes, repeated ones once."""
    if func.is_view:
        return 0
    elements = max(tensor.numel() for tensor in call.outputs)
    dims = zip_longest(*(shape[::-1] for shape in shapes), fillvalue=1)
    return min(elements, prod(map(max, dims))) if call.op in _REPEATS else elements


def _once(tensor: torch.Tensor) -> torch.Tensor:
    """A view of the elements that are distinct: an expanded dimension repeats the same ones."""
    for dimension, stride in enumerate(tensor.stride()):
        tensor = tensor.narrow(dimension, 0, 1) if stride == 0 and tensor.numel() else tensor
    return tensor


def _is_scores(tensor: torch.Tensor) -> bool:
    """Whether it may be the products of all queries and keys: those of heads, of a batch."""
    return tensor.dim() > 2 and tensor.is_floating_point()


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
    masked = [item for item in passes if item.hidden != SEEN and item.role is Role.POINTWISE]
    group = _groups(passes) if masked else {}
    hides: defaultdict[int, set[Hidden]] = defaultdict(set)
    for item in masked:
        hides[group[item.writes[0].value]].add(item.hidden)
    total = 0
    for item in passes:
        if item.role is Role.CONTRACTION and item.macs:
            groups = (group.get(access.value, -1) for access in (*item.reads, *item.writes))
            shares = {item.hidden}.union(*(hides[at] for at in groups if at in hides))
            if None in shares:
                return None
            total += int(item.macs * max(filter(None, shares), default=SEEN))
    return total


def _groups(passes: Iterable[Pass]) -> dict[int, int]:
    """Values by the group that small ops on tensors of about one size connect them to."""
    above: dict[int, int] = {}

    def top(value: int) -> int:
        while above.setdefault(value, value) != value:
            value = above[value]
        return value

    for item in passes:
        if item.role is Role.POINTWISE and item.writes:
            most = max(access.elements for access in item.writes)
            for access in (*item.writes, *item.reads):
                if most < 2 * access.elements < 4 * most:
                    above[top(access.value)] = top(item.writes[0].value)
    return {value: top(value) for value in above}
