"""The runs of a campaign, in the order in which they are measured."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from random import Random

from bench.config import RunConfig
from campaigns.sweep.matrix import Matrix


@dataclass(frozen=True)
class Plan:
    """`runs` in order; `left_out` says which blocks do not fit this machine, and why."""

    runs: tuple[RunConfig, ...]
    left_out: tuple[str, ...]


def plan_runs(
    matrix: Matrix,
    *,
    campaign: str,
    env: str = "auto",
    backends: Collection[str],
    only: str | None = None,
    limit: int | None = None,
) -> Plan:
    """Return the runs of `matrix` on a machine that has `backends`.

    Every configuration once, then every configuration a second time, and so on, each round
    shuffled by the matrix's seed: what drifts while a sweep runs (heat, a neighbour on the host)
    then falls on all configurations alike. `only` keeps the configurations of that backend;
    `limit` keeps the first so many of the matrix, with all their repeats.
    """
    asked = _repeats(matrix, only)
    repeats = {config: times for config, times in asked.items() if _fits(config, backends)}
    configs = list(repeats)[:limit]
    runs: list[RunConfig] = []
    for repeat in range(1, max((repeats[config] for config in configs), default=0) + 1):
        turn = [config for config in configs if repeat <= repeats[config]]
        Random(f"{matrix.seed}:{repeat}").shuffle(turn)  # noqa: S311 - an order, not a secret
        filing = {"repeat": repeat, "campaign": campaign, "env": env}
        runs += [config.model_copy(update=filing) for config in turn]
    left_out = tuple(
        f"{block.name}: needs {' or '.join(sorted({each.backend for each in block.configs}))}"
        for block in matrix.blocks
        if any(config in asked for config in block.configs)
        and not any(config in repeats for config in block.configs)
    )
    return Plan(tuple(runs), left_out)


def _repeats(matrix: Matrix, only: str | None) -> dict[RunConfig, int]:
    """How often each configuration is measured; where blocks overlap, the most counts."""
    repeats: dict[RunConfig, int] = {}
    for block in matrix.blocks:
        for config in block.configs:
            if only in (None, config.backend):
                repeats[config] = max(block.repeats, repeats.get(config, 0))
    return repeats


def _fits(config: RunConfig, backends: Collection[str]) -> bool:
    return config.backend == "auto" or config.backend in backends
