"""The cost of a training step by the modules of its model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from bench.config import RunConfig
from bench.cost.cached import config_spec
from bench.cost.estimate import calls_of, complexity_of
from bench.cost.fake_step import record_step
from bench.cost.tracing.module_paths import ModuleTree
from bench.records import Complexity
from bench.records.base import ratio
from bench.records.complexity import CallWork

#: Rows of what no part of the model does; the first is the model itself.
MODEL, LOSS, OPTIMIZER = "(model)", "(loss)", "(optimizer)"


@dataclass(frozen=True)
class ModuleCost:
    """Work of a module and of all within it, of one step of the whole batch.

    `module` is its path in the model: `layer1.0.conv1` has depth 3. The model, what runs outside
    of it and the optimizer have depth 0; the three sum up to the step. `kind` is the class. A
    backward op counts for the module whose forward op it belongs to. Of tied parameters the first
    module counts them as `parameters`; a module outside of it, as `shared_parameters`.
    """

    module: str
    kind: str | None
    depth: int
    parameters: int
    shared_parameters: int
    forward_macs: int
    forward_flops: int
    backward_flops: int
    elementwise_flops: int
    fused_bytes: int
    eager_bytes: int


@dataclass(frozen=True)
class ModuleTable:
    """A row per module, and the names of parameters that are another one's: (name, first name)."""

    rows: tuple[ModuleCost, ...]
    tied: tuple[tuple[str, str], ...]


def complexity_by_module(config: RunConfig, *, depth: int) -> tuple[Complexity, ModuleTable]:
    """Return the complexity of a configuration's step, and the costs of its modules to `depth`.

    Raises as `step_complexity`.
    """
    spec = config_spec(config)
    step = record_step(spec)
    rows = tuple(_rows(step.tree, calls_of(step), depth))
    names = ((each.name, each.first_name) for each in step.tree.parameters)
    tied = tuple((name, first) for name, first in names if name != first)
    return complexity_of(spec, step), ModuleTable(rows, tied)


def module_rows(complexity: Complexity, table: ModuleTable) -> list[dict[str, Any]]:
    """Return the rows of `table` for JSON and CSV, with the names of `Complexity.row`.

    Shares are of the step's total.
    """
    each = f"per_{complexity.sample}"
    rows = []
    for row in table.rows:
        counts = {
            f"forward_macs_{each}": row.forward_macs,
            f"forward_flops_{each}": row.forward_flops,
            f"backward_flops_{each}": row.backward_flops,
            f"step_flops_{each}": row.forward_flops + row.backward_flops,
            f"elementwise_flops_{each}": row.elementwise_flops,
            f"bytes_{each}_min": row.fused_bytes,
            f"bytes_{each}_max": row.eager_bytes,
        }
        rows.append(
            {
                "module": row.module,
                "type": row.kind,
                "depth": row.depth,
                "parameters": row.parameters,
                "shared_parameters": row.shared_parameters,
                **{name: complexity.per_sample(total) for name, total in counts.items()},
                "step_flops_share": ratio(
                    row.forward_flops + row.backward_flops, complexity.step_flops
                ),
                "bytes_min_share": ratio(row.fused_bytes, complexity.fused_bytes),
                "bytes_max_share": ratio(row.eager_bytes, complexity.eager_bytes),
            }
        )
    return rows


def _rows(tree: ModuleTree, calls: Iterable[CallWork], depth: int) -> Iterator[ModuleCost]:
    within: dict[str, list[CallWork]] = {}
    outside: dict[str, list[CallWork]] = {LOSS: [], OPTIMIZER: []}
    for call in calls:
        if call.module is None:
            outside[OPTIMIZER if call.phase == "optimizer" else LOSS].append(call)
            continue
        for path in _paths_to(call.module, depth):
            within.setdefault(path, []).append(call)
    for path, kind in tree.kinds.items():
        if _depth(path) <= depth:
            counts = {**_parameters(tree, path), **_work(within.get(path, []))}
            yield ModuleCost(path or MODEL, kind, _depth(path), **counts)
    for name, group in outside.items():
        yield ModuleCost(name, None, 0, 0, 0, **_work(group))


def _depth(path: str) -> int:
    return path.count(".") + 1 if path else 0


def _paths_to(path: str, depth: int) -> Iterator[str]:
    """The model, and the modules on the way to `path`, down to `depth`."""
    parts = path.split(".") if path else []
    for count in range(min(len(parts), depth) + 1):
        yield ".".join(parts[:count])


def _parameters(tree: ModuleTree, path: str) -> dict[str, int]:
    prefix = f"{path}." if path else ""
    own = shared = 0
    for parameter in tree.parameters:
        if not parameter.name.startswith(prefix):
            continue
        if parameter.name == parameter.first_name:
            own += parameter.elements
        elif not parameter.first_name.startswith(prefix):
            shared += parameter.elements
    return {"parameters": own, "shared_parameters": shared}


def _work(calls: list[CallWork]) -> dict[str, int]:
    flops = {
        phase: sum(call.flops for call in calls if call.phase == phase)
        for phase in ("forward", "backward")
    }
    return {
        "forward_macs": flops["forward"] // 2,
        "forward_flops": flops["forward"],
        "backward_flops": flops["backward"],
        "elementwise_flops": sum(call.elementwise_flops for call in calls),
        "fused_bytes": sum(call.fused_bytes for call in calls),
        "eager_bytes": sum(call.eager_bytes for call in calls),
    }
