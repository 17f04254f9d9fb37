"""The roof of a device of which no more than its name is known: of a trace, or an imported run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from analysis.roofs.ceilings import NoCeiling, UsedCeiling, datasheet_ceiling
from analysis.roofs.peaks import Peaks, datasheet_peaks, normalised
from analysis.roofs.roof import Roof
from bench.records import CeilingsRecord, DeviceInfo, MathMode


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
    rows = [row for row in (*peaks, *datasheet_peaks()) if normalised(device) in row.names]
    if not rows:
        return None
    return Roof(
        max(peak for row in rows for peak in row.flops_per_s.values()),
        max(row.bytes_per_s for row in rows),
    )
