"""The knobs of each backend and the values worth trying, those that promise most first.

One knob is one line of the table. What `RunConfig` refuses beside the other knobs is left out by
its own validation; what `auto` is already is not tried again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pydantic import ValidationError

from bench.config import FILING_FIELDS, RunConfig, spelled
from bench.records import Backend, Environment, ResolvedConfig

Value = str | int
BATCH = "batch_size"


def _always(*values: Value) -> Callable[[Environment], tuple[Value, ...]]:
    return lambda environment: values


@dataclass(frozen=True)
class Knob:
    """A field of the configuration and what it can be set to on a machine.

    The batch size has no list: it is doubled and halved as long as that pays. `of_images` changes
    nothing of a model that takes none.
    """

    field: str
    values: Callable[[Environment], tuple[Value, ...]] = lambda environment: ()
    of_images: bool = False


def _thread_counts(environment: Environment) -> tuple[Value, ...]:
    """A thread per physical core, per logical one, and half as many."""
    usable = environment.cpu_cores_usable
    physical = environment.cpu_cores_physical or usable
    counts = (min(physical, usable), usable, max(1, physical // 2))
    return tuple(dict.fromkeys(counts))


def _depthwise_kernels(environment: Environment) -> tuple[Value, ...]:
    """Torch has the switch from 2.15 on."""
    version = environment.torch.split(".")
    return ("cudnn", "native", "auto") if [*map(int, version[:2])] >= [2, 15] else ()


_SWITCH = _always("true", "false")

#: A field may have two lines: what takes long to compile comes when the rest is settled.
KNOBS: Mapping[Backend, tuple[Knob, ...]] = {
    "cpu": (
        Knob("allocator", _always("retain", "system")),
        Knob("depthwise_fp32", _SWITCH),
        Knob("compile", _always("default", "none")),
        Knob("threads", _thread_counts),
        Knob(BATCH),
        Knob("channels_last", _SWITCH, of_images=True),
        Knob("fused_optimizer", _SWITCH),
        Knob("compile", _always("max-autotune")),
    ),
    "cuda": (
        Knob("channels_last", _SWITCH, of_images=True),
        Knob("compile", _always("default", "reduce-overhead", "none")),
        Knob("cuda_graphs", _SWITCH),
        Knob(BATCH),
        Knob("cudnn_benchmark", _SWITCH),
        Knob("depthwise_kernel", _depthwise_kernels, of_images=True),
        Knob("fused_optimizer", _SWITCH),
        Knob("compile", _always("max-autotune")),
    ),
    "mps": (
        Knob("compile", _always("default", "none")),
        Knob(BATCH),
        Knob("channels_last", _SWITCH, of_images=True),
        Knob("fused_optimizer", _SWITCH),
    ),
}

#: How long a trial is measured, `max_seconds`: short, because a search makes many. Iterations are
#: tens of milliseconds on a GPU, whose clock takes 2 s to rise, and may be seconds on a CPU, where
#: the window then holds the least that a window may, four.
WINDOW_S: Mapping[Backend, float] = {"cpu": 4.0, "cuda": 6.0, "mps": 6.0}


def with_value(config: RunConfig, field: str, value: object) -> RunConfig | str:
    """Return `config` with another value of one field, or why its other values rule that out."""
    try:
        return RunConfig.model_validate({**config.model_dump(), field: value})
    except ValidationError as error:
        return error.errors()[0]["msg"].removeprefix("Value error, ")


def current(config: RunConfig, resolved: ResolvedConfig, field: str) -> str:
    """Return what a field is, as the command line spells it, `auto` resolved where it can be."""
    value = getattr(config, field)
    if value == "auto":
        value = getattr(resolved, field, value)
    return spelled(value)


def values_to_try(
    knob: Knob, environment: Environment, config: RunConfig, resolved: ResolvedConfig
) -> list[str]:
    """Return the values of a knob other than the one that `config` has now, in their order."""
    if knob.of_images and resolved.image_size is None:
        return []
    now = current(config, resolved, knob.field)
    return [value for value in map(spelled, knob.values(environment)) if value != now]


def differing(one: RunConfig, other: RunConfig) -> tuple[str, ...]:
    """Return the fields in which two configurations differ, other than those that file a run."""
    return tuple(
        name
        for name in RunConfig.model_fields
        if name not in FILING_FIELDS and getattr(one, name) != getattr(other, name)
    )


def changes(start: RunConfig, config: RunConfig) -> str:
    """Return what `config` has other than `start`, such as `threads=2 compile=default`."""
    names = differing(start, config)
    return " ".join(f"{name}={spelled(getattr(config, name))}" for name in names) or "start"
