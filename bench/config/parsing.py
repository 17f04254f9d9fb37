"""Configurations from what a person or a record says: each wrong value with its remedy."""

from __future__ import annotations

from functools import cache
from typing import Any

from pydantic import BaseModel, ValidationError, create_model

from bench.config.run_config import PLANNED, RECORDED, RunConfig
from bench.errors import UserError


def parse_config(values: dict[str, Any], *, planned: bool = False) -> RunConfig:
    """Validate `values` (strings or numbers, by field name).

    A `planned` configuration may be carried out elsewhere: the package that holds its model need
    not be here. Raises `UserError` with one line that names every wrong value and its remedy.
    """
    try:
        return RunConfig.model_validate(values, context=PLANNED if planned else None)
    except ValidationError as error:
        raise UserError("; ".join(_problems(error, values))) from None


def recorded_config(values: dict[str, Any]) -> RunConfig:
    """Return the configuration that was recorded as `values`, of a model that need not be here.

    Raises `pydantic.ValidationError`.
    """
    return RunConfig.model_validate(values, context=RECORDED)


def check_field(name: str, text: str) -> None:
    """Validate a planned field's value by itself, whatever the others are.

    Raises `UserError` with one line: the value and its remedy.
    """
    try:
        _of_one_field(name).model_validate({name: text}, context=PLANNED)
    except ValidationError as error:
        raise UserError("; ".join(_problems(error, {name: text}))) from None


@cache
def _of_one_field(name: str) -> type[BaseModel]:
    field = RunConfig.model_fields[name]
    fields: dict[str, Any] = {name: (field.annotation, field)}
    return create_model(name, **fields)


#: What a value should have been, by pydantic's type of the error and the limit that it names.
_WANTED = {
    "literal_error": "{expected}",
    "bool_parsing": "true or false",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing_size": "a smaller number",
    "float_parsing": "a number",
    "greater_than_equal": "a number from {ge}",
    "greater_than": "a number above {gt}",
    "less_than": "a number below {lt}",
}


def _wanted(kind: str, message: str, limits: dict[str, Any]) -> str:
    if kind not in _WANTED:
        return message.removeprefix("Value error, ")
    return _WANTED[kind].format(**limits).replace("'", "")


def _problems(error: ValidationError, values: dict[str, Any]) -> list[str]:
    """One phrase per wrong field: pydantic reports a union once per member, we say it once."""
    by_field: dict[str, list[str]] = {}
    for item in error.errors():
        field = str(item["loc"][0]) if item["loc"] else ""
        by_field.setdefault(field, []).append(
            _wanted(item["type"], item["msg"], item.get("ctx", {}))
        )
    phrases = []
    for field, messages in by_field.items():
        remedy = ", or ".join(dict.fromkeys(messages))
        phrases.append(f"{field}={values.get(field)!r}: {remedy}" if field else remedy)
    return phrases
