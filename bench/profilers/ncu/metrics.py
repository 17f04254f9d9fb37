"""Which Nsight Compute metric gives which figure, and which of them each chip has.

Every name was looked up for its chip in NVIDIA's metric database (CUPTI 13.5). The SASS counters do
not see tensor cores, whose `sm__ops_path_tensor_*` count true FLOP (a multiply-add is 2), so a
total needs both.
"""

from __future__ import annotations

from collections.abc import Mapping

#: The ways to a sum: each a set of metrics to add up, in the order of preference.
Ways = tuple[tuple[str, ...], ...]

DURATION = "gpu__time_duration.sum"
#: What the sections' tables call `gpu__time_duration.sum`.
DURATION_LABEL = "Duration"
DRAM = "dram__bytes.sum"
L2 = "lts__t_bytes.sum"
L1 = "l1tex__t_bytes.sum"
WAYS: Mapping[str, Ways] = {
    "duration_s": ((DURATION,), (DURATION_LABEL,)),
    "dram_bytes": (
        (DRAM,),
        ("dram__bytes_read.sum", "dram__bytes_write.sum"),
        ("dram__bytes_op_read.sum", "dram__bytes_op_write.sum"),  # consumer Blackwell's names
    ),
    "l2_bytes": ((L2,),),
    "l1_bytes": ((L1,),),
    "pcie_bytes": (("pcie__read_bytes.sum", "pcie__write_bytes.sum"),),
}

#: FLOP per count. Whether a packed half instruction (`hadd2`, `hfma2`) counts once or twice per
#: thread is documented nowhere; one count is taken for one operation (docs/profile.md).
SASS_FLOPS: Mapping[str, int] = {
    f"{width}{op}": flops for width in "fhd" for op, flops in (("add", 1), ("mul", 1), ("fma", 2))
}
#: Data-centre Blackwell's packed fp32: two operations per thread.
PACKED_FLOPS: Mapping[str, int] = {"fadd2": 2, "fmul2": 2, "ffma2": 4}
_PACKING = ("gb100", "gb110")
#: Instructions of the tensor pipe, of any kind of input: 0 proves that there are no tensor FLOP.
TENSOR_INSTRUCTIONS = "sm__inst_executed_pipe_tensor.sum"
#: Chips with a second pipe for tensor cores (tcgen05's "tc"), which that metric does not see.
SECOND_TENSOR_PIPE = _PACKING

_AMPERE = (
    "src_fp16_dst_fp32",
    "src_fp16_dst_fp16",
    "src_bf16_dst_fp32",
    "src_tf32_dst_fp32",
    "src_fp64",
)
_FP8 = ("src_fp8_dst_fp16", "src_fp8_dst_fp32")
#: Tensor-core metrics of floating-point inputs, by chip.
_TENSOR: Mapping[str, tuple[str, ...]] = {
    "tu10x": ("src_fp16_bf16_tf32_dst_fp32", "src_fp16_dst_fp16"),
    "ga100": _AMPERE,
    "ga10x": _AMPERE,
    "ad10x": (*_AMPERE, "src_fp8"),
    "gh100": ("src_fp16", "src_bf16_dst_fp32", "src_tf32_dst_fp32", "src_fp64", "src_fp8"),
    "gb100": (*_AMPERE, "src_fp4_fp6_fp8_dst_fp16", "src_fp4_fp6_fp8_dst_fp32"),
    "gb110": (*_AMPERE, *_FP8),
    "gb20x": (*_AMPERE, *_FP8),
}
CHIPS = tuple(_TENSOR)
_BY_CAPABILITY = {
    (7, 5): "tu10x",
    (8, 0): "ga100",
    (8, 6): "ga10x",
    (8, 9): "ad10x",
    (9, 0): "gh100",
    (10, 0): "gb100",
    (10, 3): "gb110",
    (12, 0): "gb20x",
}


def chip_of_capability(capability: tuple[int, int]) -> str | None:
    """The chip, as `metrics_for_chip` knows it, of a CUDA compute capability; None if unknown."""
    return _BY_CAPABILITY.get(capability)


def sass_metric(op: str, unit: str = "smsp") -> str:
    """The metric that counts the threads which executed `op`, such as `ffma`."""
    return f"{unit}__sass_thread_inst_executed_op_{op}_pred_on.sum"


def tensor_metrics(chip: str) -> tuple[str, ...]:
    """The metrics that count the FLOP of `chip`'s tensor cores, one per kind of input."""
    return tuple(f"sm__ops_path_tensor_{kind}.sum" for kind in _TENSOR[chip])


def sass_ops(chip: str | None) -> Mapping[str, int]:
    """FLOP per count of the operations whose counters make up `chip`'s SASS total."""
    return {**SASS_FLOPS, **PACKED_FLOPS} if chip in _PACKING else SASS_FLOPS


def metrics_for_chip(chip: str) -> tuple[str, ...]:
    """The metrics to collect on `chip`: of the hardware, then of executed instructions (SASS)."""
    sass = map(sass_metric, sass_ops(chip))
    return (DURATION, DRAM, L2, L1, *tensor_metrics(chip), *sass)


TENSOR = tuple(dict.fromkeys(metric for chip in CHIPS for metric in tensor_metrics(chip)))
#: Every metric that some figure is made of; `sm__` counts the same threads as `smsp__`.
WANTED = frozenset(
    [metric for ways in WAYS.values() for way in ways for metric in way]
    + [sass_metric(op, unit) for op in (*SASS_FLOPS, *PACKED_FLOPS) for unit in ("smsp", "sm")]
    + [*TENSOR, TENSOR_INSTRUCTIONS]
)
