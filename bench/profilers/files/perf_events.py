"""Which of perf's events give which figure, and what one count of each is worth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

#: Figure -> the names by which perf prints its event.
CORE_EVENTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "cycles": ("cycles", "cpu-cycles"),
        "instructions": ("instructions",),
        "cache_references": ("cache-references",),
        "cache_misses": ("cache-misses",),
        "branches": ("branches", "branch-instructions"),
        "branch_misses": ("branch-misses",),
    }
)


@dataclass(frozen=True)
class FlopEvents:
    """One maker's floating-point events: FLOP per count, a multiply-add being 2.

    `counts_bf16` says whether bf16 products are documented to be among them; counts of `scalable`
    events are those of vectors of `SCALABLE_UNIT_BITS`.
    """

    maker: str
    weights: Mapping[str, int]
    counts_bf16: bool
    scalable: frozenset[str] = frozenset()


def _intel_weights() -> dict[str, int]:
    """Elements per instruction; a fused multiply-add counts twice by itself.

    Linux, tools/perf/pmu-events/arch/x86/sapphirerapids/floating-point.json: "Each count
    represents 8 computation operations, one for each element ... FM(N)ADD/SUB instructions count
    twice". Broadwell and later; 512-bit ones only where the processor has AVX-512. Half-precision,
    VDPBF16PS and AMX are in none of them, and AMX_OPS_RETIRED was withdrawn from the same files.
    """
    widths = {"scalar": 0, "128b_packed": 128, "256b_packed": 256, "512b_packed": 512}
    elements = {"single": 32, "double": 64}
    return {
        f"fp_arith_inst_retired.{width}_{element}": bits // size if bits else 1
        for width, bits in widths.items()
        for element, size in elements.items()
    }


FLOP_EVENTS = (
    FlopEvents("Intel", MappingProxyType(_intel_weights()), counts_bf16=False),
    # amdzen2/floating-point.json: "All FLOPS ... Multiply-add counts as 2 FLOPS ... This event can
    # count above 15" per cycle, for which Linux 5.6 and later pair two counters; amdzen4's and
    # amdzen5's add the bfloat16 ones.
    FlopEvents("AMD", MappingProxyType({"fp_ret_sse_avx_ops.all": 1}), counts_bf16=True),
    # Arm Architecture Reference Manual, FP_FIXED_OPS_SPEC and FP_SCALE_OPS_SPEC: operations of
    # elements, twice for a multiply-add; scalable vectors as if they were 128 bits long. They are
    # counted when executed, wrongly predicted paths included.
    FlopEvents(
        "Arm",
        MappingProxyType({"fp_fixed_ops_spec": 1, "fp_scale_ops_spec": 1}),
        counts_bf16=False,
        scalable=frozenset({"fp_scale_ops_spec"}),
    ),
)
SCALABLE_UNIT_BITS = 128

#: Each a whole account of what memory controllers read and wrote. The first four are the kernel's
#: own events of Intel's (arch/x86/events/intel/uncore_snb.c, uncore_snbep.c), which perf prints in
#: MiB; the last is amdzen4's memory-controller.json. A column access (CAS) moves 64 bytes.
MEMORY_EVENTS: tuple[tuple[str, ...], ...] = (
    ("cas_count_read", "cas_count_write"),
    (
        "cas_count_read_sch0",
        "cas_count_read_sch1",
        "cas_count_write_sch0",
        "cas_count_write_sch1",
    ),
    ("data_reads", "data_writes"),
    ("data_read", "data_write"),
    ("umc_cas_cmd.rd", "umc_cas_cmd.wr"),
)
_BYTES_PER_CAS = 64
_MIB = 2**20


def memory_bytes_per_count(event: str, unit: str) -> int | None:
    """Return the bytes of one count that perf prints with `unit`, or None where it is unknown."""
    if unit == "MiB":
        return _MIB
    return _BYTES_PER_CAS if not unit and "cas_c" in event else None
