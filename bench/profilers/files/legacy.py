"""nvprof's metric names, which Nsight Compute has on no chip, and what replaces them.

Source: "nvprof Metric Comparison" in NVIDIA's Nsight Compute CLI documentation; every replacement
was looked up in NVIDIA's metric database (CUPTI 13.5).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from bench.profilers.files.metrics import sass_metric

NO_SUCH_METRIC = "nvprof's name, which ncu has on no chip; see the metrics named here"

_NAME = re.compile(r"[A-Za-z][\w.:]*")
_METRIC = re.compile(r"flop_count_\w+|[a-z]\w*__\w+(?:\.\w+)*")


def _flop_counts() -> dict[str, tuple[str, ...]]:
    """`flop_count_sp` and its kin: adds, multiplies and twice the multiply-adds of a width."""
    replacements = {}
    for kind, width in (("sp", "f"), ("hp", "h"), ("dp", "d")):
        ops = {op: sass_metric(width + op) for op in ("add", "mul", "fma")}
        replacements[f"flop_count_{kind}"] = tuple(ops.values())
        replacements |= {f"flop_count_{kind}_{op}": (name,) for op, name in ops.items()}
    return replacements


REPLACEMENTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    _flop_counts()
    | {
        "achieved_occupancy": ("sm__warps_active.avg.pct_of_peak_sustained_active",),
        "dram_read_bytes": ("dram__bytes_read.sum",),
        "dram_read_throughput": ("dram__bytes_read.sum.per_second",),
        "dram_read_transactions": ("dram__sectors_read.sum",),
        "dram_write_bytes": ("dram__bytes_write.sum",),
        "dram_write_throughput": ("dram__bytes_write.sum.per_second",),
        "dram_write_transactions": ("dram__sectors_write.sum",),
        "elapsed_cycles_sm": ("smsp__cycles_elapsed.sum",),
        "gld_transactions": ("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",),
        "gst_transactions": ("l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",),
        "inst_executed": ("smsp__inst_executed.sum",),
        "inst_fp_16": ("smsp__sass_thread_inst_executed_op_fp16_pred_on.sum",),
        "inst_fp_32": ("smsp__sass_thread_inst_executed_op_fp32_pred_on.sum",),
        "inst_fp_64": ("smsp__sass_thread_inst_executed_op_fp64_pred_on.sum",),
        "ipc": ("smsp__inst_executed.avg.per_cycle_active",),
        "l2_read_transactions": ("lts__t_sectors_op_read.sum",),
        "l2_write_transactions": ("lts__t_sectors_op_write.sum",),
        "pcie_total_data_received": ("pcie__read_bytes.sum",),
        "pcie_total_data_transmitted": ("pcie__write_bytes.sum",),
        "sm_efficiency": ("smsp__cycles_active.avg.pct_of_peak_sustained_elapsed",),
    }
)


class Translation(NamedTuple):
    """A list of metrics without nvprof's names, and a warning for each that was there."""

    metrics: tuple[str, ...]
    warnings: tuple[str, ...]


def translate(names: Iterable[str]) -> Translation:
    """Replace nvprof's names by Nsight Compute's; the order is kept, repetitions are not."""
    metrics: dict[str, None] = {}
    warnings = []
    for name in names:
        replacement = REPLACEMENTS.get(name, (name,))
        metrics |= dict.fromkeys(replacement)
        if name in REPLACEMENTS:
            warnings.append(
                f"{name} is nvprof's name, which ncu has on no chip: {_formula(name, replacement)}"
            )
        elif name.startswith("flop_count"):
            warnings.append(f"{name} is nvprof's name; ncu has no metric for it, so it is left out")
            metrics.pop(name)
    return Translation(tuple(metrics), tuple(warnings))


def _formula(name: str, replacement: tuple[str, ...]) -> str:
    if name.startswith("flop_count") and len(replacement) > 1:
        add, mul, fma = replacement
        return f"it is {add} + {mul} + 2 * {fma}"
    return f"use {replacement[0]}"


def metrics_listed_in(text: str) -> tuple[str, ...]:
    """Return the names in a list of metrics, or nothing if `text` is something else.

    Such a list has a name a line, or commas between them, and comments after `#`.
    """
    lines = (line.split("#")[0] for line in text.splitlines())
    names = tuple(name for line in lines for name in re.split(r"[,\s]+", line) if name)
    if all(_NAME.fullmatch(name) for name in names) and any(map(_is_metric, names)):
        return names
    return ()


def _is_metric(name: str) -> bool:
    return name in REPLACEMENTS or bool(_METRIC.fullmatch(name))
