"""A sweep on the nodes of a Ray cluster, and the driver's connection to it."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable, Collection, Generator, Iterator
from pathlib import Path
from typing import Any

from bench.errors import UserError
from bench.records import Environment
from campaigns.sweep.local import Deliver, SweepOrder, SweepWatch, Turn

#: How Ray starts what it runs for us, by its own variables (src/ray/common/ray_config_def.h).
_WORKERS = {
    # Ray gives way to everything else on a host (niceness 15); a measurement must not.
    "RAY_worker_niceness": "0",
    # The launcher ends with its pipe and writes what was measured; Ray would kill it outright.
    "RAY_kill_child_processes_on_worker_exit": "false",
}
_NAMESPACE = "mlproject"
_ANSWER_S = 5.0


class Claim:
    """One sweep per campaign and cluster: the name of this actor; it dies with its driver."""


@contextlib.contextmanager
def _connection(address: str, campaign: str) -> Iterator[None]:
    """Be a driver of the cluster at `address` that sweeps `campaign`.

    Raises `UserError` where Ray is not installed, no cluster answers, or the campaign is being
    swept there already.
    """
    try:
        import ray
    except ImportError:
        raise UserError(
            "executor='ray': Ray is not installed; pip install 'mlproject[ray]', or in a clone "
            "uv pip install -e '.[ray]'"
        ) from None
    _refuse_closed_port(address)
    on_term = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(
            address=address,
            namespace=_NAMESPACE,
            runtime_env={"env_vars": _WORKERS},
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        line = str(error).strip().splitlines()[0]
        raise UserError(f"address={address!r}: {line}") from None
    finally:
        signal.signal(signal.SIGTERM, on_term)  # Ray sets its own
    try:
        claim = _claim(campaign)
        yield
        del claim
    finally:
        with muted_stdout():
            ray.shutdown()


@contextlib.contextmanager
def muted_stdout() -> Iterator[None]:
    """Keep stdout from what Ray prints of a node's end, dozens of lines, at any time."""
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


def _refuse_closed_port(address: str) -> None:
    """Ray tries for a long time, and prints a page, where nothing listens."""
    host, _, port = address.rpartition(":")
    if "//" in address or not host or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWER_S).close()
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(
            f"address={address!r}: no Ray cluster answers there ({why}); "
            "start one with: ray start --head --num-cpus=0"
        ) from None


def _claim(campaign: str) -> Any:
    """Return what holds the claim for as long as it is referred to."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    try:
        return (
            ray.remote(Claim)
            .options(name=f"sweep {campaign}", num_cpus=0, scheduling_strategy=here)
            .remote()
        )
    except ValueError:  # the name is taken
        raise UserError(
            f"campaign={campaign!r}: another sweep of it is under way on this cluster; "
            "wait for its end, or name another campaign"
        ) from None


#: What a cluster may get though no node has it yet; no cloud makes Macs on demand.
_ON_DEMAND = {"cpu", "cuda"}


class RayExecutor:
    """Distributes runs over the nodes of the cluster at `address`; `env` labels all of them.

    `note` receives a line for each problem of a node. A run waits `node_wait_s` for a node that
    has its device.
    """

    place = "the cluster"
    backends: Collection[str] = ()
    environments: tuple[Environment, ...] = ()

    def __init__(
        self, address: str, env: str, *, node_wait_s: float, note: Callable[[str], None]
    ) -> None:
        self._address = address
        self._env = env
        self._node_wait_s = node_wait_s
        self._note = note

    @contextlib.contextmanager
    def connected(self, campaign: str, records: Path) -> Iterator[RayExecutor]:
        """Be connected, and know what the living nodes have. Raises `UserError`."""
        with _connection(self._address, campaign):
            from campaigns.sweep.ray.cluster_nodes import NodePool

            self._nodes = NodePool(self._env, campaign, records, self._note)
            self._nodes.identify()
            found = (each for node in self._nodes.nodes.values() for each in node.environments)
            self.backends = {*_ON_DEMAND, *(each.device.backend for each in found)}
            yield self

    def sweep(self, order: SweepOrder, deliver: Deliver, watch: SweepWatch) -> Generator[Turn]:
        """Yield what became of each run, as it ends."""
        from campaigns.sweep.ray.scheduler import RaySweep

        sweep = RaySweep(order, deliver, watch, self._nodes, self._note, self._node_wait_s)
        with muted_stdout():  # `note` receives it in one line
            yield from sweep.run()
