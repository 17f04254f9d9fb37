"""The work of an imported result: the step that its file names, and GFLOP/s that its file states.

The step is counted by `bench.cost`, which needs torch; this module does not.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench.config.model_names import TORCHVISION_MODELS, split_arch, timm_architectures
from bench.records import Backend, Complexity, Finding, ImportedRecord, StepSpec, Verdict
from bench.records.metrics import imported_summary

#: Precisions of files, as the cost model names them. CUDA's and Metal's autocast is fp16 unless
#: asked otherwise, a processor's bf16.
_PRECISIONS = ("fp32", "tf32", "amp", "amp-bf16", "amp-fp16")
_HALF = {"fp16": "amp-fp16", "bf16": "amp-bf16"}
_BACKENDS: dict[str, Backend] = {"cpu": "cpu", "cuda": "cuda", "mps": "mps"}
_NOT_THEIRS = "its model is not one of torchvision's, nor in a table of timm's one of timm's"
#: A file whose model has another number of parameters means another of that name.
_PARAMETERS = 0.01
#: Stated GFLOP/s may be rounded, or be of a throughput that was.
_TOLERANCE = 0.03


def step_of(record: ImportedRecord) -> StepSpec | str:
    """Return the step whose work a result is, or why it cannot be counted."""
    source, name = split_arch(record.arch)
    name = name.partition(".")[0] if source == "timm" else record.arch
    try:
        names = timm_architectures() if source == "timm" else TORCHVISION_MODELS
    except ValueError as error:
        return str(error)
    if name not in names:
        # Also where it reads like module:callable: code that a file names is not run.
        return _NOT_THEIRS
    if record.batch_size is None:
        return f"no batch size: {record.missing['batch_size']}"
    backend = _BACKENDS.get(record.backend or "", "cuda")
    precision = _HALF.get(record.precision or "amp", record.precision or "amp")
    if precision not in _PRECISIONS:
        return f"no step is counted in the precision {precision!r}"
    if precision == "amp":
        precision = "amp-bf16" if backend == "cpu" else "amp-fp16"
    size = record.params.get("image_size")
    pixels = int(size) if size else None
    return StepSpec(record.arch, record.batch_size, precision, pixels, backend=backend)


def with_work(record: ImportedRecord, counted: Complexity | str) -> ImportedRecord:
    """Return `record` with the count of its step, or with the reason why it has none; judged.

    A count is not taken where the file states another number of parameters. GFLOP/s that the file
    states and that are over 3 % off this work get a finding with both figures: a note where a
    count of other work explains the stated one, else suspect.
    """
    stated = record.metrics.get("parameters")
    if not isinstance(counted, str) and stated:
        millions, ours = stated / 1e6, counted.parameters / 1e6
        if abs(millions / ours - 1) > _PARAMETERS:
            counted = (
                f"its model has {millions:.4g} million parameters, {record.arch} has {ours:.4g}"
            )
    if isinstance(counted, str):
        return record.replaced({"complexity": counted}, complexity=None)
    record = record.replaced(complexity=counted, assumed=tuple(_assumed(record, counted)))
    figures = imported_summary(record)
    stated, own = figures.get("claimed_gflops"), figures.get("attained_gflops")
    if not (stated and own) or _near(stated, own):
        return record
    other = next((what for what, value in _conventions(counted, own) if _near(stated, value)), None)
    finding = Finding.of(
        "claimed-flops",
        "note" if other else None,
        stated_gflops=stated,
        own_gflops=own,
        fits=f"the stated figure fits {other}" if other else "no usual count fits it",
    )
    return record.replaced(verdict=Verdict.of([finding]))


def _assumed(record: ImportedRecord, counted: Complexity) -> Iterator[str]:
    """What the count takes for granted that the file does not say."""
    if "image_size" not in record.params:
        yield f"images of {counted.image_size} pixels, the model's own size"
    if record.precision in ("amp", *_HALF) and counted.precision != record.precision:
        yield f"{record.precision} counted as {counted.precision}"


def _near(stated: float, other: float) -> bool:
    return abs(stated / other - 1) <= _TOLERANCE


def _conventions(counted: Complexity, own: float) -> Iterator[tuple[str, float]]:
    """Other counts of the same work in GFLOP/s, with their names."""
    forward = own * 2 * counted.forward_macs / counted.step_flops
    yield "the forward pass alone", forward
    yield "the forward pass alone with a multiply-add as 1 FLOP", forward / 2
    yield "a training step with a multiply-add as 1 FLOP", own / 2
    yield "2 x the forward pass", 2 * forward
    yield "3 x the forward pass", 3 * forward
