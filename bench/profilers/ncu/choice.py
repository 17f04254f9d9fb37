"""Which metrics to collect on the device at hand, after asking ncu which of them it has."""

from __future__ import annotations

import os
from dataclasses import dataclass

from bench.machine.probes import UnknownFactError, value_or_none
from bench.profilers.ncu.metrics import (
    CHIPS,
    DRAM,
    DURATION,
    WAYS,
    chip_of_capability,
    metrics_for_chip,
)
from bench.profilers.ncu.program import Ncu, RefusalError

#: One chip of each family by ncu's name, for asking without the device.
MEMBERS = {
    "tu10x": "tu102",
    "ga100": "ga100",
    "ga10x": "ga102",
    "ad10x": "ad102",
    "gh100": "gh100",
    "gb100": "gb100",
    "gb110": "gb110",
    "gb20x": "gb202",
}


@dataclass(frozen=True)
class Choice:
    """What is collected, and which metrics of the table are not there, with the reason.

    `chip` is None for a compute capability that the table does not have.
    """

    chip: str | None
    hardware: tuple[str, ...]
    sass: tuple[str, ...]
    left_out: dict[str, str]

    @property
    def metrics(self) -> tuple[str, ...]:
        """All of them: ncu replays a kernel as often as it needs to, with patched code or without.

        Two runs of the step would not do: cuDNN may choose other kernels in each process.
        """
        return (*self.hardware, *self.sass)


def choose_metrics(ncu: Ncu, capability: tuple[int, int]) -> Choice:
    """Return the chip's metrics that `ncu` has; for an unknown chip, whichever exist.

    Raises `RefusalError` where this ncu does not know the device.
    """
    require_chip(ncu, capability)
    chip = chip_of_capability(capability)
    known = _metrics_here(ncu, chip)
    if known is None and chip is None:
        raise RefusalError(
            f"{ncu} does not tell the metrics of compute capability {_dotted(capability)}",
            f"see that `{ncu.path} --query-metrics` lists them",
        )
    hardware, sass = metrics_for_chip(chip) if chip is not None else _every_metric()
    if known is None:
        return Choice(chip, hardware, sass, {})
    absent = [name for name in (*hardware, *sass) if not _has(known, name)]
    hardware = tuple(name for name in hardware if name not in absent)
    sass = tuple(name for name in sass if name not in absent)
    if DRAM in absent:  # some chips count reads and writes alone
        ways = (way for way in WAYS["dram_bytes"] if all(_has(known, name) for name in way))
        hardware += next(ways, ())
    if chip is None:
        # That a foreign chip lacks what other chips have is no loss.
        return Choice(None, _without_parts(hardware), sass, {})
    return Choice(chip, hardware, sass, dict.fromkeys(absent, f"{ncu} has none here"))


def require_chip(ncu: Ncu, capability: tuple[int, int]) -> None:
    """Raise `RefusalError` if `ncu` is older than the chip of that compute capability."""
    chip = chip_of_capability(capability)
    chips = value_or_none(ncu.chips)
    if chip is None or not chips or MEMBERS[chip] in chips:
        return
    raise RefusalError(
        f"{ncu} is older than this GPU (compute capability {_dotted(capability)}, {chip})",
        "install a newer Nsight Compute; Blackwell needs that of CUDA 12.8 or newer",
    )


def _metrics_here(ncu: Ncu, chip: str | None) -> frozenset[str] | None:
    """Base names that the device has, or a chip of its family; None where ncu names neither.

    The device goes first if it is ncu's first too: chips of one compute capability may differ
    (TU116 lacks the tensor cores of TU102).
    """
    questions = [("--devices", "0")]
    if chip is not None:
        # Where CUDA is told to see another device first, ncu's first one may be of another chip.
        first_is_ours = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip() == "0"
        questions.insert(len(questions) if first_is_ours else 0, ("--chips", MEMBERS[chip]))
    for question in questions:
        try:
            known = ncu.metrics(*question)
        except UnknownFactError:
            continue
        if _has(known, DURATION):  # else it is no list of metrics
            return known
    return None


def _has(known: frozenset[str], metric: str) -> bool:
    """Whether the base name of `metric`, which ends with `.sum`, is among those that ncu lists."""
    return metric.rpartition(".")[0] in known


def _every_metric() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The metrics of all chips, each once."""
    tables = [metrics_for_chip(chip) for chip in CHIPS]
    hardware = dict.fromkeys(name for table in tables for name in table[0])
    sass = dict.fromkeys(name for table in tables for name in table[1])
    return tuple(hardware), tuple(sass)


def _without_parts(metrics: tuple[str, ...]) -> tuple[str, ...]:
    """Leave out what another counts too: `src_fp16_dst_fp32` is a part of `src_fp16`."""
    wholes = [f"{name.rpartition('.')[0]}_" for name in metrics]
    return tuple(name for name in metrics if not any(name.startswith(whole) for whole in wholes))


def _dotted(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"
