"""What a rank of a script notes of each of its steps: what it waits for, and what it does itself.

A step is the rank's own work, with the wait for its loader, and the wait in the exchange. That wait
ends for all ranks together: who has waited least made the others wait. Each rank appends its steps
to a file in the record's folder, four times a second; the launcher joins them. On machines without
rank 0 it appends them to the store of torch's process group, and rank 0 writes the file at the end.

Within a backward pass of DistributedDataParallel the wait is from the end of the own gradients to
the end of the exchange. Elsewhere it is what Python waits for: torch's `Work`, collectives of
tensors that are cut over devices, and a model's buffers before its forward pass.
"""

from __future__ import annotations

import gc
import json
import math
import os
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch

from bench.machine import value_or_none
from bench.machine.limits import peak_memory_bytes
from bench.records.journal import STEP_OF_RANK, JournalWriter, steps_of_rank

#: Between two writings of the steps that have ended.
_WRITE_S = 0.25
#: In the store: the file of a rank of another machine, and that rank 0 needs no more of it.
_STEPS, _ENDED = "mlproject steps {}", "mlproject ended"


class RankMeter:
    """Notes the steps of one rank; torch's hooks call `after`, or `stepped`, as of a `ScriptMeter`.

    The steps are counted from the first that ends, or from the first of the optimizer that steps
    most rarely: alike on all ranks. Nothing is done in a process that trains alone.
    """

    has_ended = False

    def __init__(self, folder: Path, *, by_function: bool) -> None:
        self._folder, self._by_function = folder, by_function
        self._clock, self._processor = time.perf_counter, time.thread_time
        self._counts: WeakKeyDictionary[torch.optim.Optimizer, int] = WeakKeyDictionary()
        self._leader: torch.optim.Optimizer | None = None
        self._look = self._looking()
        self._on_card = self._is_done = False
        self._thread, self._pid = threading.get_ident(), os.getpid()
        self._path: Path | None = None
        self._facts = b""  # a line about the rank
        self.node = 0  # the number of this machine, of several
        self._rank = self._ranks = 0
        self._store: Any = None  # of torch's process group
        self._rows: deque[list[Any]] = deque()  # not yet written
        self._written_s = self._data_wait_s = self._loaded_s = self._processor_s = 0.0
        self._waits: list[tuple[Any, Any]] = []  # begin and end, of the clock or of the GPU
        self._depth, self._begin = 0, None

    @property
    def is_timing(self) -> bool:
        """Whether it imports nothing any more."""
        return self._path is not None

    @property
    def goes_on(self) -> bool:
        """Whether rank 0 of another machine may still ask for steps."""
        return bool(self.node) and self._path is not None and not self._is_done

    def before(self, *_: object) -> None:
        """Note nothing: that an optimizer's step begins."""

    def after(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        """Note that it has ended; of several optimizers the rarest ends a step."""
        count = self._counts[optimizer] = self._counts.get(optimizer, 0) + 1
        if self._leader is None:
            self._leader = optimizer
        elif count == 2 and self._counts[self._leader] > 2:
            self._leader = optimizer
            self._rows.clear()
            self._open()
        if optimizer is self._leader and not self._by_function:
            self.stepped()

    def stepped(self) -> None:
        """Note the end of a step, until rank 0 has ended its window."""
        if self._is_done:
            return
        if self._path is None:
            with suppress(Exception):  # the script's own: rank 0 says what it is
                next(self._look, None)
            return
        now_s, processor_s = self._clock(), self._processor()
        used_s = processor_s - self._processor_s - self._loaded_s
        self._rows.append([now_s, self._data_wait_s, self._waits, used_s])
        self._processor_s, self._waits = processor_s, []
        self._data_wait_s = self._loaded_s = 0.0
        if now_s - self._written_s > _WRITE_S:
            self._written_s = now_s
            self.write()
            self._is_done = self._has_rank_0_ended()

    def _has_rank_0_ended(self) -> bool:
        if not self.node:
            return (self._folder / "worker.json").exists()
        with suppress(Exception):
            return bool(self._store.check([_ENDED]))
        return True  # the store has ended, and so has rank 0

    def _looking(self) -> Iterator[None]:
        """Look at one step for what is trained and how; time those after it. A step ends a turn."""
        from bench.worker.script_model import Training

        distributed = torch.distributed
        while not (distributed.is_available() and distributed.is_initialized()):
            yield
        self._ranks = distributed.get_world_size()
        if self._ranks == 1:
            return
        training = Training(self._counts)
        device, rank = training.open_device(), distributed.get_rank()
        self._rank, self.node = rank, int(os.environ.get("GROUP_RANK") or 0)
        self._store = value_or_none(distributed.distributed_c10d._get_default_store)
        with training.watched(0) as seen:
            yield
        if seen.hook is not None:
            seen.hook.remove()
        self._on_card, info = device.backend == "cuda", device.info()
        own = {
            "rank": rank,
            "node": self.node,
            "host": socket.gethostname(),
            "device": info.name,
            "device_uuid": info.uuid,
            "samples_per_step": None if seen.sample == "step" else seen.samples,
        }
        backend, shares = distributed.get_backend(), parallelism_of(training)
        job = {"communication": backend, "parallelism": shares}
        self._facts = json.dumps({"rank": own, "job": job}).encode() + b"\n"
        self._path = steps_of_rank(self._folder, rank)
        if rank and self._on_card:  # so that the launcher samples it
            journal = JournalWriter(self._folder / "journal.jsonl", always={"rank": rank})
            journal.note("device", backend=device.backend, uuid=info.uuid)
        self._stand_around(training)
        self._open()

    def _open(self) -> None:
        """Empty the file, and begin the first step that is timed."""
        if self._path is not None:
            self._put(self._facts, empty=True)
            self._rows.append([self._clock(), 0.0, [], 0.0])
            self._processor_s, self._written_s = self._processor(), self._clock()

    def _stand_around(self, training: Any) -> None:
        """Time what this thread waits for, from now to the end of the process."""
        from torch._C._distributed_c10d import Work
        from torch.distributed import _functional_collectives
        from torch.nn.parallel import DistributedDataParallel
        from torch.utils.data.dataloader import _BaseDataLoaderIter

        places: list[tuple[Any, str]] = [(Work, "wait"), (_functional_collectives, "wait_tensor")]
        if any(isinstance(root, DistributedDataParallel) for root in training.roots):
            places.append((DistributedDataParallel, "_sync_buffers"))
            weights = [weight for weight in training.parameters if weight.requires_grad]
            for weight in {id(weight): weight for weight in (weights[0], weights[-1])}.values():
                weight.register_post_accumulate_grad_hook(self._on_gradient)
        for holder, name in places:
            setattr(holder, name, self._timed(getattr(holder, name)))
        loaded: Any = self._timed(_BaseDataLoaderIter.__next__, loads=True)
        _BaseDataLoaderIter.__next__ = loaded  # type: ignore[method-assign]

    def _timed(self, wait: Callable[..., Any], *, loads: bool = False) -> Callable[..., Any]:
        """A function whose time in this thread is a wait, for a batch if it `loads`."""

        @wraps(wait)
        def waiting(*args: Any, **kwargs: Any) -> Any:
            is_ours = threading.get_ident() == self._thread and os.getpid() == self._pid
            if self._is_done or not is_ours:
                return wait(*args, **kwargs)
            begin_s, used_s = self._clock(), self._processor()
            self._enter(counts=not loads)
            try:
                return wait(*args, **kwargs)
            finally:
                self._leave()
                if loads and not self._depth:
                    self._data_wait_s += self._clock() - begin_s
                    self._loaded_s += self._processor() - used_s

        return waiting

    def _on_gradient(self, _: torch.Tensor) -> None:
        """Have the end of the own backward pass noted, and then that of the exchange.

        DistributedDataParallel has what waits for the exchange called between the two.
        """
        if self._is_done:
            return
        engine = torch.autograd.Variable._execution_engine

        def own_ended() -> None:
            self._enter()
            engine.queue_callback(self._leave)

        engine.queue_callback(own_ended)

    def _enter(self, *, counts: bool = True) -> None:
        self._depth += 1
        if self._depth == 1:
            self._begin = self._now() if counts else None

    def _leave(self) -> None:
        self._depth -= 1
        if self._depth == 0 and self._begin is not None:
            self._waits.append((self._begin, self._now()))

    def _now(self) -> Any:
        """The clock, or an event in the queue of a GPU; None where a graph is recorded."""
        if not self._on_card:
            return self._clock()
        if torch.cuda.is_current_stream_capturing():
            return None
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def write(self) -> None:
        """Append the steps that have ended, on their device too."""
        peak_bytes, ended = self._peak_bytes(), b""
        while self._rows and all(_has_ended(end) for _, end in self._rows[0][2]):
            now_s, data_wait_s, waits, processor_s = self._rows.popleft()
            exchange_s = sum(_between(*wait) for wait in waits)
            ended += STEP_OF_RANK.pack(now_s, data_wait_s, exchange_s, processor_s, peak_bytes)
        self._put(ended)

    def _put(self, steps: bytes, *, empty: bool = False) -> None:
        """Append to the file, or where rank 0 is on another machine to the group's store."""
        with suppress(Exception):  # the folder is gone, or the store
            if self.node:
                (self._store.set if empty else self._store.append)(_STEPS.format(self._rank), steps)
            elif self._path is not None:
                with self._path.open("wb" if empty else "ab") as file:
                    file.write(steps)

    def _collect(self) -> None:
        """As rank 0 write the files of the ranks of other machines."""
        files = {rank: steps_of_rank(self._folder, rank) for rank in range(self._ranks)}
        with suppress(Exception):
            for rank, file in files.items():
                if not file.exists() and self._store.check([_STEPS.format(rank)]):
                    self._store.set(_ENDED, "")
                    file.write_bytes(self._store.get(_STEPS.format(rank)))

    def _peak_bytes(self) -> float:
        if self._on_card:
            return float(torch.cuda.max_memory_allocated())
        return float(value_or_none(peak_memory_bytes) or 0)

    def close(self, *_: object) -> None:
        """Write the last steps, and a row of zeros: what is killed has none."""
        self._is_done = True
        if self._path is not None and os.getpid() == self._pid:
            self.write()
            self._put(bytes(STEP_OF_RANK.size))
            if self._rank == 0:
                self._collect()
            self._path = None


def _cut_over(training: Any) -> Iterator[tuple[bool, int]]:
    """Of each parameter: whether fully_shard cuts it, and over how many ranks others do.

    Of what fully_shard cuts each has a batch of its own: that is the first dimension so cut.
    """
    sharding: Any = sys.modules.get("torch.distributed.fsdp")
    wrapped = (sharding.FSDPModule,) if sharding else ()
    modules = (module for root in training.roots for module in root.modules())
    gathered = {id(parameter) for module in modules if isinstance(module, wrapped)
                for parameter in module.parameters()}  # fmt: skip
    for parameter in training.parameters:
        mesh: Any = getattr(parameter, "device_mesh", None)
        hows = () if mesh is None else enumerate(getattr(parameter, "placements", ()))
        cut = [mesh.size(dim) for dim, how in hows if not how.is_replicate()]
        is_gathered = id(parameter) in gathered
        yield is_gathered, math.prod(cut[1:] if is_gathered else cut)


def _stages() -> int:
    """How many stages a pipeline has that a rank of this process is part of; 1 without one."""
    pipelining: Any = sys.modules.get("torch.distributed.pipelining.stage")
    kinds = (pipelining.PipelineStage,) if pipelining else ()
    stages = (item.num_stages for item in gc.get_objects() if kinds and type(item) in kinds)
    return max(stages, default=1)


def ranks_of_a_batch(training: Any) -> int:
    """Return how many processes share the work of one batch: by cut parameters, and by stages."""
    return max((ranks for _, ranks in _cut_over(training)), default=1) * _stages()


def parallelism_of(training: Any) -> str:
    """Return how processes share the work, by torch's names, as far as this one shows it."""
    averaged = torch.nn.parallel.DistributedDataParallel
    shown = {
        "DistributedDataParallel": any(isinstance(root, averaged) for root in training.roots),
        "fully_shard": any(is_gathered for is_gathered, _ in _cut_over(training)),
        "tensor parallel": any(ranks > 1 for _, ranks in _cut_over(training)),
        "pipeline": _stages() > 1,
    }
    return ", ".join(name for name, is_so in shown.items() if is_so) or "the script's own exchange"


def _has_ended(mark: Any) -> bool:
    return mark is None or isinstance(mark, float) or bool(mark.query())


def _between(begin: Any, end: Any) -> float:
    if begin is None or end is None:
        return 0.0
    return float(end - begin if isinstance(begin, float) else begin.elapsed_time(end) / 1e3)
