"""What every record is, and the types that several of them use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from typing_extensions import Self

#: refused: an input found unusable only once the worker had opened it (a corrupt image, a model
#: that is not a module). unsupported: valid, but not on this device.
Outcome = Literal["ok", "oom", "unsupported", "refused", "crashed", "interrupted"]
Backend = Literal["cpu", "cuda", "mps"]
MathMode = Literal["fp32", "tf32", "bf16", "fp16"]
Phase = Literal["forward", "backward", "optimizer"]
Level = Literal["clean", "suspect", "invalid"]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]
PositiveRate = Annotated[float, Field(gt=0, allow_inf_nan=False)]


_LEVELS: tuple[Level, ...] = ("clean", "suspect", "invalid")


def worst(levels: Iterable[str]) -> Level:
    """Return the gravest of verdicts' and findings' `levels`; a note leaves a record clean."""
    graded = (_LEVELS.index(level) for level in levels if level != "note")
    return _LEVELS[max(graded, default=0)]


class Record(BaseModel):
    """Frozen, no unknown fields, and no infinity or NaN in its floats."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Facts(Record):
    """A record whose facts may be unknown: every None has its reason in `missing`."""

    missing: dict[str, str] = {}

    def replaced(self, missing: Mapping[str, str] | None = None, **facts: Any) -> Self:
        """Return a copy with these facts, validated as a whole.

        A new fact takes the place of the reason for its absence; `missing` adds reasons.
        """
        reasons = {name: why for name, why in self.missing.items() if name not in facts}
        return type(self)(**{**dict(self), **facts, "missing": {**reasons, **(missing or {})}})

    @model_validator(mode="after")
    def _none_has_reason(self) -> Self:
        absent = {name for name in type(self).model_fields if getattr(self, name) is None}
        if unexplained := sorted(absent - self.missing.keys()):
            raise ValueError(f"None without a reason in missing: {', '.join(unexplained)}")
        fields = type(self).model_fields.keys()
        if contradicted := sorted((self.missing.keys() & fields) - absent):
            raise ValueError(f"a value and a reason for its absence: {', '.join(contradicted)}")
        return self
