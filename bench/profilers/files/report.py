"""`.ncu-rep` reports, by NVIDIA's own module `ncu_report`, which is installed apart.

Its figures are in base units and know no locale.
"""

from __future__ import annotations

import importlib
from decimal import Decimal
from pathlib import Path
from typing import Any

from bench.errors import UserError
from bench.profilers.files.metrics import WANTED, chip_of_capability
from bench.profilers.files.table import EXACT
from bench.profilers.files.totals import Totals
from bench.profilers.files.units import unit_power

_MAGIC = b"NVR\0"
_CAPABILITY = "device__attribute_compute_capability_"


def is_report(path: Path) -> bool:
    """Whether `path` is a report rather than text, by its name or its first bytes."""
    if path.suffix == ".ncu-rep":
        return True
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def read_report(path: Path) -> Totals:
    """Add up the launches of a report.

    Raises `UserError` if the module is not installed, or the report holds no launch, or a metric
    has a unit that is not known.
    """
    try:
        module = importlib.import_module("ncu_report")
    except ImportError:
        raise UserError(
            f"{path}: to read reports install NVIDIA's module (pip install ncu-report), or turn it"
            f" into CSV: LC_ALL=C ncu --import {path.name} --csv --page raw --print-units base"
        ) from None
    totals = Totals(source="ncu report", files=(str(path),))
    try:
        for kernels in module.load_report(str(path)):
            for action in kernels:
                _add(totals, action, module)
    except (RuntimeError, OSError) as error:
        raise UserError(f"{path}: ncu_report cannot read it ({error})") from None
    if not totals.launches:
        raise UserError(f"{path}: no kernel launch in it, or damaged; profile again")
    return totals


def _add(totals: Totals, action: Any, module: Any) -> None:
    kernel = action.name(module.IAction.NameBase_DEMANGLED)
    names = action.metric_names()
    totals.launches[kernel] += 1
    totals.names.update(names)
    major, minor = (_number(action, f"{_CAPABILITY}{part}") for part in ("major", "minor"))
    if major is not None and minor is not None:
        capability = (int(major), int(minor))
        totals.chips.add(chip_of_capability(capability) or f"{capability[0]}.{capability[1]}")
    for metric in WANTED.intersection(names):
        value = _number(action, metric)
        if value is not None:
            power = _power(totals.files[0], metric, action.metric_by_name(metric).unit(), value)
            totals.add(kernel, metric, 1, EXACT.scaleb(value, power))


def _number(action: Any, name: str) -> Decimal | None:
    """The value, or None where the launch has none; a float is taken to the last bit."""
    metric = action.metric_by_name(name)
    value = metric.value() if metric is not None and metric.has_value() else None
    if not isinstance(value, int | float) or value != value or value < 0:
        return None
    return Decimal(value)


def _power(path: str, metric: str, unit: str, value: Decimal) -> int:
    try:
        return unit_power(metric, unit) if value else 0
    except ValueError:
        raise UserError(f"{path}: {metric} is in {unit!r}, a unit that is not known") from None
