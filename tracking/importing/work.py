"""The work of an imported result: the training step that its file names.

The step is counted by `bench.cost`, which needs torch; this module does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bench.config.architectures import torchvision_architectures
from bench.records import Backend, Complexity, ImportedRecord

#: Precisions of files, as the cost model names them. CUDA's and Metal's autocast is fp16 unless
#: asked otherwise, a processor's bf16.
_PRECISIONS = ("fp32", "tf32", "amp", "amp-bf16", "amp-fp16")
_HALF = {"fp16": "amp-fp16", "bf16": "amp-bf16"}
_BACKENDS: dict[str, Backend] = {"cpu": "cpu", "cuda": "cuda", "mps": "mps"}
NOT_TORCHVISIONS = "its model is not one of torchvision's"
#: A file whose model has another number of parameters does not mean torchvision's.
_PARAMETERS = 0.01


@dataclass(frozen=True)
class Step:
    """One batch's training step on one device, as the cost model is asked for it.

    `image_size` in pixels a side, None for the model's own; `backend` decides what autocast casts.
    """

    arch: str
    batch_size: int
    precision: str
    image_size: int | None
    backend: Backend


def step_of(record: ImportedRecord) -> Step | str:
    """Return the step whose work a result is, or why it cannot be counted."""
    if record.arch not in torchvision_architectures():
        # Also where it reads like module:callable: code that a file names is not run.
        known = torchvision_architectures()
        return NOT_TORCHVISIONS if known else "torchvision is not installed: run make setup"
    if record.batch_size is None:
        return f"no batch size: {record.missing['batch_size']}"
    backend = _BACKENDS.get(record.backend or "", "cuda")
    precision = _HALF.get(record.precision or "amp", record.precision or "amp")
    if precision not in _PRECISIONS:
        return f"no step is counted in the precision {precision!r}"
    if precision == "amp":
        precision = "amp-bf16" if backend == "cpu" else "amp-fp16"
    size = record.params.get("image_size")
    return Step(record.arch, record.batch_size, precision, int(size) if size else None, backend)


def with_work(record: ImportedRecord, counted: Complexity | str) -> ImportedRecord:
    """Return `record` with the count of its step, or with the reason why it has none.

    A count is not taken where the file states another number of parameters.
    """
    if isinstance(counted, str):
        return record.replaced({"complexity": counted}, complexity=None)
    stated = record.metrics.get("parameters")
    if stated is not None and abs(stated / counted.parameters - 1) > _PARAMETERS:
        why = (
            f"its model has {stated / 1e6:.4g} million parameters, torchvision's {record.arch} "
            f"{counted.parameters / 1e6:.4g}"
        )
        return record.replaced({"complexity": why}, complexity=None)
    return record.replaced(complexity=counted, assumed=tuple(_assumed(record, counted)))


def _assumed(record: ImportedRecord, counted: Complexity) -> Iterator[str]:
    """What the count takes for granted that the file does not say."""
    if "image_size" not in record.params:
        yield f"images of {counted.image_size} pixels, the model's own size"
    if record.precision in ("amp", *_HALF) and counted.precision != record.precision:
        yield f"{record.precision} counted as {counted.precision}"
