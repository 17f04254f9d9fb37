"""The nodes of a cluster, and what is under way on them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray import exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from bench.config import RunConfig
from bench.machine.source_hash import code_id
from bench.records import Environment
from campaigns.sweep.ray import node as on_node
from campaigns.sweep.ray.nodes import Node, usable

#: A node that fails to tell what it has so often is left alone.
_TRIES = 3
#: So many machines at most are asked of an autoscaler at a time.
_MOST_CALLS = 16


@dataclass(frozen=True)
class Landing:
    """What came home: the records of a node, and of a flight (by its key) how it ended."""

    node: Node
    parcels: tuple[bytes, ...]
    key: str | None = None
    lost: str | None = None
    out_of_memory: bool = False


class Fleet:
    """Every node with a CPU that Ray may hand out; each tells what it has before it measures.

    `note` is told, once, which node cannot be used, and why.
    """

    def __init__(self, env: str, campaign: str, records: Path, note: Callable[[str], None]) -> None:
        self.nodes: dict[str, Node] = {}
        self._env = env
        self._campaign = campaign
        self._records = records
        self._note = note
        self._code = code_id()
        self._flights: dict[Any, tuple[str, Node]] = {}
        self._asked: dict[Any, Mapping[str, Any]] = {}
        self._kept: list[Landing] = []
        self._failures: Counter[str] = Counter()
        self._calls: dict[str, list[Any]] = {"cpu": [], "cuda": []}
        self._measure = ray.remote(on_node.measure)
        self._identify = ray.remote(on_node.identify)
        self._here = ray.remote(on_node.here)

    @property
    def asking(self) -> bool:
        """Whether a node has yet to tell what it has."""
        return bool(self._asked)

    def meet(self) -> None:
        """Wait until every living node has told what it has."""
        self.refresh()
        told: list[Landing] = []
        while self._asked:
            told += self.wait(1.0)
        self._kept = told

    def refresh(self) -> None:
        """Ask nodes that joined what they have, and forget those that are gone."""
        alive = {
            each["NodeID"]: each
            for each in ray.nodes()  # type: ignore[no-untyped-call]
            if each["Alive"] and each["Resources"].get("CPU", 0) >= 1
        }
        for gone in self.nodes.keys() - alive.keys():
            del self.nodes[gone]
        known = self.nodes.keys() | {facts["NodeID"] for facts in self._asked.values()}
        for node_id in alive.keys() - known:
            if self._failures[node_id] < _TRIES:
                self._ask(alive[node_id])

    def fly(
        self, key: str, node: Node, config: RunConfig, environment: Environment, settle_s: float
    ) -> None:
        """Start to measure on `node`; `key` is the record's identifier."""
        order = {
            "record_id": key,
            "config": config.model_dump(mode="json"),
            "device": environment.device.model_dump(mode="json"),
            "settle_s": settle_s,
            "at_rest_c": dict(node.at_rest(environment)),
        }
        node.begin(key, config, environment)
        options = _pinned(node.node_id) | node.demand(config, environment)
        self._flights[self._measure.options(**options).remote(order)] = (key, node)

    def wait(self, timeout_s: float) -> list[Landing]:
        """Wait for something to end, at most so long, and return what ended."""
        kept, self._kept = self._kept, []
        under_way = [*self._flights, *self._asked]
        if not under_way:
            time.sleep(0 if kept else timeout_s)
            return kept
        ray.wait(under_way, timeout=0 if kept else timeout_s)
        ended, _ = ray.wait(under_way, num_returns=len(under_way), timeout=0)
        landings = [self._land(ref) for ref in ended]
        return kept + [landing for landing in landings if landing is not None]

    def call_for(self, kind: str, count: int) -> None:
        """Have so many machines of a kind wanted: an autoscaler adds what Ray's queue needs."""
        calls = self._calls[kind]
        if calls:
            _, calls[:] = ray.wait(calls, num_returns=len(calls), timeout=0)
        for _ in range(min(count, _MOST_CALLS) - len(calls)):
            demand = {"num_cpus": 1, "num_gpus": 1 if kind == "cuda" else 0}
            calls.append(self._here.options(max_retries=0, **demand).remote())
        while len(calls) > count:
            ray.cancel(calls.pop())

    def cancel(self) -> None:
        """Ask everything under way to end; what was measured so far still lands."""
        for ref in [*self._flights, *self._asked]:
            ray.cancel(ref)

    def _ask(self, facts: Mapping[str, Any]) -> None:
        resources = facts["Resources"]
        demand = {"num_cpus": resources["CPU"], "num_gpus": min(1, resources.get("GPU", 0))}
        known = [path.name for path in self._records.glob("*Z-*")]
        task = self._identify.options(**_pinned(facts["NodeID"]), **demand)
        self._asked[task.remote(self._env, self._campaign, known)] = facts

    def _land(self, ref: Any) -> Landing | None:
        if ref in self._asked:
            return self._meet(ref, self._asked.pop(ref))
        key, node = self._flights.pop(ref)
        node.end(key)
        try:
            return Landing(node, (ray.get(ref),), key)
        except exceptions.RayError as error:
            # Whether the node still lives, and is fit, it has to tell before it measures again.
            self.nodes.pop(node.node_id, None)
            full = isinstance(error, exceptions.OutOfMemoryError)
            return Landing(node, (), key, lost=_why(error), out_of_memory=full)

    def _meet(self, ref: Any, facts: Mapping[str, Any]) -> Landing | None:
        """Take in what a node told, or note why it cannot be used."""
        node_id, name = facts["NodeID"], facts["NodeManagerAddress"]
        try:
            told, parcels = ray.get(ref)
        except exceptions.RayError as error:
            self._failures[node_id] += 1
            if self._failures[node_id] == _TRIES:
                self._note(f"node {name} cannot measure: {_why(error)}; mlproject doctor there")
            return None
        if told["code"] != self._code:
            self._failures[node_id] = _TRIES
            self._note(f"node {name} is left out: its mlproject is not this one; update it there")
            return None
        gpus = facts["Resources"].get("GPU", 0)
        found = tuple(map(Environment.model_validate, told["environments"]))
        kept = usable(found, gpus)
        at_rest_c = tuple(told["at_rest_c"][found.index(each)] for each in kept)
        node = Node(node_id, name, facts["Resources"]["CPU"], gpus, kept, at_rest_c)
        self.nodes[node_id] = node
        return Landing(node, tuple(parcels))


def _pinned(node_id: str) -> dict[str, Any]:
    """Options of a task for one node. The sweep itself tries again, and elsewhere."""
    return {
        "scheduling_strategy": NodeAffinitySchedulingStrategy(node_id, soft=False),
        "max_retries": 0,
    }


def _why(error: exceptions.RayError) -> str:
    """One line of what Ray says in many."""
    if isinstance(error, exceptions.RayTaskError):
        return str(error.cause)
    words = {
        exceptions.NodeDiedError: "the node died",
        exceptions.TaskUnschedulableError: "the node is gone",
        exceptions.WorkerCrashedError: "Ray's process on the node died",
        exceptions.OutOfMemoryError: "Ray ended it because the node ran out of memory",
        exceptions.TaskCancelledError: "cancelled",
    }
    return words.get(type(error)) or str(error).strip().partition("\n")[0]
