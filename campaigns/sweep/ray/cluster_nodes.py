"""The nodes of a cluster: what each has, what is free of it, and what is under way there.

The scheme needs nothing but Ray's own CPU and GPU counts. A run on the CPU (or an Apple GPU, which
shares its memory) asks for every CPU of the node; a run on a GPU asks for the GPU and a part of
the CPUs. So one benchmark has a device, and a CPU run has the whole host.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray import exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from bench.config import RunConfig
from bench.machine.repository import code_id
from bench.records import Environment
from campaigns.sweep.ray import on_node

#: A node that so often fails to say what it has is not asked again.
_MAX_TRIES = 3
#: So many machines at most are requested of an autoscaler at a time.
_MAX_REQUESTS = 16


@dataclass
class Node:
    """One node that has said what it has."""

    node_id: str
    name: str
    cpus: float
    gpus: float
    environments: tuple[Environment, ...]  # what `auto` takes comes first
    at_rest_c: tuple[Mapping[str, float], ...]  # of each environment's device, before the sweep
    #: GPUs of each run under way, by record identifier; 0 of a run that has the whole host.
    gpus_taken: dict[str, int] = field(default_factory=dict)

    def environment_of(self, config: RunConfig) -> Environment | None:
        """Return what `config` would be measured on here, or None if this node has no such."""
        for environment in self.environments:
            backend = environment.device.backend
            if config.backend in ("auto", backend):
                enough = backend != "cuda" or config.devices <= self.gpus
                return environment if enough else None
        return None

    def is_free_for(self, config: RunConfig, environment: Environment) -> bool:
        """Whether no run here uses what `config` needs."""
        taken = self.gpus_taken.values()
        if environment.device.backend != "cuda":
            return not taken
        return 0 not in taken and sum(taken) + config.devices <= self.gpus

    def begin(self, record_id: str, config: RunConfig, environment: Environment) -> None:
        """Note that a run has started here."""
        on_gpu = environment.device.backend == "cuda"
        self.gpus_taken[record_id] = config.devices if on_gpu else 0

    def end(self, record_id: str) -> None:
        """Note that it has ended."""
        del self.gpus_taken[record_id]

    def demand(self, config: RunConfig, environment: Environment) -> dict[str, float]:
        """Return what a run asks of Ray."""
        if environment.device.backend != "cuda":
            return {"num_cpus": self.cpus, "num_gpus": 0}
        share = min(1.0, self.cpus / self.gpus) * config.devices
        return {"num_cpus": share, "num_gpus": config.devices}


def usable(environments: tuple[Environment, ...], gpus: float) -> tuple[Environment, ...]:
    """Return the devices that Ray hands out: a GPU that it does not count is not used."""
    return tuple(each for each in environments if gpus >= 1 or each.device.backend != "cuda")


@dataclass(frozen=True)
class Finished:
    """A task that ended on a node: the records that it sent, each packed.

    `record_id` is that of the measurement that this ends, None where the node was identified;
    `lost` says why a measurement brought no record.
    """

    node_name: str
    archives: tuple[bytes, ...]
    record_id: str | None = None
    lost: str | None = None
    out_of_memory: bool = False


class NodePool:
    """Every node with a CPU that Ray may hand out; each says what it has before it measures.

    `note` receives one line about each node that cannot be used.
    """

    def __init__(self, env: str, campaign: str, records: Path, note: Callable[[str], None]) -> None:
        self.nodes: dict[str, Node] = {}
        self._env = env
        self._campaign = campaign
        self._records = records
        self._note = note
        self._code = code_id()
        self._measuring: dict[Any, tuple[str, Node]] = {}
        self._identifying: dict[Any, Mapping[str, Any]] = {}
        self._kept: list[Finished] = []
        self._failures: Counter[str] = Counter()
        self._requests: dict[str, list[Any]] = {"cpu": [], "cuda": []}
        self._measure = ray.remote(on_node.measure)
        self._identify = ray.remote(on_node.identify)
        self._placeholder = ray.remote(on_node.request_placeholder)

    @property
    def identifying(self) -> bool:
        """Whether a node has yet to say what it has."""
        return bool(self._identifying)

    def identify(self) -> None:
        """Wait until every living node has said what it has."""
        self.refresh()
        finished: list[Finished] = []
        while self._identifying:
            finished += self.wait(1.0)
        self._kept = finished

    def refresh(self) -> None:
        """Identify nodes that joined, and forget those that are gone."""
        alive = {
            each["NodeID"]: each
            for each in ray.nodes()  # type: ignore[no-untyped-call]
            if each["Alive"] and each["Resources"].get("CPU", 0) >= 1
        }
        for gone in self.nodes.keys() - alive.keys():
            del self.nodes[gone]
        known = self.nodes.keys() | {facts["NodeID"] for facts in self._identifying.values()}
        for node_id in alive.keys() - known:
            if self._failures[node_id] < _MAX_TRIES:
                self._start_identifying(alive[node_id])

    def start(
        self,
        record_id: str,
        node: Node,
        config: RunConfig,
        environment: Environment,
        settle_s: float,
    ) -> None:
        """Start to measure on `node`."""
        order = {
            "record_id": record_id,
            "config": config.model_dump(mode="json"),
            "device": environment.device.model_dump(mode="json"),
            "settle_s": settle_s,
            "at_rest_c": dict(node.at_rest_c[node.environments.index(environment)]),
        }
        node.begin(record_id, config, environment)
        options = _pinned(node.node_id) | node.demand(config, environment)
        self._measuring[self._measure.options(**options).remote(order)] = (record_id, node)

    def wait(self, timeout_s: float) -> list[Finished]:
        """Wait for something to end, at most so long, and return what ended."""
        kept, self._kept = self._kept, []
        under_way = [*self._measuring, *self._identifying]
        if not under_way:
            time.sleep(0 if kept else timeout_s)
            return kept
        ray.wait(under_way, timeout=0 if kept else timeout_s)
        ended, _ = ray.wait(under_way, num_returns=len(under_way), timeout=0)
        finished = [self._finish(ref) for ref in ended]
        return kept + [each for each in finished if each is not None]

    def request_nodes(self, kind: str, count: int) -> None:
        """Have an autoscaler add machines of a kind until `count` tasks find one.

        Tasks that do nothing wait in Ray's queue. `ray.autoscaler.sdk.request_resources` would stay
        in force after this driver is killed, keep the machines (and their price) running, and
        replace the request of any other driver on the cluster; queued tasks end with their driver.
        """
        requests = self._requests[kind]
        if requests:
            _, requests[:] = ray.wait(requests, num_returns=len(requests), timeout=0)
        for _ in range(min(count, _MAX_REQUESTS) - len(requests)):
            demand = {"num_cpus": 1, "num_gpus": 1 if kind == "cuda" else 0}
            requests.append(self._placeholder.options(max_retries=0, **demand).remote())
        while len(requests) > count:
            ray.cancel(requests.pop())

    def cancel(self) -> None:
        """Ask everything under way to end; what was measured so far still arrives."""
        for ref in [*self._measuring, *self._identifying]:
            ray.cancel(ref)

    def _start_identifying(self, facts: Mapping[str, Any]) -> None:
        resources = facts["Resources"]
        demand = {"num_cpus": resources["CPU"], "num_gpus": min(1, resources.get("GPU", 0))}
        known = [path.name for path in self._records.glob("*Z-*")]
        task = self._identify.options(**_pinned(facts["NodeID"]), **demand)
        self._identifying[task.remote(self._env, self._campaign, known)] = facts

    def _finish(self, ref: Any) -> Finished | None:
        if ref in self._identifying:
            return self._add_node(ref, self._identifying.pop(ref))
        record_id, node = self._measuring.pop(ref)
        node.end(record_id)
        try:
            return Finished(node.name, (ray.get(ref),), record_id)
        except exceptions.RayError as error:
            # The node is identified again before it measures again: it may be dead, or unfit.
            self.nodes.pop(node.node_id, None)
            full = isinstance(error, exceptions.OutOfMemoryError)
            return Finished(node.name, (), record_id, lost=_why(error), out_of_memory=full)

    def _add_node(self, ref: Any, facts: Mapping[str, Any]) -> Finished | None:
        """Take in what a node said that it has, or note why it cannot be used."""
        node_id, name = facts["NodeID"], facts["NodeManagerAddress"]
        try:
            found, archives = ray.get(ref)
        except exceptions.RayError as error:
            self._failures[node_id] += 1
            if self._failures[node_id] == _MAX_TRIES:
                self._note(f"node {name} cannot measure: {_why(error)}; mlproject doctor there")
            return None
        if found["code"] != self._code:
            self._failures[node_id] = _MAX_TRIES
            self._note(f"node {name} is left out: its mlproject is not this one; update it there")
            return None
        gpus = facts["Resources"].get("GPU", 0)
        environments = tuple(map(Environment.model_validate, found["environments"]))
        kept = usable(environments, gpus)
        at_rest_c = tuple(found["at_rest_c"][environments.index(each)] for each in kept)
        node = Node(node_id, name, facts["Resources"]["CPU"], gpus, kept, at_rest_c)
        self.nodes[node_id] = node
        return Finished(name, tuple(archives))


def _pinned(node_id: str) -> dict[str, Any]:
    """Options of a task for one node. The sweep itself tries again, and elsewhere."""
    return {
        "scheduling_strategy": NodeAffinitySchedulingStrategy(node_id, soft=False),
        "max_retries": 0,
    }


def _why(error: exceptions.RayError) -> str:
    """One line instead of the many of Ray's message."""
    if isinstance(error, exceptions.RayTaskError):
        return str(error.cause)
    reasons = {
        exceptions.NodeDiedError: "the node died",
        exceptions.TaskUnschedulableError: "the node is gone",
        exceptions.WorkerCrashedError: "Ray's process on the node died",
        exceptions.OutOfMemoryError: "Ray ended it because the node ran out of memory",
        exceptions.TaskCancelledError: "cancelled",
    }
    return reasons.get(type(error)) or str(error).strip().partition("\n")[0]
