"""Numbers that cannot be: a run above its own roof says that one of the two is wrong."""

from __future__ import annotations

from analysis.roofs.roof import CEILING_MARGIN, Roof
from analysis.runs.bounds import StepTimes
from analysis.runs.work import StepWork
from bench.records import Finding


def check_possible(
    work: StepWork, times: StepTimes, roof: Roof, executed_flops: float | None = None
) -> tuple[Finding, ...]:
    """Return findings for a step that outruns its roof by more than 3 %.

    Arithmetic is what was executed, where counters say it: Winograd's needs less than the
    algorithm. Against the memory roof only the compulsory bytes are impossible: a cache can keep
    small tensors out of DRAM. Outrunning the fused bytes is suspect.
    """
    findings: list[Finding] = []
    flops = work.flops if executed_flops is None else executed_flops
    compute_s = flops / roof.peak_flops_per_s
    if compute_s > CEILING_MARGIN * times.measured_s:
        percent = 100 * compute_s / times.measured_s
        findings.append(_invalid("above-compute-roof", "compute", percent))
    compulsory_s = work.compulsory_bytes / roof.peak_bytes_per_s
    if compulsory_s > CEILING_MARGIN * times.measured_s:
        percent = 100 * compulsory_s / times.measured_s
        findings.append(_invalid("above-memory-roof", "memory", percent))
    elif times.memory_min_s > CEILING_MARGIN * times.measured_s:
        percent = 100 * times.memory_min_s / times.measured_s
        message = (
            f"its fused bytes alone would take {percent:.0f} % of the step: "
            "a cache kept many of them, or the model counts too many"
        )
        findings.append(Finding(code="below-fused-traffic", level="suspect", message=message))
    return tuple(findings)


def _invalid(code: str, which: str, percent: float) -> Finding:
    message = (
        f"{percent:.0f} % of the {which} ceiling: impossible; "
        "the run, its work count or the ceiling is wrong"
    )
    return Finding(code=code, level="invalid", message=message)
