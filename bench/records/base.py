"""What every record is, and the types that several of them use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from typing_extensions import Self

from bench.config import ResolvedConfig, RunConfig, legacy_defaults, recorded_config
from bench.errors import Unknown

#: refused: an input found unusable only once the worker had opened it (a corrupt image, a model
#: that is not a module). unsupported: valid, but not on this device.
Outcome = Literal["ok", "oom", "unsupported", "refused", "crashed", "interrupted"]
Phase = Literal["forward", "backward", "optimizer"]
Level = Literal["clean", "suspect", "invalid"]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
#: A float holds it, with room for products of several.
_MOST = 10**24
Count = Annotated[int, Field(ge=0, le=_MOST)]
PositiveCount = Annotated[int, Field(ge=1, le=_MOST)]
PositiveRate = Annotated[float, Field(gt=0, allow_inf_nan=False)]

_LEVELS: tuple[Level, ...] = ("clean", "suspect", "invalid")


def worst(levels: Iterable[str]) -> Level:
    """Return the gravest of verdicts' and findings' `levels`; a note leaves a record clean."""
    graded = (_LEVELS.index(level) for level in levels if level != "note")
    return _LEVELS[max(graded, default=0)]


def ratio(part: float | None, whole: float | None) -> float | None:
    """Return `part / whole`, or None where either is unknown or the whole is 0."""
    return None if part is None or not whole else part / whole


class Record(BaseModel):
    """Frozen, no unknown fields, and no infinity or NaN in its floats."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Facts(Record):
    """A record whose facts may be unknown: every None has its reason in `missing`.

    A fact given as `Unknown` is None with that reason.
    """

    missing: dict[str, str] = {}

    @classmethod
    def of(cls, why: str, reasons: Mapping[str, str] | None = None, /, **facts: Any) -> Self:
        """Return a record of `facts`: what is None, or not given, is missing for its reason.

        A fact without one in `reasons` is missing for `why`.
        """
        needed = (name for name, field in cls.model_fields.items() if field.is_required())
        absent = [name for name in needed if facts.get(name) is None]
        missing = {name: (reasons or {}).get(name, why) for name in absent}
        if blank := [name for name, reason in missing.items() if not reason]:
            raise ValueError(f"None without a reason: {', '.join(blank)}")
        return cls(**{**dict.fromkeys(absent), **facts, "missing": missing})

    def replaced(self, missing: Mapping[str, str] | None = None, **facts: Any) -> Self:
        """Return a copy with these facts, validated as a whole.

        A new fact takes the place of the reason for its absence; `missing` adds reasons.
        """
        reasons = {name: why for name, why in self.missing.items() if name not in facts}
        return type(self)(**{**dict(self), **facts, "missing": {**reasons, **(missing or {})}})

    @model_validator(mode="before")
    @classmethod
    def _unknown_is_none(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        reasons = {name: fact.reason for name, fact in data.items() if isinstance(fact, Unknown)}
        if not reasons:
            return data
        return {**data, **dict.fromkeys(reasons), "missing": {**data.get("missing", {}), **reasons}}

    @model_validator(mode="after")
    def _none_has_reason(self) -> Self:
        absent = {name for name in type(self).model_fields if getattr(self, name) is None}
        if unexplained := sorted(absent - self.missing.keys()):
            raise ValueError(f"None without a reason in missing: {', '.join(unexplained)}")
        fields = type(self).model_fields.keys()
        if contradicted := sorted((self.missing.keys() & fields) - absent):
            raise ValueError(f"a value and a reason for its absence: {', '.join(contradicted)}")
        return self


Weight = Literal["note", "suspect", "invalid"]
#: A finding's code, level and message.
Found = tuple[str, Weight, str]


class Finding(Record):
    """One thing a reader of the run must know, and how much it weighs."""

    code: str
    level: Weight
    message: str


def findings_text(findings: Iterable[Finding]) -> str | None:
    """Return findings as `level: message; level: message`, or None where there are none."""
    return "; ".join(f"{each.level}: {each.message}" for each in findings) or None


class Verdict(Record):
    """Whether the numbers of a run can be trusted, and why not."""

    level: Level
    findings: tuple[Finding, ...]

    @classmethod
    def of(cls, found: Iterable[Found]) -> Self:
        """Return the verdict of findings in this order: the gravest of their levels."""
        findings = [Finding(code=code, level=level, message=text) for code, level, text in found]
        return cls(level=worst(finding.level for finding in findings), findings=tuple(findings))


_NOT_ASKED = "recorded by a version that did not ask"
#: By part of a record, facts that it may lack, with the reason.
_Reasons = Mapping[str, Mapping[str, str]]
#: Schema 2 has profiles, several devices and the processor's own numbers.
_NOT_IN_SCHEMA_1: _Reasons = {
    "environment": {"cpu_signature": _NOT_ASKED},
    "measurement": {"work": _NOT_ASKED, "ranks": "one device"},
}
#: Facts that came without a new schema.
_ADDED: _Reasons = {
    "environment": dict.fromkeys(("variables", "host", "model_code"), _NOT_ASKED),
    "measurement": {
        "warmup_ended_early": "no warm-up ended early in that version",
        "other_cpu_cores": _NOT_ASKED,
        "warmup_peak_memory_bytes": "that version kept one peak of warm-up and window",
        "changed_switches": _NOT_ASKED,
    },
    "telemetry": {"slowed_share": _NOT_ASKED},
}
#: What older records say of features that went: dropped where it says nothing of the run.
_GONE = (("config", "decoder", "cpu"), ("cpu_counters", "dram_bytes", None))
#: Facts that have another name since not every sample is an image: the part, then old and new.
_RENAMED = (("measurement", "images_per_iteration", "samples_per_iteration"),)
_CONFIGS: dict[str, type[BaseModel]] = {"config": RunConfig, "resolved": ResolvedConfig}


class KeptRecord(Facts):
    """A record that outlives the version that wrote it: a file `record.json`."""

    schema_version: Literal[2] = 2
    record_id: str
    created: datetime  # UTC
    outcome: Outcome
    reason: str | None  # why the outcome is not ok
    verdict: Verdict | None

    @model_validator(mode="before")
    @classmethod
    def _as_today(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        data = dict(data)
        if data.get("schema_version") == 1:
            data = _explained(data, _NOT_IN_SCHEMA_1) | {"schema_version": 2}
        for part, name, value in _GONE:
            facts = data.get(part)
            if isinstance(facts, dict) and facts.get(name, value) == value:
                data[part] = {key: fact for key, fact in facts.items() if key != name}
        for name, model in _CONFIGS.items():
            if isinstance(data.get(name), dict):
                data[name] = {**legacy_defaults(model), **data[name]}
        if isinstance(data.get("config"), dict):
            data["config"] = recorded_config(data["config"])
        for part, old, new in _RENAMED:
            facts = data.get(part)
            if isinstance(facts, dict) and old in facts:
                data[part] = {new if name == old else name: fact for name, fact in facts.items()}
        return _explained(data, _ADDED)


def _explained(data: dict[str, Any], reasons: _Reasons) -> dict[str, Any]:
    """Return `data` whose parts have None, and the reason, for each fact that they lack.

    Parts that are no facts stay as they are, for the validation to refuse.
    """
    data = dict(data)
    for part, missing in reasons.items():
        facts = data.get(part)
        if isinstance(facts, dict):
            data[part] = lacking(facts, missing)
    return data


def lacking(facts: dict[str, Any], missing: Mapping[str, str]) -> dict[str, Any]:
    """Return `facts` with None, and the reason, for each fact of `missing` that is not there."""
    known = facts.get("missing", {})
    if not isinstance(known, dict):
        return facts
    absent = {name: why for name, why in missing.items() if name not in facts}
    return {**facts, **dict.fromkeys(absent), "missing": {**known, **absent}}
