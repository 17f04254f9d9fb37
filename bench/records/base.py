"""What every record is, and the types that several of them use."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, model_validator
from typing_extensions import Self

from bench.config import ResolvedConfig, RunConfig, legacy_defaults, recorded_config
from bench.errors import Unknown

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: refused: an input found unusable only once the worker had opened it (a corrupt image, a model
#: that is not a module). unsupported: valid, but not on this device.
Outcome = Literal["ok", "oom", "unsupported", "refused", "crashed", "interrupted"]
Phase = Literal["forward", "backward", "optimizer"]
Level = Literal["clean", "suspect", "invalid"]
#: Longer than anything runs, and less than any clock tells.
_LONGEST_S, _SHORTEST_S = 10**12, 1e-12
Seconds = Annotated[float, Field(ge=0, le=_LONGEST_S)]
#: Of what took time: rates are of it.
PositiveSeconds = Annotated[float, Field(ge=_SHORTEST_S, le=_LONGEST_S)]
Share = Annotated[float, Field(ge=0, le=1)]
#: A float holds it, with room for products of several.
_MOST, _LEAST = 10**24, 1e-24
Number = Annotated[float, Field(ge=-_MOST, le=_MOST)]
Amount = Annotated[float, Field(ge=0, le=_MOST)]
Count = Annotated[int, Field(ge=0, le=_MOST)]
PositiveCount = Annotated[int, Field(ge=1, le=_MOST)]
PositiveRate = Annotated[float, Field(ge=_LEAST, le=_MOST)]
#: What the tables and servers that get records can hold: a clock that was never set is in 1970.
Instant = Annotated[
    AwareDatetime,
    Field(ge=datetime(1970, 1, 1, tzinfo=timezone.utc)),
    Field(lt=datetime(2200, 1, 1, tzinfo=timezone.utc)),
]

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

    # Validators are built when a record is first read or made: most commands need few of them.
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)


#: The default of a fact that earlier versions did not record.
NEWER: Any = Unknown("the version that measured it did not record this")


@cache
def _newer(facts: type[BaseModel]) -> tuple[str, ...]:
    return tuple(name for name, field in facts.model_fields.items() if field.default is NEWER)


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
        absent = {
            name: (reasons or {}).get(name, why)
            for name, field in cls.model_fields.items()
            if (field.is_required() or field.default is NEWER) and facts.get(name) is None
        }
        missing = {name: reason for name, reason in absent.items() if reason}
        return cls(**{**dict.fromkeys(absent), **facts, "missing": missing})

    def replaced(self, missing: Mapping[str, str] | None = None, **facts: Any) -> Self:
        """Return a copy with these facts, validated as a whole.

        A new fact takes the place of the reason for its absence; `missing` adds reasons.
        """
        reasons = {name: why for name, why in self.missing.items() if name not in facts}
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self)(**{**fields, **facts, "missing": {**reasons, **(missing or {})}})

    @model_validator(mode="before")
    @classmethod
    def _unknown_is_none(cls, data: Any) -> Any:
        if not isinstance(data, dict) or not isinstance(data.get("missing", {}), dict):
            return data
        data = {name: NEWER for name in _newer(cls) if name not in data} | data
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
Fact = int | float | str
_OPTIONAL = r"(\[[^]]*\])"


@cache
def catalogue(*parts: str) -> dict[str, dict[str, str]]:
    """Return the level and the words of each finding of these parts of `findings.toml`."""
    text = Path(__file__).with_name("findings.toml").read_text(encoding="utf-8")
    known = tomllib.loads(text)
    rows = (row for part in parts for row in known[part].items())
    return {code: words for codes, words in rows for code in codes.split(", ")}


_OF_RECORDS = ("run", "roof", "profile")


class Finding(Record):
    """One thing a reader of the run must know, and how much it weighs."""

    code: str
    level: Weight
    facts: dict[str, Fact] = {}
    #: The sentence, in records of versions without `facts`.
    message: str | None = None

    @classmethod
    def of(cls, code: str, level: Weight | None = None, /, **facts: Fact | None) -> Self:
        """Return a finding of the catalogue, by default of its level there; None is no fact."""
        usual = catalogue(*_OF_RECORDS)[code]["level"]
        known = {name: fact for name, fact in facts.items() if fact is not None}
        return cls.model_validate({"code": code, "level": level or usual, "facts": known})

    def with_facts(self, **facts: Fact) -> Self:
        """Return it with more facts."""
        return self.model_copy(update={"facts": {**self.facts, **facts}})

    @property
    def sentence(self) -> str:
        """What it says, by the catalogue; of another version's code or facts these alone."""
        if self.message is not None:
            return self.message
        try:
            always = re.split(_OPTIONAL, catalogue(*_OF_RECORDS)[self.code]["says"])
            return "".join(map(self._filled, always))
        except (LookupError, ValueError, TypeError):
            return f"{self.code} {self.facts or ''}".strip()

    @property
    def remedy(self) -> str | None:
        """What to do, by the catalogue; None where that is nothing."""
        remedy = catalogue(*_OF_RECORDS).get(self.code, {}).get("do")
        return remedy and remedy.replace("`", "")

    def _filled(self, part: str) -> str:
        """A part of the sentence; one in brackets is left out where it has no facts."""
        if not re.fullmatch(_OPTIONAL, part):
            return part.format_map(self.facts)
        try:
            return part[1:-1].format_map(self.facts)
        except KeyError:
            return ""


def findings_text(findings: Iterable[Finding]) -> str | None:
    """Return findings as `level: sentence; level: sentence`, or None where there are none."""
    return "; ".join(f"{finding.level}: {finding.sentence}" for finding in findings) or None


class Verdict(Record):
    """Whether the numbers of a run can be trusted, and why not."""

    level: Level
    findings: tuple[Finding, ...]

    @classmethod
    def of(cls, findings: Iterable[Finding]) -> Self:
        """Return the verdict of findings in this order: the gravest of their levels."""
        findings = tuple(findings)
        return cls(level=worst(finding.level for finding in findings), findings=findings)


_CONFIGS: dict[str, type[BaseModel]] = {"config": RunConfig, "resolved": ResolvedConfig}


class KeptRecord(Facts):
    """A record that outlives the version that wrote it: a file `record.json`.

    A setting that is newer than the record has the value that reproduces what was measured.
    """

    schema_version: Literal[2] = 2
    record_id: str
    created: Instant  # UTC
    outcome: Outcome
    reason: str | None  # why the outcome is not ok
    verdict: Verdict | None

    @model_validator(mode="before")
    @classmethod
    def _with_newer_settings(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        data = dict(data)
        for name, model in _CONFIGS.items():
            if isinstance(data.get(name), dict):
                data[name] = {**legacy_defaults(model), **data[name]}
        if isinstance(data.get("config"), dict):
            data["config"] = recorded_config(data["config"])
        return data
