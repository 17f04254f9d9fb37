"""Values from text and as text, and where the machines of one measurement meet."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin

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


def _problems(error: ValidationError, values: dict[str, Any]) -> list[str]:
    """One phrase per wrong field: pydantic reports a union once per member, we say it once."""
    by_field: dict[str, list[str]] = {}
    for item in error.errors():
        field = str(item["loc"][0]) if item["loc"] else ""
        wanted = item["msg"].removeprefix("Value error, ")
        if item["type"] in _WANTED:
            wanted = _WANTED[item["type"]].format(**item.get("ctx", {})).replace("'", "")
        by_field.setdefault(field, []).append(wanted)
    phrases = []
    for field, messages in by_field.items():
        remedy = ", or ".join(dict.fromkeys(messages))
        phrases.append(f"{field}={values.get(field)!r}: {remedy}" if field else remedy)
    return phrases


def run_options(config: RunConfig, leave_out: Collection[str] = ()) -> list[str]:
    """Return the options of `mlproject run` that ask for `config`, defaults left out."""
    options = []
    for name, field in RunConfig.model_fields.items():
        value = getattr(config, name)
        if name == "arch" or (value != field.default and name not in leave_out):
            options += [f"--{name.replace('_', '-')}", spelled(value)]
    return options


#: What stands for a value of a type, in a list of what a field takes.
_KINDS = {bool: ("true", "false"), int: ("N",), float: ("NUMBER",), str: ("TEXT",)}


def allowed_values(name: str) -> tuple[str, ...]:
    """Return what the field takes: `auto`, `true`, `N`, in the order of its type."""
    return tuple(dict.fromkeys(_words(RunConfig.model_fields[name].annotation)))


def _words(annotation: Any) -> Iterator[str]:
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
    elif get_origin(annotation) is Annotated:
        yield from _words(get_args(annotation)[0])
    elif annotation in _KINDS:
        yield from _KINDS[annotation]
    else:
        for member in get_args(annotation):
            yield from _words(member)


def spelled(value: object) -> str:
    """Return a field's value as the command line has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


_MOST_PORTS = 65535


@dataclass(frozen=True)
class MeetingPoint:
    """This machine's number, and the address of number 0, which every machine reaches."""

    node: int
    address: str
    port: int


def meeting_point(
    config: RunConfig, environ: Mapping[str, str] = os.environ
) -> MeetingPoint | None:
    """Return where the machines of `config` meet, or None for a single one.

    `MASTER_ADDR`, `MASTER_PORT` and `NODE_RANK` are torchrun's options of the same names. Raises
    `UserError` where one is absent or cannot be.
    """
    if config.nodes == 1:
        return None
    absent = [name for name in ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK") if not environ.get(name)]
    if absent:
        raise UserError(
            f"nodes={config.nodes}: {', '.join(absent)} not set; on every machine set MASTER_ADDR "
            "and MASTER_PORT to one machine's address and a free port of it, and NODE_RANK to 0 "
            "there and 1, 2... elsewhere"
        )
    return MeetingPoint(
        _number("NODE_RANK", environ, config.nodes - 1),
        environ["MASTER_ADDR"],
        _number("MASTER_PORT", environ, _MOST_PORTS),
    )


def node_rank(config: RunConfig, environ: Mapping[str, str] = os.environ) -> int:
    """Return this machine's number; number 0 keeps the record."""
    meeting = meeting_point(config, environ)
    return 0 if meeting is None else meeting.node


def _number(name: str, environ: Mapping[str, str], most: int) -> int:
    text = environ[name]
    if not text.isdecimal() or int(text) > most:
        raise UserError(f"{name}={text!r}: give a whole number from 0 to {most}")
    return int(text)
