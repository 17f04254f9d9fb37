"""The cost of a training step by the modules of its model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bench.config import RunConfig
from bench.cost.estimate import calls_of, complexity_of
from bench.cost.fake_step import record_step
from bench.records import Complexity, StepSpec
from bench.records.base import ratio
from bench.records.complexity import NO_WORK, CallWork, Work

#: Rows of what no part of the model does; the first is the model itself.
MODEL, LOSS, OPTIMIZER = "(model)", "(loss)", "(optimizer)"


@dataclass(frozen=True)
class ModuleTable:
    """A row per module for JSON and CSV, and the first name of each parameter of several names.

    A row has the work of a module and of all within it, per sample under the names of
    `Complexity.row`, and its shares of the step. `module` is the path in the model:
    `layer1.0.conv1` has depth 3. The model, what runs outside of it and the optimizer have depth 0;
    the three sum up to the step. `type` is the class. A backward op counts for the module whose
    forward op it belongs to. Of tied parameters the first module counts them as `parameters`; a
    module outside of it, as `shared_parameters`.
    """

    rows: tuple[dict[str, Any], ...]
    tied: dict[str, str]


def complexity_by_module(config: RunConfig, *, depth: int) -> tuple[Complexity, ModuleTable]:
    """Return the complexity of a configuration's step, and the costs of its modules to `depth`.

    Raises as `step_complexity`.
    """
    spec = StepSpec.of(config)
    step = record_step(spec)
    complexity, calls = complexity_of(spec, step), calls_of(step)
    first: dict[int, str] = {}
    parameters = [
        (name, first.setdefault(id(parameter), name), parameter.numel())
        for name, parameter in step.model.named_parameters(remove_duplicate=False)
    ]

    def rows() -> Iterator[dict[str, Any]]:
        for path, module in step.model.named_modules():
            level = path.count(".") + 1 if path else 0
            if level > depth:
                continue
            prefix = f"{path}." if path else ""
            inside = [each for each in parameters if each[0].startswith(prefix)]
            yield {
                "module": path or MODEL,
                "type": type(module).__name__,
                "depth": level,
                "parameters": sum(size for name, first, size in inside if name == first),
                "shared_parameters": sum(
                    size for _, first, size in inside if not first.startswith(prefix)
                ),
                **_work(complexity, [call for call in calls if call.module is not None
                                     and f"{call.module}.".startswith(prefix)]),
            }  # fmt: skip
        none = {"type": None, "depth": 0, "parameters": 0, "shared_parameters": 0}
        for name in (LOSS, OPTIMIZER):
            yield {"module": name} | none | _work(
                complexity,
                [call for call in calls if call.module is None
                 and (call.phase == "optimizer") is (name == OPTIMIZER)],
            )  # fmt: skip

    tied = {name: first_name for name, first_name, _ in parameters if name != first_name}
    return complexity, ModuleTable(tuple(rows()), tied)


def _work(complexity: Complexity, calls: Sequence[CallWork]) -> dict[str, Any]:
    """The work of `calls` per sample, and its shares of the step's."""
    forward, backward = (
        sum(call.flops for call in calls if call.phase == phase)
        for phase in ("forward", "backward")
    )
    work: Work = sum(calls, NO_WORK)
    each = f"per_{complexity.sample}"
    counts = {
        f"forward_macs_{each}": forward // 2,
        f"forward_flops_{each}": forward,
        f"backward_flops_{each}": backward,
        f"step_flops_{each}": forward + backward,
        f"elementwise_flops_{each}": work.elementwise_flops,
        f"bytes_{each}_min": work.fused_bytes,
        f"bytes_{each}_max": work.eager_bytes,
    }
    return {
        **{name: complexity.per_sample(total) for name, total in counts.items()},
        "step_flops_share": ratio(forward + backward, complexity.step_flops),
        "bytes_min_share": ratio(work.fused_bytes, complexity.fused_bytes),
        "bytes_max_share": ratio(work.eager_bytes, complexity.eager_bytes),
    }
