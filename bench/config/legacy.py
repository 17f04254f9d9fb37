"""Fields that came later: what a record older than a field is read with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel


@dataclass(frozen=True)
class Legacy:
    """Marks a field with the value that reproduces records older than the field.

    Such a record is read with that value. In a `RunConfig` the value does not enter `config_id`:
    old records keep theirs and stay comparable.
    """

    value: object


@cache
def legacy_defaults(model: type[BaseModel]) -> Mapping[str, Any]:
    """Return the value of each field that `Legacy` marks."""
    marked = {
        name: mark.value
        for name, field in model.model_fields.items()
        for mark in field.metadata
        if isinstance(mark, Legacy)
    }
    return MappingProxyType(marked)
