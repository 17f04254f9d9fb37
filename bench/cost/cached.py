"""What decides the cost of a step, and the costs that were counted before; needs no torch."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from dataclasses import asdict, dataclass
from importlib import metadata

from pydantic import ValidationError

from bench.config import RunConfig, package_of
from bench.machine.repository import code_id
from bench.records import Backend, Complexity, MathMode
from bench.records.folders import cache_folder, write_atomically

#: L2 of an H200, the largest single last-level cache among the devices this was made for: where a
#: device's own is not known, a floor that is too low is still a floor.
DEFAULT_CACHE_BYTES = 60 * 2**20

_MATH_MODES: dict[str, MathMode] = {
    "fp32": "fp32",
    "tf32": "tf32",
    "amp": "bf16",
    "amp-bf16": "bf16",
    "amp-fp16": "fp16",
}


@dataclass(frozen=True)
class StepSpec:
    """All that decides what one training step computes, moves and holds.

    `arch` is as `--arch` has it; `image_size` is in pixels a side and `seq_len` in tokens, by
    default the model's own; `math_mode` is what `precision` became on a device, by default bf16 for
    `amp`, which is fp32 on a device with neither bf16 nor fp16. `backend` decides what autocast
    does.
    """

    arch: str
    batch_size: int
    precision: str
    image_size: int | None = None
    math_mode: MathMode | None = None
    fused_optimizer: bool = True
    depthwise_fp32: bool = False
    backend: Backend = "cpu"
    seq_len: int | None = None
    optimizer: str = "sgd"

    @property
    def resolved_math_mode(self) -> MathMode:
        """The arithmetic of convolutions and products."""
        return self.math_mode or _MATH_MODES[self.precision]


def config_spec(config: RunConfig, *, batch_size: int | None = None) -> StepSpec:
    """Return what decides the step of a configuration; `batch_size` as in `config_complexity`.

    A backend that is `auto` is counted as a CPU.
    """
    return StepSpec(
        config.arch,
        batch_size=int(config.batch_size) if batch_size is None else batch_size,
        precision=config.precision,
        image_size=None if config.image_size == "auto" else config.image_size,
        seq_len=None if config.seq_len == "auto" else config.seq_len,
        optimizer=config.optimizer,
        backend="cpu" if config.backend == "auto" else config.backend,
    )


def config_complexity(config: RunConfig, *, batch_size: int | None = None) -> Complexity:
    """Return the complexity of a configuration's step, before it is known how a device runs it.

    `batch_size` replaces the configuration's, which may be `auto`. Raises as `step_complexity`.
    """
    spec = config_spec(config, batch_size=batch_size)
    return cached_complexity(spec, cache_bytes=DEFAULT_CACHE_BYTES)


def cached_complexity(spec: StepSpec, *, cache_bytes: int) -> Complexity:
    """Return `step_complexity` of the same arguments, from this user's cache if it is there.

    It depends on nothing but its arguments, torch, the package of the model, timm's setting and
    this project's code, and takes seconds, most of them to import torch. What is in
    a file of the user's, a model or a configuration, is computed each time.
    """
    package = package_of(spec.arch)
    if package is None:
        return _counted(spec, cache_bytes)
    versions = [metadata.version(name) for name in ("torch", "torchvision", package)]
    # timm reads from it which attention its models have.
    environment = os.environ.get("TIMM_FUSED_ATTN")
    asked = json.dumps([code_id(), *versions, environment, asdict(spec), cache_bytes])
    key = hashlib.sha256(asked.encode()).hexdigest()[:24]
    path = cache_folder() / "complexity" / f"{key}.json"
    with contextlib.suppress(OSError, ValidationError):
        return Complexity.model_validate_json(path.read_bytes())
    found = _counted(spec, cache_bytes)
    with contextlib.suppress(OSError):  # a home that cannot be written to costs time, no result
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, found.model_dump_json())
    return found


def _counted(spec: StepSpec, cache_bytes: int) -> Complexity:
    """Count with torch, imported now."""
    from bench.cost.estimate import step_complexity

    return step_complexity(spec, cache_bytes=cache_bytes)
