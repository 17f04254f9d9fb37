"""Records of schema 1, written before profiles existed, read as what they would be today."""

from __future__ import annotations

from typing import Any

_BEFORE = "recorded by schema 1, which did not ask"


def from_schema_1(data: Any) -> Any:
    """Return the fields of a record as schema 2 names them; anything else comes back as it is."""
    if not isinstance(data, dict) or data.get("schema_version") != 1:
        return data
    data = data | {"schema_version": 2}
    for name in ("config", "resolved"):
        if isinstance(data.get(name), dict):
            data[name] = data[name] | {"allocator": "system"}  # there was no choice
    environment = data.get("environment")
    if isinstance(environment, dict):
        missing = environment.get("missing", {}) | {"cpu_signature": _BEFORE}
        data["environment"] = environment | {"cpu_signature": None, "missing": missing}
    measurement = data.get("measurement")
    if isinstance(measurement, dict):
        missing = measurement.get("missing", {}) | {"work": _BEFORE, "ranks": "one device"}
        data["measurement"] = measurement | {"work": None, "ranks": None, "missing": missing}
    return data
