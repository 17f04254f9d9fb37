"""Takes what a step may wait for out of it: its input, the exchange of ranks, garbage collection.

The loop may be somebody else's. So all that is done is done where a step has ended, or where torch
gives the next batch.
"""

from __future__ import annotations

import copy
import gc
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from contextlib import contextmanager, suppress
from itertools import chain, count
from statistics import fmean, median
from typing import Any
from weakref import WeakKeyDictionary

import psutil
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode, _push_mode
from torch.utils._pytree import tree_leaves
from torch.utils.data.dataloader import _BaseDataLoaderIter as _LoaderIterator
from typing_extensions import override

from bench.errors import UserError
from bench.training.window import Around

#: Steps before the first turn, which show what feeds a step.
PREPARING = 10
#: Where so many of them ask for as many batches, a step that does not is left out.
_ALIKE = 0.7
#: How long worker processes are awaited that make batches ahead.
_MOST_IDLING_S = 60.0

NextBatch = Callable[[Any], Any]


@contextmanager
def asked_for_batches(give: Callable[[NextBatch, Any], Any]) -> Iterator[None]:
    """As long as the block lasts, wrap torch's function that gives a DataLoader's next batch.

    `give` gets that function and the loader's iterator. It is not asked for what another loader's
    data set takes from a loader of its own.
    """
    next_batch, nested = _LoaderIterator.__next__, threading.local()

    def given(batches: Any) -> Any:
        if getattr(nested, "is_within", False):
            return next_batch(batches)
        nested.is_within = True
        try:
            return give(next_batch, batches)
        finally:
            nested.is_within = False

    _LoaderIterator.__next__ = given  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        _LoaderIterator.__next__ = next_batch  # type: ignore[method-assign]


class Suspect:
    """What may be taken out of steps; making one raises `UserError` where it cannot go."""

    note: str | None = None  # what a reader of the gain must know

    def switch(self, *, out: bool) -> None:
        """At the end of a step, take it out of those that follow, or put it back."""

    def put_right(self) -> None:
        """After the last turn, leave the training as if nothing had been taken out."""


def ahead(batches: Any) -> tuple[int, bool]:
    """Return how many batches a loader's worker processes have ready, and whether they are at work.

    They stop by themselves once they are `prefetch_factor` batches ahead, each of them. Raises
    `UserError` where the system does not count what is ready, as macOS.
    """
    queue = getattr(batches, "_data_queue", None)
    try:
        ready = queue.qsize() if queue is not None else 0
    except NotImplementedError:
        raise UserError(
            "this system does not say how far a loader's processes are ahead: give num_workers=0"
        ) from None
    fetched = sum(len(info) > 1 for info in getattr(batches, "_task_info", {}).values())
    return ready + fetched, getattr(batches, "_tasks_outstanding", 0) > ready


class Loaders(Suspect):
    """The DataLoaders that feed the steps, seen where torch gives the next batch.

    Out of a step, each of them gives copies of the batches of the turn before, each once: the same
    shapes, so that both turns compute the same. What the script moves to its device is there.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        #: By the ids of data sets: how often this step has asked, as most do, and at most.
        self._asked: Counter[int] = Counter()
        self._usual: Counter[int] | None = None
        self._most: dict[int, float] = {}
        #: Batches of a step, and those that a thread of the script has taken beyond since a switch.
        self._per_step = self._hoarded = 0.0
        #: By iterators: what their processes had ready when they were left out.
        self._ready: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._kept: defaultdict[int, list[Any]] = defaultdict(list)
        self._moved: set[int] = set()  # which tensors of a batch, in their order
        self._free_bytes = self._left_bytes = 0
        self._is_out = False

    def give(self, next_batch: NextBatch, batches: Any) -> Any:
        """Return the next batch of a loader's iterator, or a copy of one of the turn before."""
        data = id(batches._dataset)
        self._asked[data] += 1
        kept = self._kept[data]
        # one that asks for more is another loop over the same data, which is left to end
        if self._is_out and kept and self._asked[data] <= self._most[data]:
            kept.append(kept.pop(0))
            return _rebuilt(kept[-1], torch.Tensor.clone)
        batch = next_batch(batches)
        if self._left_bytes > 0 and data in self._most and not self._is_out:
            self._ready.setdefault(batches, 0)
            with suppress(Exception):  # a container of the script's own, which goes on
                self._left_bytes -= sum(tensor.nbytes for tensor in _tensors(batch))
                kept.append(_rebuilt(batch, lambda tensor: tensor))
        return batch

    def stepped(self) -> bool:
        """Note that a step has ended; return whether it was like most.

        One is not that asked a loader which does not feed steps, or for other numbers of batches,
        as for a validation or at the end of an epoch, unless steps differ in that.
        """
        asked, self._asked = self._asked, Counter()
        if any(count > self._most.get(data, 0) for data, count in asked.items()):
            return False
        self._hoarded += sum(asked.values()) - self._per_step
        return self._usual is None or asked == self._usual

    def preparing(self, *, keeps: bool) -> Around[None]:
        """Yield where steps run that show which loaders feed most of them.

        To have what they give kept is to look, too, what of it the script moves to its device.
        """
        asked = list[Counter[int]]()
        for _ in range(PREPARING):
            yield
            asked.append(self._asked)
            self.stepped()
        steps = Counter(chain.from_iterable(asked))
        often = [data for data, number in steps.items() if 2 * number > PREPARING]
        self._most = {data: 3 * median(step[data] for step in asked) + 1 for data in often}
        self._per_step = fmean(sum(step[data] for data in often) for step in asked)
        usual = max(asked, key=asked.count)
        self._usual = usual if asked.count(usual) >= _ALIKE * PREPARING else None
        if not keeps or not often:
            return
        self._free_bytes = psutil.virtual_memory().available // 4
        if self._device.type == "cuda":
            on_device_bytes, _ = torch.cuda.mem_get_info(self._device)
            self._free_bytes = min(self._free_bytes, on_device_bytes // 2)
        self.begin()
        if self._device.type != "cpu":
            with _Moves() as moves:
                try:
                    yield
                finally:
                    put_on_top(moves)
            self.stepped()
            for tensors in map(_tensors, chain(*self._kept.values())):
                self._moved |= {at for at, tensor in enumerate(tensors) if id(tensor) in moves.ids}

    @override
    def switch(self, *, out: bool) -> None:
        was_out, self._is_out = self._is_out, False
        if out:
            for batches in [*self._ready]:
                self._ready[batches], is_at_work = ahead(batches)
                until_s = time.perf_counter() + _MOST_IDLING_S
                while is_at_work and time.perf_counter() < until_s:
                    time.sleep(0.001)
                    _, is_at_work = ahead(batches)
            self._place_kept()
            self._hoarded = 0.0
        elif was_out:
            for batches, ready in [*self._ready.items()]:
                with suppress(Exception):  # its end, or a fault, which the script's call meets too
                    for _ in range(ahead(batches)[0] - ready):
                        next(batches)
        self._asked.clear()
        self._is_out = out

    def _place_kept(self) -> None:
        """Put what the script moves on its device. Raises `UserError` where that cannot be."""
        if not self._most:
            raise UserError("no DataLoader of torch feeds its steps")
        for kept in map(self._kept.__getitem__, self._most):
            if not kept:
                raise UserError("its batches cannot be kept in memory")
            if len({tuple(tensor.shape for tensor in _tensors(batch)) for batch in kept}) > 1:
                if self._left_bytes <= 0:
                    raise UserError("its batches differ in shape, and a turn's fill the memory")
                self.note = "its batches differ in shape: both turns of a pair have the same ones"
            kept[:] = map(self._placed, kept)

    def _placed(self, batch: Any) -> Any:
        """Return a batch with what the script moves on its device already."""
        places, device = count(), self._device
        return _rebuilt(
            batch, lambda part: part.to(device) if next(places) in self._moved else part
        )

    @property
    def is_held_up(self) -> bool:
        """Whether a thread of the script still holds batches that came from memory."""
        return not self._is_out and self._hoarded >= 1

    def begin(self) -> None:
        """Note that the steps of a turn that are timed begin."""
        if not self._is_out:
            self._kept.clear()
            self._left_bytes = self._free_bytes


class Exchange(Suspect):
    """DistributedDataParallel's exchange: gradients stay on their rank, as within its `no_sync`."""

    def __init__(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        kind = torch.nn.parallel.DistributedDataParallel
        self._replicas = [found for found in gc.get_objects() if issubclass(type(found), kind)]
        self._optimizers = list(optimizers)
        if not self._replicas:
            raise UserError("no DistributedDataParallel exchanges its gradients")
        if any(replica.static_graph for replica in self._replicas):
            raise UserError("DistributedDataParallel cannot leave it out with static_graph=True")
        if any("ZeroRedundancy" in type(optimizer).__name__ for optimizer in self._optimizers):
            raise UserError("a ZeroRedundancyOptimizer exchanges weights, too")

    @override
    def switch(self, *, out: bool) -> None:
        for replica in self._replicas:
            replica.require_backward_grad_sync = not out

    @override
    def put_right(self) -> None:
        """Give every replica the weights, buffers and optimizer state of its group's first rank."""
        group = self._replicas[0].process_group
        source = torch.distributed.get_global_rank(group, 0)
        models = [replica.module for replica in self._replicas]
        held = [[*model.parameters(), *model.buffers()] for model in models]
        states = [
            optimizer.state.get(weight, {})
            for optimizer in self._optimizers
            for of_group in optimizer.param_groups
            for weight in of_group["params"]
        ]
        where = held[0][0].device  # counts of steps may be on the host: alike
        with torch.no_grad():
            for tensor in tree_leaves([held, states]):
                if isinstance(tensor, torch.Tensor) and tensor.device == where:
                    torch.distributed.broadcast(tensor, source, group=group)


class Collector(Suspect):
    """Python's garbage collection: all of the host's work that a processor can do without."""

    note = "garbage collection alone was off"

    def __init__(self, device: torch.device) -> None:
        if device.type != "cpu":
            raise UserError(
                "a script's step is not captured as a CUDA graph, which mlproject run "
                "--cuda-graphs true does with a model's; the account's idle time is the bound"
            )
        if not gc.isenabled():
            raise UserError("the script has switched garbage collection off itself")

    @override
    def switch(self, *, out: bool) -> None:
        (gc.disable if out else gc.enable)()


class _Moves(TorchDispatchMode):
    """Notes the ids of tensors that are copied from one device to another."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ids: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = [part for part in (result, *args[:2]) if isinstance(part, torch.Tensor)]
        if len({tensor.device for tensor in tensors}) > 1:
            self.ids.update(map(id, tensors))
        return result


def _rebuilt(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return a batch whose containers are new, so that a script may take them apart again."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, list | tuple):
        parts = [_rebuilt(part, change) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    made = copy.copy(value)
    if isinstance(value, MutableMapping):
        made.update({key: _rebuilt(part, change) for key, part in value.items()})
    return made


def _tensors(batch: Any) -> list[torch.Tensor]:
    """The tensors of a batch in their order."""
    tensors: list[torch.Tensor] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        tensors.append(tensor)
        return tensor

    _rebuilt(batch, note)
    return tensors


def put_on_top(mode: TorchDispatchMode) -> None:
    """Of torch's modes the last one ends first; the script may have entered one that goes on."""
    above: list[Any] = []
    while (top := _pop_mode()) is not mode:
        above.append(top)
    for pushed in (*reversed(above), mode):
        _push_mode(pushed)
