"""The runs of a matrix in the order in which they are measured, here and on other machines."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from random import Random

from bench.config import RunConfig, missing_package
from campaigns.sweep.matrix import Block, Matrix


@dataclass(frozen=True)
class PlannedBlock:
    """What a block needs, and how many of its `runs` this machine measures.

    A run may both be for another device and lack its package.
    """

    name: str
    needs: tuple[str, ...]  # backends; `auto` is any
    packages: tuple[str, ...]  # those that its models need and that are not installed
    runs: int
    runs_here: int
    runs_elsewhere: int  # on backends that this machine lacks
    runs_without_package: int

    def __str__(self) -> str:
        found = [" or ".join(self.needs)] if self.runs_elsewhere == self.runs else []
        if self.packages:
            packages = " and ".join(self.packages)
            found.append(f"{packages} for {self.runs_without_package} of {self.runs} runs")
        return f"{self.name}: needs {' and '.join(found)}"


@dataclass(frozen=True)
class Plan:
    """`runs` of this machine in order; `elsewhere` holds those of the backends that it lacks."""

    runs: tuple[RunConfig, ...]
    elsewhere: Mapping[str, tuple[RunConfig, ...]]
    blocks: tuple[PlannedBlock, ...]

    @property
    def left_out(self) -> tuple[PlannedBlock, ...]:
        """The blocks of which this machine measures nothing, or, without a package, not all."""
        return tuple(block for block in self.blocks if not block.runs_here or block.packages)


def plan_runs(
    matrix: Matrix,
    *,
    campaign: str,
    env: str = "auto",
    backends: Collection[str],
    only: str | None = None,
    limit: int | None = None,
) -> Plan:
    """Return the runs of `matrix` on a machine that has `backends`, and those that need others.

    Every configuration once, then every configuration a second time, and so on, each round
    shuffled by the matrix's seed: what drifts while a sweep runs (heat, a neighbour on the host)
    then falls on all configurations alike. `only` keeps the configurations of that backend;
    `limit` keeps the first so many of the matrix, with all their repeats, on each machine. Models
    whose package is not installed here are left out.
    """
    asked = {
        config: times
        for config, times in _repeats(matrix, only).items()
        if not missing_package(config.arch)
    }
    here = {"auto", *backends}
    filing = {"campaign": campaign, "env": env}

    def runs_on(on: Collection[str]) -> tuple[RunConfig, ...]:
        repeats = {config: times for config, times in asked.items() if config.backend in on}
        first = dict(list(repeats.items())[:limit])
        return tuple(run.model_copy(update=filing) for run in _rounds(first, matrix.seed))

    absent = dict.fromkeys(config.backend for config in asked if config.backend not in here)
    blocks = (_planned(block, only, here) for block in matrix.blocks)
    return Plan(
        runs_on(here),
        {backend: runs_on({backend}) for backend in absent},
        tuple(block for block in blocks if block.needs),
    )


def _repeats(matrix: Matrix, only: str | None) -> dict[RunConfig, int]:
    """How often each configuration is measured; where blocks overlap, the most counts."""
    repeats: dict[RunConfig, int] = {}
    for block in matrix.blocks:
        for config in block.configs:
            if only in (None, config.backend):
                repeats[config] = max(block.repeats, repeats.get(config, 0))
    return repeats


def _rounds(repeats: Mapping[RunConfig, int], seed: int) -> Iterable[RunConfig]:
    for repeat in range(1, max(repeats.values(), default=0) + 1):
        turn = [config for config, times in repeats.items() if repeat <= times]
        Random(f"{seed}:{repeat}").shuffle(turn)  # noqa: S311 - an order, not a secret
        for config in turn:
            yield config.model_copy(update={"repeat": repeat})


def _planned(block: Block, only: str | None, here: Collection[str]) -> PlannedBlock:
    asked = [config for config in block.configs if only in (None, config.backend)]
    fits = [config.backend in here for config in asked]
    absent = [missing_package(config.arch) for config in asked]
    fitting = sum(fit and not package for fit, package in zip(fits, absent, strict=True))
    packages = [package for package in absent if package]
    return PlannedBlock(
        block.name,
        tuple(sorted({config.backend for config in asked})),
        tuple(sorted(set(packages))),
        runs=block.repeats * len(asked),
        runs_here=block.repeats * fitting,
        runs_elsewhere=block.repeats * fits.count(False),
        runs_without_package=block.repeats * len(packages),
    )
