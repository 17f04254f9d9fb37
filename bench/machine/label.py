"""The label of a machine in run names, made from its device's name."""

from __future__ import annotations

import re

from bench.records import DeviceInfo

#: What makers add to a processor's name: marks, clock, core count, the graphics beside it.
_NOISE = re.compile(
    r"\((?:r|tm|c)\)|\bcpu\b|@.*|\b(?:\d+|dual|quad|six|eight)-core\b|\bprocessor\b|\bwith .*"
)
_LONGEST = 64


def environment_label(device: DeviceInfo) -> str:
    """Return `nvidia-h200`, `intel-core-i9-14900hx`, `apple-m3-max` or `apple-m3-max-cpu`.

    An Apple chip's CPU and GPU bear one name, so the CPU says that it is one.
    """
    plain = _NOISE.sub(" ", device.name.lower())
    slug = re.sub(r"[^a-z0-9._]+", "-", plain).strip("-._") or device.backend
    suffix = "-cpu" if device.backend == "cpu" and slug.startswith("apple-") else ""
    return slug[: _LONGEST - len(suffix)].rstrip("-._") + suffix
