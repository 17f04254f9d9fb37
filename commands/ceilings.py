"""`mlproject ceilings`: this machine's roofs, measured by a fresh worker."""

from __future__ import annotations

from functools import partial
from typing import Literal

from bench.launcher.device_lock import device_names
from bench.launcher.from_python import find_ceilings
from bench.launcher.measurement import launch_ceilings
from bench.records import CeilingsRecord
from bench.records.folders import RecordFolder
from commands.console.options import option
from commands.console.output import Answering, Result
from commands.console.recorded import Measuring, verdict_fact


class Ceilings(Measuring, Answering):
    """Measure this machine's roofs.

    They are the matrix product per precision, and the bandwidth of memory and caches.
    """

    backend: Literal["auto", "cpu", "cuda", "mps"] = option("device to measure", "auto")
    if_missing: bool = option(
        "do nothing where --records holds roofs of this device and this torch already"
    )

    def _result(self) -> Result:
        known = find_ceilings(self.records, self.backend) if self.if_missing else None
        if known is not None:
            folder = RecordFolder(self.records / known.record_id)
            return self.finish(folder, known, roof_facts(known))
        launch = partial(launch_ceilings, self.backend)
        return self.measured("ceilings", launch, roof_facts, device_names(self.backend))


def roof_facts(record: CeilingsRecord) -> dict[str, str]:
    """Return the device and each of its roofs, or why there is none."""
    facts = {"device": record.environment.device.name} if record.environment else {}
    for ceiling in record.ceilings:
        if ceiling.peak_flops_per_s is not None:
            facts[f"roof {ceiling.math_mode}"] = f"{ceiling.peak_flops_per_s / 1e9:.4g} GFLOP/s"
        if ceiling.peak_bytes_per_s is not None:
            facts["roof memory"] = f"{ceiling.peak_bytes_per_s / 1e9:.4g} GB/s"
    for roof in record.cache_roofs:
        if roof.peak_bytes_per_s is not None:
            facts[f"roof {roof.level}"] = f"{roof.peak_bytes_per_s / 1e9:.4g} GB/s"
        else:
            facts[f"no roof {roof.level}"] = roof.missing["peak_bytes_per_s"]
    return facts | verdict_fact(record.verdict)
