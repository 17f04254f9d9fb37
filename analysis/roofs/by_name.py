"""The roof of a device of which no more than its name is known: of a trace, or an imported run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from analysis.roofs.ceilings import NoCeiling, UsedCeiling, datasheet_ceiling
from analysis.roofs.peaks import Peaks, datasheet_peaks, normalised
from analysis.roofs.roof import Roof
from bench.records import CeilingsRecord, DeviceInfo, MathMode

#: Words by which published results name exactly one part, in any order, and its driver's name.
_PUBLISHED: Mapping[frozenset[str], str] = {
    frozenset(words.split()): name
    for words, name in {
        "a100 sxm 40gb": "NVIDIA A100-SXM4-40GB",
        "a100 sxm4 40gb": "NVIDIA A100-SXM4-40GB",
        "a100 pcie 40gb": "NVIDIA A100-PCIE-40GB",
        "a100 sxm 80gb": "NVIDIA A100-SXM4-80GB",
        "a100 sxm4 80gb": "NVIDIA A100-SXM4-80GB",
        "a100 pcie 80gb": "NVIDIA A100 80GB PCIe",
        "a30 pcie 24gb": "NVIDIA A30",
        "h100 sxm 80gb": "NVIDIA H100 80GB HBM3",
        "h100 sxm5 80gb": "NVIDIA H100 80GB HBM3",
        "h100 pcie 80gb": "NVIDIA H100 PCIe",
        "h200 sxm 140gb": "NVIDIA H200",
        "h200 sxm 141gb": "NVIDIA H200",
        "gh200 96gb": "NVIDIA GH200 480GB",
        "v100 sxm2 16gb": "Tesla V100-SXM2-16GB",
        "v100 sxm2 32gb": "Tesla V100-SXM2-32GB",
        "v100 pcie 16gb": "Tesla V100-PCIE-16GB",
        "v100 pcie 32gb": "Tesla V100-PCIE-32GB",
    }.items()
}


def driver_name(published: str) -> str:
    """Return a device's name as its driver gives it, where a published one means one part."""
    words = frozenset(re.split(r"[\s_-]+", normalised(published)))
    return _PUBLISHED.get(words, published)


def ceiling_by_name(
    device: DeviceInfo,
    math_mode: MathMode,
    ceilings: Iterable[CeilingsRecord],
    peaks: Sequence[Peaks],
    *,
    because: str,
    env: str | None = None,
) -> UsedCeiling | NoCeiling:
    """Return the roof of a device by its name, or why there is none.

    The newest one measured on a device of that name and backend, with as many multiprocessors where
    both are known; else the datasheet's, where `peaks` of a user's own go first. A processor's name
    says nothing of its memory, so a measured roof of one also has the label `env`. `because` says
    in the result why it is not measured on the device itself.
    """
    for candidate in sorted(ceilings, key=lambda one: one.created, reverse=True):
        if not _is_of(candidate, device, env):
            continue
        for one in candidate.ceilings:
            peaks_known = one.peak_flops_per_s and one.peak_bytes_per_s
            if one.math_mode == math_mode and one.kind == "measured" and peaks_known:
                roof = Roof(
                    one.peak_flops_per_s or 0.0,
                    one.peak_bytes_per_s or 0.0,
                    one.burst_flops_per_s or 0.0,
                    one.one_way_bytes_per_s or 0.0,
                )
                return UsedCeiling(
                    one, roof, candidate.record_id, because, cache_roofs=candidate.cache_roofs
                )
    found = datasheet_ceiling(device, math_mode, peaks)
    return found if isinstance(found, NoCeiling) else UsedCeiling(*found, None, because)


def _is_of(candidate: CeilingsRecord, device: DeviceInfo, env: str | None) -> bool:
    environment = candidate.environment
    if environment is None or candidate.outcome != "ok":
        return False
    theirs = environment.device
    if theirs.backend != device.backend or normalised(theirs.name) != normalised(device.name):
        return False
    if device.backend == "cpu" and environment.label != env:
        return False
    return len({theirs.cores, device.cores} - {None}) < 2


def highest_roof(device: str, peaks: Sequence[Peaks]) -> Roof | None:
    """Return the highest datasheet peaks of any part of this name in any arithmetic, or None.

    What passes them is impossible, whichever part it was and whatever it computed in.
    """
    name = normalised(driver_name(device))
    rows = [row for row in (*peaks, *datasheet_peaks()) if name in row.names]
    if not rows:
        return None
    return Roof(
        max(peak for row in rows for peak in row.flops_per_s.values()),
        max(row.bytes_per_s for row in rows),
    )
