"""A node of the cluster as the driver sees it: what it has, and what is free of it.

The scheme needs nothing but Ray's own CPU and GPU counts. A run on the CPU (or an Apple GPU, which
shares its memory) asks for every CPU of the node; a run on a GPU asks for the GPU and a part of
the CPUs. So one benchmark has a device, and a CPU run has the whole host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bench.config import RunConfig
from bench.records import Backend, Environment


@dataclass
class Node:
    """One node that told what it has."""

    node_id: str
    name: str
    cpus: float
    gpus: float
    environments: tuple[Environment, ...]  # what `auto` takes comes first
    at_rest_c: tuple[Mapping[str, float], ...]  # of each environment's device
    running: dict[str, Environment] = field(default_factory=dict)  # by the key of a flight
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
        """Whether nothing that runs here stands in the way."""
        if environment.device.backend != "cuda":
            return not self.running
        if any(other.device.backend != "cuda" for other in self.running.values()):
            return False
        return sum(self.gpus_taken.values()) + config.devices <= self.gpus

    def begin(self, key: str, config: RunConfig, environment: Environment) -> None:
        """Note that a run has started here."""
        self.running[key] = environment
        if environment.device.backend == "cuda":
            self.gpus_taken[key] = config.devices

    def end(self, key: str) -> None:
        """Note that it has ended."""
        self.running.pop(key, None)
        self.gpus_taken.pop(key, None)

    def demand(self, config: RunConfig, environment: Environment) -> dict[str, float]:
        """Return what a run asks of Ray."""
        if environment.device.backend != "cuda":
            return {"num_cpus": self.cpus, "num_gpus": 0}
        share = min(1.0, self.cpus / self.gpus) * config.devices
        return {"num_cpus": share, "num_gpus": config.devices}

    def at_rest(self, environment: Environment) -> Mapping[str, float]:
        """Return the temperatures of `environment`'s device before the sweep."""
        return self.at_rest_c[self.environments.index(environment)]


def usable(environments: tuple[Environment, ...], gpus: float) -> tuple[Environment, ...]:
    """Return the devices that Ray hands out: a GPU that it does not count is nobody's."""
    absent: set[Backend] = set() if gpus >= 1 else {"cuda"}
    return tuple(each for each in environments if each.device.backend not in absent)
