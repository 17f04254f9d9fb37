"""Takes what a step may wait for out of it, by turns with the step as it is: what would it gain?

The loop may be somebody else's. So a suspect is a generator's matter (`bench.training.window`): all
that is done is done where a step has ended.
"""

from __future__ import annotations

import copy
import gc
import math
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from contextlib import contextmanager, suppress
from itertools import count
from statistics import median
from typing import Any, ClassVar
from weakref import WeakKeyDictionary, WeakSet

import psutil
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode, _push_mode
from torch.utils._pytree import tree_leaves
from torch.utils.data.dataloader import _BaseDataLoaderIter as _LoaderIterator
from typing_extensions import override

from bench.errors import UserError, one_line
from bench.records.measurement import Removable
from bench.training.inputs import LoaderBatches
from bench.training.window import Around

#: Steps before the first turn, which show what feeds a step.
PREPARING = 10
#: Steps after a switch before one is timed, and until when worker processes are waited for.
SETTLING, _MOST_SETTLING = 2, 200


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
    """What may be taken out of a step; the base takes nothing out.

    All is called at the end of a step. `note` says what a reader of the gain must know.
    """

    what: ClassVar[Removable]
    note: str | None = None

    def preparing(self) -> Around[None]:
        """Yield where steps run before the first turn. Raises `UserError` where it cannot go."""
        yield from ()

    def switch(self, *, out: bool) -> None:
        """Take it out of the steps that follow, or put it back."""

    def is_settling(self, steps: int) -> bool:
        """Whether, after so many steps since the switch, the next is not yet like those later."""
        return steps < SETTLING

    def begin(self) -> None:
        """Note that the steps of a turn that are timed begin."""

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

    As long as `watched` lasts, that function is wrapped. Out of a step, each loader that feeds one
    gives the batches of the turn before again, in their order: the same shapes, so that both turns
    compute the same. A tensor that the script moves to its device is kept there.
    """

    what = "input"

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._iterators: WeakSet[Any] = WeakSet()
        self._levels: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        #: Data sets by their ids: those of this step, in how many steps, and those that feed steps.
        self._step: set[int] = set()
        self._steps: Counter[int] = Counter()
        self._feeding: frozenset[int] = frozenset()
        self._ends = self._asked = 0
        #: Batches of a step; those asked for beyond since the last switch, and before it.
        self._per_step = self._lead = self._ahead_of_steps = 0.0
        self._most_asked = math.inf  # of a step: more is another loop, which is left to end
        self._skips_ends = True
        self._ended = self._is_out = self._is_more = self._copies = False
        self._thread = threading.get_ident()
        self._kept: defaultdict[int, list[Any]] = defaultdict(list)
        self._served: list[tuple[torch.Tensor, int]] = []
        self._at: Counter[int] = Counter()
        self._free_bytes = self._left_bytes = 0
        self._why_not = ""
        self._moved: frozenset[int] = frozenset()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch the loaders within the block."""
        with asked_for_batches(self._given):
            try:
                yield
            finally:
                self._is_out = False

    def _given(self, next_batch: NextBatch, batches: Any) -> Any:
        data = id(batches._dataset)
        self._step.add(data)
        self._asked += 1
        if threading.get_ident() == self._thread and self._asked > self._most_asked:
            self._is_more = True
        if self._is_out and not self._is_more and (kept := self._kept.get(data)):
            self._at[data] += 1
            return _rebuilt(kept[(self._at[data] - 1) % len(kept)], self._serve)
        try:
            batch = next_batch(batches)
        except StopIteration:
            self._ended = True
            raise
        if data in self._feeding:
            self._iterators.add(batches)
            self._keep(data, batch)
        return batch

    def _keep(self, data: int, batch: Any) -> None:
        try:
            self._left_bytes -= sum(tensor.nbytes for tensor in _tensors(batch))
            if self._left_bytes > 0:
                self._kept[data].append(_rebuilt(batch, lambda tensor: tensor))
        except Exception as error:  # the script's own, which goes on
            self._why_not = f"its batches cannot be kept: {one_line(error)}"

    def _serve(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._copies:
            return tensor.clone()
        if not tensor.is_inference():
            self._served.append((tensor, tensor._version))
        return tensor

    def stepped(self) -> bool:
        """Note that a step has ended; return whether it was like most.

        One is not in which a loader was asked that does not feed steps, or for many more batches,
        as for a validation, or in which an epoch ended, unless an epoch has few steps.
        """
        step, ended, self._step, self._ended = self._step, self._ended, set(), False
        is_more, self._is_more = self._is_more, False
        self._lead += 0 if is_more else self._asked - self._per_step
        self._asked = 0
        self._steps.update(step)
        self._ends += ended
        if any(tensor._version != version for tensor, version in self._served):
            self._copies = True
        self._served.clear()
        strange = is_more or (ended and self._skips_ends)
        return not strange and (not self._feeding or step <= self._feeding)

    @override
    def preparing(self, *, keeps: bool = True) -> Around[None]:
        """Find the loaders that feed most steps, and what of the batches to keep is moved."""
        self._steps.clear()
        asked = []
        for _ in range(PREPARING):
            yield
            asked.append(self._asked)
            self.stepped()
        self._per_step, self._lead = median(asked), 0.0
        self._most_asked = 3 * self._per_step + 1
        most = {data for data, steps in self._steps.items() if 2 * steps > PREPARING}
        if not most:
            raise UserError("no DataLoader of torch feeds its steps")
        self._feeding, self._skips_ends = frozenset(most), self._ends < 2
        if not keeps:
            return
        free_bytes = psutil.virtual_memory().available // 4
        if self._device.type == "cuda":
            free_bytes = min(free_bytes, torch.cuda.mem_get_info(self._device)[0] // 2)
        self._free_bytes = self._left_bytes = free_bytes
        if self._device.type != "cpu":
            yield from self._seeing_moves()

    def _seeing_moves(self) -> Around[None]:
        """Note which tensors of a batch the script moves to its device, by their places in it."""
        self.begin()
        with _Moves() as moves:
            try:
                yield
            finally:
                put_on_top(moves)
        self.stepped()
        batches = [batch for kept in self._kept.values() for batch in kept]
        self._moved = frozenset(
            place
            for batch in batches
            for place, tensor in enumerate(_tensors(batch))
            if id(tensor) in moves.moved
        )

    @override
    def switch(self, *, out: bool) -> None:
        self._is_out = False
        if out:
            self._levels.update({batches: ahead(batches)[0] for batches in self._iterators})
            self._check_shapes()
            for kept in self._kept.values():
                kept[:] = map(self._placed, kept)
        else:
            self._drain()
        self._is_out, self._ahead_of_steps, self._lead = out, self._lead, 0.0
        self._at.clear()

    def _check_shapes(self) -> None:
        shapes = {
            tuple(tensor.shape for tensor in _tensors(batch))
            for kept in self._kept.values()
            for batch in kept
        }
        if self._why_not:
            raise UserError(self._why_not)
        if len(shapes) < 2:
            return
        if self._left_bytes <= 0:
            raise UserError("its batches differ in shape, and those of a turn fill the memory")
        self.note = "its batches differ in shape: both turns of a pair have the same ones"

    def _placed(self, batch: Any) -> Any:
        """Return a batch with what the script moves on its device already."""
        place = count()

        def moved(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.to(self._device) if next(place) in self._moved else tensor

        return _rebuilt(batch, moved)

    def _drain(self) -> None:
        """Take from worker processes what they have made ahead since the loader was left out."""
        for batches in [*self._iterators]:
            level = self._levels.get(batches)
            with suppress(Exception):  # its end, or a fault, which the script's own call meets too
                while level is not None and ahead(batches)[0] > level:
                    next(batches)

    @override
    def is_settling(self, steps: int) -> bool:
        workers = max((batches._num_workers for batches in self._iterators), default=0)
        if not self._is_out:
            # a thread of the script's own may hold batches that were served, and uses them up
            holds = self._ahead_of_steps + self._lead >= 1
            return steps < max(SETTLING, workers) or (holds and steps < _MOST_SETTLING)
        at_work = any(ahead(batches)[1] for batches in self._iterators)
        return steps < SETTLING or (at_work and steps < _MOST_SETTLING)

    @override
    def begin(self) -> None:
        if self._is_out:
            self._at.clear()
            if self._copies:
                self.note = "the script writes into its batches: each is copied, and that is timed"
        else:
            self._kept.clear()
            self._left_bytes = self._free_bytes


class OwnInput(Loaders):
    """The batches of our own loop: out of a step it gets its last one again, on the device."""

    _last: Any = None

    @contextmanager
    @override
    def watched(self) -> Iterator[None]:
        next_batch = LoaderBatches.next

        def given(batches: Any) -> Any:
            if self._last is None or not self._is_out:
                self._last = next_batch(batches)
            return self._last

        LoaderBatches.next = given  # type: ignore[assignment, method-assign]
        try:
            with super().watched():
                yield
        finally:
            LoaderBatches.next = next_batch  # type: ignore[method-assign]


class Exchange(Suspect):
    """DistributedDataParallel's exchange: gradients stay on their rank, as within its `no_sync`."""

    what = "sync"

    def __init__(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        """Find what trains in this process. Raises `UserError` where it cannot do without."""
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
        states = [
            optimizer.state.get(weight, {})
            for optimizer in self._optimizers
            for of_group in optimizer.param_groups
            for weight in of_group["params"]
        ]
        held = ((*model.parameters(), *model.buffers()) for model in models)
        where = next(models[0].parameters()).device  # counts of steps may be on the host: alike
        with torch.no_grad():
            for tensor in tree_leaves([*held, states]):
                if isinstance(tensor, torch.Tensor) and tensor.device == where:
                    torch.distributed.broadcast(tensor, source, group=group)


class Collector(Suspect):
    """Python's garbage collection, which is all of the host's work that a processor can do without.

    A device can do without more, as it replays a graph of its kernels.
    """

    what = "host"
    note = "garbage collection alone was off"

    def __init__(self, device: torch.device) -> None:
        """Raises `UserError` where that shows nothing."""
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
    """Notes the tensors that are copied to another device, by their ids."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.moved: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in (result, *args[:2]) if args and isinstance(args[0], torch.Tensor) else ():
            if isinstance(tensor, torch.Tensor) and tensor.device != args[0].device:
                self.moved |= {id(args[0]), id(tensor)}
        return result


def _rebuilt(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return a batch whose containers are new, so that a script may take them apart again."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, MutableMapping):
        made = copy.copy(value)
        for key in value:
            made[key] = _rebuilt(value[key], change)
        return made
    if isinstance(value, list | tuple):
        parts = [_rebuilt(part, change) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return copy.copy(value) if hasattr(value, "__dict__") else value


def _tensors(batch: Any) -> list[torch.Tensor]:
    """The tensors of a batch in their order."""
    found: list[torch.Tensor] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor)
        return tensor

    _rebuilt(batch, note)
    return found


def put_on_top(mode: TorchDispatchMode) -> None:
    """Of torch's modes the last one ends first; the script may have entered one that goes on."""
    above: list[Any] = []
    while (top := _pop_mode()) is not mode:
        above.append(top)
    for pushed in (*reversed(above), mode):
        _push_mode(pushed)
