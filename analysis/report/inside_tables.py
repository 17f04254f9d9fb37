"""The report's tables of what is inside one profile: its ops and its kernels, the longest first."""

from __future__ import annotations

from analysis.profiles.kernel_places import KernelPlace, MemoryLevel
from analysis.profiles.op_places import OpPlace
from analysis.report.table import Column, Table, make_table, quantity, scaled, share_of
from analysis.runs.placed_profiles import PlacedProfile
from analysis.runs.quantities import interval, three_digits

#: Rows for people; the CSV holds them all.
_SHOWN = 25

_OPS = (
    Column("no.", ("number",), lambda op: op.rank, numeric=True),
    Column("op", ("label", "op"), lambda op: (op.time.label, op.time.op), lambda v: str(v[0])),
    Column("phase", ("phase",), lambda op: op.part),
    Column("calls", ("calls",), lambda op: op.time.calls, numeric=True),
    quantity("ms", "time_ms", lambda op: op.time.time_s * 1e3),
    share_of("of the ops' time", "time_share", lambda op: op.share),
    quantity("GFLOP", "gflop", lambda op: scaled(op.time.flops, 1e-9)),
    quantity("elementwise GFLOP", "elementwise_gflop",
            lambda op: scaled(op.time.elementwise_flops, 1e-9)),
    quantity("GFLOP/s", "attained_gflop_per_s", lambda op: scaled(op.flops_per_s, 1e-9)),
    Column("FLOP/byte", ("intensity_eager_flop_per_byte", "intensity_fused_flop_per_byte"),
           lambda op: (op.intensity_min, op.intensity_max) if op.kind else None,
           lambda ends: interval(*ends) if ends[1] else f"{three_digits(ends[0])} and up",
           numeric=True),
    quantity("eager GB/s", "eager_gb_per_s", lambda op: _eager_rate(op)),
    Column("remark", ("remark",), lambda op: _remark(op), wraps_em=14),
)  # fmt: skip


def _eager_rate(op: OpPlace) -> float | None:
    if op.time.eager_bytes is None or not op.time.time_s:
        return None
    return op.time.eager_bytes / op.time.time_s / 1e9


def _remark(op: OpPlace) -> str | None:
    if op.why_no_place is not None:
        return op.why_no_place
    return "faster than DRAM: partly from a cache" if op.from_cache else None


def _level(level: MemoryLevel) -> Column:
    key = f"intensity_{level.lower()}_flop_per_byte"
    return quantity(f"FLOP/{level} byte", key, lambda kernel: kernel.intensities.get(level))


def _dram_rate(kernel: KernelPlace) -> float | None:
    totals = kernel.totals
    if totals.dram_bytes is None or not totals.duration_s:
        return None
    return totals.dram_bytes / totals.duration_s / 1e9


_KERNELS = (
    Column("no.", ("number",), lambda kernel: kernel.rank, numeric=True),
    Column("kernel", ("kernel",), lambda kernel: kernel.name),
    Column("launches", ("launches",), lambda kernel: kernel.totals.launches, numeric=True),
    quantity("ms", "duration_ms", lambda kernel: scaled(kernel.totals.duration_s, 1e3)),
    share_of("of the kernels' time", "time_share", lambda kernel: kernel.share),
    quantity("executed GFLOP", "executed_gflop", lambda kernel: scaled(kernel.totals.flops, 1e-9)),
    quantity("on tensor cores", "tensor_gflop",
            lambda kernel: scaled(kernel.totals.tensor_flops, 1e-9)),
    quantity("GFLOP/s", "executed_gflop_per_s", lambda kernel: scaled(kernel.flops_per_s, 1e-9)),
    _level("L1"),
    _level("L2"),
    _level("DRAM"),
    quantity("DRAM GB/s", "dram_gb_per_s", _dram_rate),
    Column("full name", ("name",), lambda kernel: kernel.totals.name, wraps_em=20),
)  # fmt: skip


def ops_table(number: int, profile: PlacedProfile) -> Table:
    """Time and work of a profile's ops, the longest first."""
    ops = profile.ops.ops if profile.ops else ()
    title = f"Ops of profile {profile.number}, {profile.label}"
    return make_table(number, f"ops-{profile.number}", title, _OPS, ops, shown=_SHOWN)


def kernels_table(number: int, profile: PlacedProfile) -> Table:
    """Counters of a profile's kernels, the longest first."""
    kernels = profile.kernels.kernels if profile.kernels else ()
    title = f"Kernels of profile {profile.number}, {profile.label}"
    return make_table(number, f"kernels-{profile.number}", title, _KERNELS, kernels, shown=_SHOWN)
