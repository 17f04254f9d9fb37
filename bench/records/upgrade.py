"""Records of earlier versions, read as what they would be today."""

from __future__ import annotations

from typing import Any

_NOT_ASKED = "recorded by a version that did not ask"
_BEFORE = "recorded by schema 1, which did not ask"
#: Knobs that came later, asking for what was measured before there was a choice.
_KNOBS = {"allocator": "system", "depthwise_fp32": "false"}


def as_today(data: Any) -> Any:
    """Return the fields of a record as today's have them; what is none comes back as it is."""
    if not isinstance(data, dict):
        return data
    if isinstance(data.get("config"), dict):
        data = data | {"config": _KNOBS | data["config"]}
    environment = data.get("environment")
    if isinstance(environment, dict) and "variables" not in environment:
        missing = environment.get("missing", {}) | {"variables": _NOT_ASKED}
        data = data | {"environment": environment | {"variables": None, "missing": missing}}
    return _from_schema_1(data) if data.get("schema_version") == 1 else data


def _from_schema_1(data: dict[str, Any]) -> dict[str, Any]:
    """Schema 2 has profiles, several devices and the processor's own numbers."""
    data = data | {"schema_version": 2}
    environment = data.get("environment")
    if isinstance(environment, dict):
        missing = environment.get("missing", {}) | {"cpu_signature": _BEFORE}
        data["environment"] = environment | {"cpu_signature": None, "missing": missing}
    measurement = data.get("measurement")
    if isinstance(measurement, dict):
        missing = measurement.get("missing", {}) | {"work": _BEFORE, "ranks": "one device"}
        data["measurement"] = measurement | {"work": None, "ranks": None, "missing": missing}
    return data
