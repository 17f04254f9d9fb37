"""Records of earlier versions, read as what they would be today."""

from __future__ import annotations

from typing import Any

from pydantic import model_validator

from bench.config import MEANT_BEFORE
from bench.records.base import Facts

_NOT_ASKED = "recorded by a version that did not ask"
#: Knobs that came later, as what was in use before there was a choice.
_IN_USE_BEFORE = {"allocator": "system", "depthwise_fp32": False}


class KeptRecord(Facts):
    """A record that outlives the version that wrote it: a file `record.json`."""

    @model_validator(mode="before")
    @classmethod
    def _as_today(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        data = _from_schema_1(data) if data.get("schema_version") == 1 else dict(data)
        for name, before in (("config", MEANT_BEFORE), ("resolved", _IN_USE_BEFORE)):
            if isinstance(data.get(name), dict):
                data[name] = before | data[name]
        environment = data.get("environment")
        if isinstance(environment, dict) and "variables" not in environment:
            data["environment"] = _unknown(environment, {"variables": _NOT_ASKED})
        return data


def _from_schema_1(data: dict[str, Any]) -> dict[str, Any]:
    """Schema 2 has profiles, several devices and the processor's own numbers."""
    data = data | {"schema_version": 2}
    reasons = {
        "environment": {"cpu_signature": _NOT_ASKED},
        "measurement": {"work": _NOT_ASKED, "ranks": "one device"},
    }
    for name, missing in reasons.items():
        if isinstance(data.get(name), dict):
            data[name] = _unknown(data[name], missing)
    return data


def _unknown(facts: dict[str, Any], missing: dict[str, str]) -> dict[str, Any]:
    """Return `facts` with None, and the reason, for each name in `missing`."""
    return facts | dict.fromkeys(missing) | {"missing": facts.get("missing", {}) | missing}
