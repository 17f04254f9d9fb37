"""The work of an imported result: the step that its file names, and GFLOP/s that its file states.

The step is counted by `bench.cost`, which needs torch; this module does not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TypeAlias

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
    """Return `record` with the count of its step, or with the reason why it has none.

    A count is not taken where the file states another number of parameters.
    """
    if isinstance(counted, str):
        return record.replaced({"complexity": counted}, complexity=None)
    stated = record.metrics.get("parameters")
    if stated is not None and abs(stated / counted.parameters - 1) > _PARAMETERS:
        why = (
            f"its model has {stated / 1e6:.4g} million parameters, {record.arch} has "
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


# GFLOP/s that a file states, held against its own images/s x the FLOP of a step

#: The code of a finding about GFLOP/s that a file states.
CLAIMED = "claimed-flops"
#: A stated figure may be rounded, or be of a throughput that was.
_TOLERANCE = 0.03
#: Between a figure and that of the row which it was copied from.
_COPIED = 0.002
#: A result with the GFLOP/s that its file states, and those of its images/s.
_Claim: TypeAlias = tuple[ImportedRecord, float, float]


def judge_claims(records: Sequence[ImportedRecord]) -> list[ImportedRecord]:
    """Return the results of files, with a verdict where a row's own GFLOP/s are not its work.

    Those that differ by over 3 % get a finding with both figures and the convention that the stated
    one fits: a note where a count of other work explains it, suspect where the value of another row
    of its file does, or nothing.
    """
    wrong: dict[str, _Claim] = {}
    sound = defaultdict(list)
    for record in records:
        figures = imported_summary(record)
        stated, own = figures.get("claimed_gflops"), figures.get("attained_gflops")
        if stated and own and _near(stated, own):
            sound[record.source_sha256].append((record, stated, own))
        elif stated and own:
            wrong[record.record_id] = (record, stated, own)
    return [
        record.replaced(verdict=Verdict.of([_finding(claim, sound[record.source_sha256])]))
        if (claim := wrong.get(record.record_id))
        else record
        for record in records
    ]


def _near(stated: float, other: float, tolerance: float = _TOLERANCE) -> bool:
    return abs(stated / other - 1) <= tolerance


def _finding(claim: _Claim, sound: Sequence[_Claim]) -> Finding:
    record, stated, own = claim
    both = {"stated_gflops": stated, "own_gflops": own}
    copied = next((other for other, figure, _ in sound if figure == stated), None)
    if copied is None:
        fitting = (words for words, value in _conventions(record, own) if _near(stated, value))
        if convention := next(fitting, None):
            fits = f"the stated figure fits {convention}"
            return Finding.of(CLAIMED, "note", **both, fits=fits)
        near = (other for other, _, figure in sound if _near(stated, figure, _COPIED))
        copied = next((other for other in near if _about(other) == _about(record)), None)
    if copied is None:
        return Finding.of(CLAIMED, **both, fits="no usual count fits the stated figure")
    line, batch = copied.source_line, copied.batch_size
    where = "another result" if line is None else f"the result in line {line}"
    fits = f"the stated figure fits {where}, {copied.arch} batch {batch}"
    return Finding.of(CLAIMED, **both, fits=fits)


def _about(record: ImportedRecord) -> tuple[str | None, ...]:
    return record.arch, record.precision, record.env


def _conventions(record: ImportedRecord, own: float) -> Iterator[tuple[str, float]]:
    """Other counts of the same work in GFLOP/s, with their names."""
    assert record.complexity is not None  # noqa: S101
    forward = own * 2 * record.complexity.forward_macs / record.complexity.step_flops
    yield "the forward pass alone", forward
    yield "the forward pass alone with a multiply-add as 1 FLOP", forward / 2
    yield "a training step with a multiply-add as 1 FLOP", own / 2
    yield "2 x the forward pass", 2 * forward
    yield "3 x the forward pass", 3 * forward
