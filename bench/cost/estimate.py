"""From a step, fake or real, to what it must compute, move and hold, in all and by module."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from bench.config import RunConfig
from bench.cost.fake_step import RecordedStep, record_step
from bench.cost.masks import UNKNOWN_MASK, hidden_macs
from bench.cost.step_tracer import LiveStepTracer, RecordedCalls
from bench.cost.traffic import compulsory_bytes, fused_bytes
from bench.errors import UserError
from bench.records import Complexity, OpCost, Phase, StepSpec
from bench.records.base import ratio
from bench.records.complexity import (
    DEFAULT_CACHE_BYTES,
    NO_WORK,
    CallWork,
    ListedStep,
    Work,
    by_phase,
)


def step_complexity(spec: StepSpec) -> Complexity:
    """Return what one training step must compute, move and hold; nothing is allocated.

    Raises `UserError` where the model cannot be built or run at this size.

    FLOP are algorithmic, elementwise ones counted separately (see `flops`). Traffic is counted
    three ways (see `traffic`): eager (every pass over memory reads its inputs and writes its
    outputs), fused and compulsory; compulsory <= fused <= eager.
    """
    return complexity_of(spec, record_step(spec))


def complexity_of(spec: StepSpec, step: RecordedStep) -> Complexity:
    """Return the complexity of `step`, which was recorded of `spec`."""
    workload = step.workload
    followed = "CUDA" if spec.backend == "cuda" else "a CPU"
    return Complexity(
        arch=spec.arch,
        batch_size=spec.batch_size,
        image_size=None if workload.image is None else workload.image.size,
        sample=workload.sample,
        tokens_per_sample=workload.tokens_per_sample,
        precision=spec.precision,
        math_mode=spec.resolved_math_mode,
        parameters=step.parameters,
        activations=step.activations and step.activations // spec.batch_size,
        **counts_of(step, spec.cache_bytes, idle_expert_macs(step, spec.batch_size)),
        cache_bytes=spec.cache_bytes,
        memory=step.memory,
        method=f"fake-tensor step, aten dispatch as on {followed}, torch {torch.__version__}",
    )


def counts_of(step: RecordedCalls, cache_bytes: int, idle_macs: int = 0) -> dict[str, Any]:
    """Return the counts of `step` by their names in `Complexity`, its ops with them.

    Of its multiply-adds `idle_macs` are not needed, beside those that masks hide.
    """
    ops = ops_of(calls_of(step))
    work: Work = sum(ops, NO_WORK)
    passes = step.passes
    hidden = hidden_macs(passes)
    return {
        "forward_macs": sum(item.macs for item in passes if item.phase == "forward"),
        "step_flops": work.flops,
        "required_flops": None if hidden is None else work.flops - 2 * (hidden + idle_macs),
        "required_missing": UNKNOWN_MASK if hidden is None else None,
        "recomputed_flops": 2 * sum(item.recomputed_macs for item in passes),
        "causal_skipped_flops": 2 * sum(item.causal_skipped_macs for item in passes),
        "fp32_flops": 2 * sum(item.fp32_macs for item in passes),
        **work.model_dump(exclude={"flops"}),
        "compulsory_bytes": compulsory_bytes(passes, step.sizes_bytes, step.lasting, cache_bytes),
        "ops": ops,
    }


def idle_expert_macs(step: RecordedStep, batch_size: int) -> int:
    """Return the multiply-adds of experts on tokens that are not sent to them.

    The configuration of a model of transformers says to how many experts a token is sent. Weights
    of all experts are one parameter of three dimensions; a product with it, or for its gradient,
    needs a row for each token and expert of its. Experts without such a configuration are 0.
    """
    config: Any = getattr(step.model, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    most_rows = batch_size * (step.workload.tokens_per_sample or 0)
    most_rows *= getattr(text, "num_experts_per_tok", None) or 0
    stacked = {
        path: [tuple(p.shape[1:]) for p in module.parameters(recurse=False) if p.dim() == 3]
        for path, module in step.model.named_modules()
    }
    idle = 0
    for call in step.calls:
        macs, weights = sum(item.macs for item in call.passes), stacked.get(call.module or "")
        if macs and weights and most_rows:
            left, right = call.shapes[:2]
            pairs = [sorted(pair) for pair in (left[-2:], right[-2:], (left[-2], right[-1]))]
            sizes = [prod(size) for size in weights if sorted(size) in pairs]
            idle += max(macs - most_rows * max(sizes), 0) if sizes else 0
    return idle


def op_work(spec: StepSpec, *, grad_accum_steps: int = 1) -> tuple[CallWork, ...]:
    """Return the work of every dispatched call of one training step, in order.

    The totals of `step_complexity` are the sums of these calls; `grad_accum_steps` as in
    `record_step`. Raises `UserError`.
    """
    return calls_of(record_step(spec, grad_accum_steps=grad_accum_steps))


def listed_step(spec: StepSpec) -> ListedStep:
    """Return the ops of one training step, equal calls together. Raises as `step_complexity`."""
    step = record_step(spec)
    counts = Counter(call.model_copy(update={"module": None}) for call in calls_of(step))
    return ListedStep(
        sample=step.workload.sample,
        tokens_per_sample=step.workload.tokens_per_sample,
        memory=step.memory,
        ops=tuple(call.model_copy(update={"calls": n}) for call, n in counts.items()),
    )


def calls_of(step: RecordedCalls) -> tuple[CallWork, ...]:
    """Return the calls of `step`, the work of each summed over its passes."""
    shares = iter(fused_bytes(step.passes, step.sizes_bytes, step.lasting))
    return tuple(
        CallWork(
            fused_bytes=sum(next(shares) for _ in call.passes),
            **{name: getattr(call, name) for name in ("op", "phase", "shapes", "label", "module")},
            **call.work(step.sizes_bytes),
        )
        for call in step.calls
    )


def ops_of(calls: Iterable[CallWork]) -> tuple[OpCost, ...]:
    """Return the calls added up by op and phase, in the order in which they first occur."""
    groups: dict[tuple[str, Phase], list[CallWork]] = {}
    for call in calls:
        groups.setdefault((call.op, call.phase), []).append(call)
    return tuple(
        OpCost(op=op, phase=phase, calls=len(group), **dict(sum(group, NO_WORK)))
        for (op, phase), group in groups.items()
    )


#: Rows of what no part of the model does; the first is the model itself.
MODEL, LOSS, OPTIMIZER = "(model)", "(loss)", "(optimizer)"


def complexity_by_module(
    config: RunConfig, *, depth: int
) -> tuple[Complexity, list[dict[str, Any]], dict[str, str]]:
    """Return the complexity of a configuration's step, a row per module to `depth`, and ties.

    A row has the work of a module and of all within it, per sample under the names of
    `Complexity.row`, and its shares of the step. `module` is the path in the model:
    `layer1.0.conv1` has depth 3. The model, what runs outside of it and the optimizer have depth 0;
    the three sum up to the step. `type` is the class. A backward op counts for the module whose
    forward op it belongs to. Of tied parameters the first module counts them as `parameters`; a
    module outside of it, as `shared_parameters`. The ties give each further name the first one.
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
    rows: list[dict[str, Any]] = []
    for path, module in step.model.named_modules():
        level = path.count(".") + 1 if path else 0
        if level > depth:
            continue
        prefix = f"{path}." if path else ""
        inside = [own for own in parameters if own[0].startswith(prefix)]
        own = sum(size for name, first_name, size in inside if name == first_name)
        shared = sum(size for _, first_name, size in inside if not first_name.startswith(prefix))
        its_calls = (c for c in calls if c.module is not None and f"{c.module}.".startswith(prefix))
        rows.append({
            "module": path or MODEL, "type": type(module).__name__, "depth": level,
            "parameters": own, "shared_parameters": shared, **_work(complexity, [*its_calls]),
        })  # fmt: skip
    none = {"type": None, "depth": 0, "parameters": 0, "shared_parameters": 0}
    for name in (LOSS, OPTIMIZER):
        outside = [call for call in calls if call.module is None
                   and (call.phase == "optimizer") is (name == OPTIMIZER)]  # fmt: skip
        rows.append({"module": name} | none | _work(complexity, outside))
    ties = {name: first_name for name, first_name, _ in parameters if name != first_name}
    return complexity, rows, ties


def _work(complexity: Complexity, calls: Sequence[CallWork]) -> dict[str, Any]:
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


# A user's own step, while it runs


@contextmanager
def count_step(*, cache_bytes: int = DEFAULT_CACHE_BYTES) -> Iterator[CountedStep]:
    """Count what a block of code computes and moves, on any device.

    `with count_step() as cost:` stands around one training step, or any part of one. Every op runs
    once, as without it, and slower: Python is called for each. `cost` can be read after the block.
    An op without a formula is named in a warning and in `cost.uncounted`, and the FLOP are then a
    lower bound. `cache_bytes` is the cache of `cost.compulsory_bytes`.

    Only what torch dispatches is seen, so not the kernels of a replayed CUDA graph, or of a library
    that is called from Python. A compiled model runs, and counts, op by op within the block.
    """
    cost, step = CountedStep(cache_bytes), LiveStepTracer()
    hooks = (
        register_optimizer_step_pre_hook(step.begin_update),
        register_optimizer_step_post_hook(step.end_update),
    )
    try:
        # Torch compiles nothing while ops are counted, but fails where one graph is asked for.
        with torch.compiler.set_stance("force_eager"), step:
            yield cost
    finally:
        for hook in hooks:
            hook.remove()
    cost.close(step)
    if step.uncounted:
        warnings.warn(f"count_step: {cost.why_incomplete}", stacklevel=3)


class CountedStep:
    """What a step must compute and move, of the whole batch; a multiply-add is 2 FLOP.

    Its counts are those of `mlproject complexity`, under the same names. `uncounted` has the ops
    whose FLOP are missing, by name with the reason: empty where the count is complete.
    """

    forward_macs: int  # multiply-adds of convolutions, products and attention, forward
    step_flops: int  # algorithmic FLOP of the same, in all phases
    required_flops: int | None  # of these what is needed; None: required_missing says why
    required_missing: str | None
    recomputed_flops: int  # of what checkpoints compute again; not in step_flops
    causal_skipped_flops: int  # the part of step_flops that fused attention may skip
    fp32_flops: int  # the part of step_flops that is of 32-bit numbers
    elementwise_flops: int  # of everything else, by the conventions of `bench.cost.flops`
    eager_bytes: int  # DRAM traffic if every op reads its inputs and writes its outputs
    fused_bytes: int  # the same if all small ops are folded into their neighbours
    compulsory_bytes: int  # what a cache of `cache_bytes` cannot save: a floor
    ops: tuple[OpCost, ...]  # the counts of every op in every phase

    def __init__(self, cache_bytes: int) -> None:
        self.cache_bytes = cache_bytes
        self.uncounted: dict[str, str] = {}

    def close(self, step: LiveStepTracer) -> None:
        """Count what was recorded: it can be read from now on."""
        self.uncounted = step.uncounted
        vars(self).update(counts_of(step.recorded(step.lasting()), self.cache_bytes))

    def __getattr__(self, name: str) -> Any:
        if name not in type(self).__annotations__:
            raise AttributeError(f"a counted step has no {name!r}")
        raise UserError("count_step: nothing is counted yet; read the cost after the with block")

    @property
    def is_complete(self) -> bool:
        """Whether the FLOP of every op were counted."""
        return not self.uncounted

    @property
    def why_incomplete(self) -> str | None:
        """Which ops lack a count, and why; None where the count is complete."""
        if self.is_complete:
            return None
        ops = "; ".join(f"{op}, {reason}" for op, reason in self.uncounted.items())
        return f"the FLOP are a lower bound, without those of {ops}"

    @property
    def phases(self) -> dict[Phase, Work]:
        """Work of forward, backward and optimizer; their sum is the step's."""
        return by_phase(self.ops)

    def __str__(self) -> str:
        """Return a table of the phases, and what is missing."""
        header = ("GFLOP", "small GFLOP", "fused MB", "eager MB")
        lines = [f"{'':9}" + "".join(f"{word:>14}" for word in header)]
        for name, work in (*self.phases.items(), ("step", sum(self.ops, NO_WORK))):
            giga = (work.flops / 1e9, work.elementwise_flops / 1e9)
            numbers = (*giga, work.fused_bytes / 1e6, work.eager_bytes / 1e6)
            lines.append(f"{name:9}" + "".join(f"{number:14,.3f}" for number in numbers))
        return "\n".join([*lines, *filter(None, [self.why_incomplete])])
