"""The processes that train together: a single one, or a rank of several."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import timedelta
from typing import Any, Literal

import torch
from torch import distributed
from torch.distributed import PrefixStore  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from bench.config import MIN_ITERATIONS, RunConfig, TimeLimits
from bench.errors import UnsupportedError, UserError
from bench.training.devices import Device, open_device
from bench.training.inputs import Shard
from bench.training.window import WindowPlan


class Team:
    """A single process: it waits for no other and sends no gradients."""

    shard = Shard()

    def open_device(self, config: RunConfig) -> Device:
        """Open this process's device, and join the others.

        Raises `UnsupportedError` for a configuration of several devices: it needs as many.
        """
        if config.world_size > 1:
            raise UnsupportedError(
                f"devices={config.devices}, nodes={config.nodes}: this looks at one device's step; "
                "use devices=1 and nodes=1"
            )
        return open_device(config.backend)

    def wrap(self, model: torch.nn.Module, device: Device) -> torch.nn.Module:
        """Return `model` with its gradients averaged over all processes."""
        return model

    def no_gradient_sync(self) -> AbstractContextManager[object]:
        """Context of a forward and backward pass whose gradients stay in this process."""
        return nullcontext()

    def plan(self, limits: TimeLimits, warmup_times_s: Sequence[float]) -> WindowPlan:
        """Agree on the window before it begins."""
        most = sys.maxsize if limits.until_known else 0
        return WindowPlan(limits.iters, limits.max_seconds, most=most)

    def most(self, value: int) -> int:
        """Return the largest `value` of any process; all call this at the same place."""
        return value

    def barrier(self) -> None:
        """Return when every process has reached this call."""


#: No collective waits longer. A rank that dies ends the others within a second or so; this is for
#: one that hangs. It must not end a rank whose neighbour still compiles.
_TIMEOUT = timedelta(minutes=10)


class DdpTeam(Team):
    """One process with one device; `environ` is what the elastic launcher gave it."""

    communication: Literal["nccl", "gloo"] = "gloo"

    def __init__(self, config: RunConfig, environ: Mapping[str, str]) -> None:
        self.shard = Shard(int(environ["RANK"]), int(environ["WORLD_SIZE"]))
        self.node = int(environ["GROUP_RANK"])
        self._local_rank = int(environ["LOCAL_RANK"])
        self._config = config
        self._host: Any = None
        self._ddp: DistributedDataParallel | None = None
        self._accounts: Any = None

    def open_device(self, config: RunConfig) -> Device:
        """Take the device of this rank's number on its node, and meet the others."""
        device = open_device(config.backend, local_rank=self._local_rank, devices=config.devices)
        if device.backend == "mps":
            raise UnsupportedError(
                f"nodes={config.nodes}: nothing carries gradients between MPS devices; "
                "use nodes=1 or backend=cpu"
            )
        self._meet(device)
        return device

    def _meet(self, device: Device) -> None:
        rank, ranks = self.shard
        store, *_ = next(rendezvous("env://", rank, ranks, timeout=_TIMEOUT))
        cuda = device.backend == "cuda"
        if cuda and distributed.is_nccl_available():
            self.communication = "nccl"
        distributed.init_process_group(
            self.communication,
            store=PrefixStore("group", store),
            rank=rank,
            world_size=ranks,
            timeout=_TIMEOUT,
            device_id=device.torch_device if cuda else None,
        )
        # Barriers and figures go through the hosts: a barrier of NCCL is work for the device.
        self._host = distributed.new_group(backend="gloo", timeout=_TIMEOUT)
        self._accounts = PrefixStore("accounts", store)
        asked = self.gather(self._config.config_id)
        if len(set(asked)) > 1:
            raise UserError(
                f"nodes={self._config.nodes}: the machines were given different configurations; "
                "start the same one on each"
            )

    def wrap(self, model: torch.nn.Module, device: Device) -> torch.nn.Module:
        """Average the gradients of `model` over all ranks, beside the backward pass.

        Not `static_graph`: it would save the search for unused parameters, which is off by default
        anyway, and it does not go together with `no_sync`.
        """
        self._ddp = DistributedDataParallel(
            model,
            device_ids=[device.torch_device.index] if device.backend == "cuda" else None,
            gradient_as_bucket_view=True,
        )
        # Weights came from the common seed; what dropout draws from now on is each rank's own.
        torch.manual_seed(self.shard.seed(self._config.seed))
        return self._ddp

    def no_gradient_sync(self) -> AbstractContextManager[object]:
        """DistributedDataParallel's `no_sync`, which must hold the forward pass too."""
        assert self._ddp is not None  # wrapped before any step  # noqa: S101
        return self._ddp.no_sync()

    def plan(self, limits: TimeLimits, warmup_times_s: Sequence[float]) -> WindowPlan:
        """Turn a time limit into a number of iterations, from the slowest rank's warm-up.

        All ranks must stop at the same iteration. Asking whether it is time after each one would
        make the hosts wait for each other in every iteration of the window.
        """
        iterations, max_seconds = limits.iters, limits.max_seconds
        if max_seconds is None:
            return WindowPlan(iterations)
        # The first lap holds what happens once: allocation, tuning, compilation.
        pace_s = max(self.gather(statistics.median(warmup_times_s[1:] or warmup_times_s)))
        fit = max(MIN_ITERATIONS, int(max_seconds / pace_s))
        if fit >= iterations:
            return WindowPlan(iterations, most=fit if limits.until_known else 0)
        why = f"max_seconds={max_seconds:g} at the warm-up's pace: {fit} of {iterations}"
        return WindowPlan(fit, ended_early=why)

    def most(self, value: int) -> int:
        """Return the largest of all ranks: all end warm-up and window before the same step."""
        return int(max(self.gather(value)))

    def barrier(self) -> None:
        """Return when every rank has reached this call."""
        distributed.barrier(self._host)

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's `value`, in the order of the ranks."""
        values: list[Any] = [None] * self.shard.ranks
        distributed.all_gather_object(values, value, group=self._host)
        return values

    def report_failure(self, account: str) -> None:
        """Send the account of a failure to rank 0, which may be on another machine."""
        with suppress(RuntimeError):  # The store may be gone with its machine.
            if self._accounts is not None:
                self._accounts.set(str(self.shard.rank), account)

    def reported_failures(self) -> dict[int, str]:
        """Return the accounts of the other ranks that failed, by rank.

        A rank sends its account before it ends, so it is there before others notice the loss.
        """
        accounts: dict[int, str] = {}
        with suppress(RuntimeError):
            for rank in range(self.shard.ranks) if self._accounts is not None else ():
                if rank != self.shard.rank and self._accounts.check([str(rank)]):
                    accounts[rank] = self._accounts.get(str(rank)).decode()
        return accounts

    def close(self) -> None:
        """End the process group with the others."""
        if distributed.is_initialized():
            distributed.destroy_process_group()
